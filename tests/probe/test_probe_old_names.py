"""An armed name that this torch only warns about is taken back inside the rank."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import fabwatch.watchdog.probe

SITE = Path(fabwatch.watchdog.probe.__file__).parent / "site"
OLD = "TORCH_NCCL_TRACE_BUFFER_SIZE"


def seen_by_a_job(tmp_path: Path, version: str, armed: str) -> str:
    """What a process sees of the old name after it imported a torch of ``version``."""
    package = tmp_path / "torch" / "distributed"
    package.mkdir(parents=True)
    (tmp_path / "torch" / "__init__.py").write_text("from torch import version\n")
    (tmp_path / "torch" / "version.py").write_text(f"__version__ = {version!r}\n")
    (package / "__init__.py").write_text("from torch.distributed import distributed_c10d\n")
    (package / "distributed_c10d.py").write_text("")
    (tmp_path / "live").mkdir()
    environ = {
        **os.environ,
        "PYTHONPATH": f"{SITE}:{tmp_path}",
        "FABWATCH_RUN_DIR": str(tmp_path),
        "FABWATCH_RUN_ID": "run",
        "FABWATCH_SOCKETS": str(tmp_path),
        OLD: "2000",
    }
    if armed:
        environ["FABWATCH_OLD_NAMES"] = armed
    code = f"import os, torch.distributed; print(os.environ.get({OLD!r}))"
    done = subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize("version", ["2.11.0", "2.13.0+cpu", "2.14.1", "3.0.0a1"])
def test_a_torch_that_warns_about_the_old_name_does_not_see_it(tmp_path, version):
    assert seen_by_a_job(tmp_path, version, OLD) == "None"


@pytest.mark.parametrize("version", ["2.2.2", "2.8.0", "2.10.0+cu128", "unknown"])
def test_a_torch_that_needs_the_old_name_keeps_it(tmp_path, version):
    assert seen_by_a_job(tmp_path, version, OLD) == "2000"


def test_what_the_user_set_is_never_taken_back(tmp_path):
    assert seen_by_a_job(tmp_path, "2.13.0", "") == "2000"
