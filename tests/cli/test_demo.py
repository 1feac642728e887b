"""`fabwatch demo` does what it says, and says what is missing."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

import pytest


def test_without_torch_it_says_how_to_get_it(tmp_path):
    code = (
        "import sys\nsys.modules['torch'] = None\nsys.argv = ['fabwatch', 'demo']\n"
        "from fabwatch.cli import main\nmain()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1
    assert "pip install torch" in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs torch")
def test_the_broken_rank_is_named_and_nothing_is_left_behind(tmp_path):
    clean = {k: v for k, v in os.environ.items() if not k.startswith("FABWATCH_")}
    clean["FABWATCH_DEMO_MARK"] = mark = str(tmp_path)
    done = subprocess.run(
        [sys.executable, "-m", "fabwatch", "demo", "--after", "8", "--timeout", "200"],
        cwd=tmp_path, env=clean, capture_output=True, text=True, timeout=280,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "process-stopped-sigstop" in done.stdout
    assert "that rank, and no other" in done.stderr
    assert not left_behind(mark)


def left_behind(mark: str) -> list[str]:
    """Command lines of processes that carry the mark in their environment."""
    import psutil

    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("FABWATCH_DEMO_MARK") == mark:
                found.append(" ".join(process.cmdline()))
        except psutil.Error:
            continue
    return found
