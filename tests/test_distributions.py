"""The wheel and the sdist hold what the tree holds, and work where the tree is not."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent
HATCH = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["hatch"]
TARGETS = HATCH["build"]["targets"]
SKIPPED = shutil.ignore_patterns(
    "__pycache__", ".git", ".venv", ".importroot", "dist", ".*_cache", ".hypothesis",
    "fabwatch-runs", "*.pyc",
)  # fmt: skip

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """A copy of the tree: others may be writing into the real one."""
    copy = tmp_path_factory.mktemp("tree") / "fabwatch"
    shutil.copytree(ROOT, copy, ignore=SKIPPED)
    return copy


@pytest.fixture(scope="module")
def built(tree, tmp_path_factory):
    """(wheel built from the sdist, sdist): what `python -m build` makes."""
    out = tmp_path_factory.mktemp("dist")
    done = subprocess.run(
        [sys.executable, "-m", "build", "--outdir", str(out), str(tree)],
        cwd=out, capture_output=True, text=True, timeout=500,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return next(out.glob("*.whl")), next(out.glob("*.tar.gz"))


def below(tree: Path, folder: str) -> set[str]:
    """Files below a folder (or the file itself), relative to the tree."""
    path = tree / folder
    found = [path] if path.is_file() else path.rglob("*")
    return {p.relative_to(tree).as_posix() for p in found if p.is_file()}


def test_the_wheel_holds_every_file_of_the_packages_and_nothing_else(tree, built):
    names = set(zipfile.ZipFile(built[0]).namelist())
    shipped = {n for n in names if ".dist-info/" not in n}
    sources = TARGETS["wheel"]["sources"]
    wanted = set()
    for folder, package in sources.items():
        wanted |= {f"{package}{name.removeprefix(folder)}" for name in below(tree, folder)}
    assert shipped == wanted
    assert "fabwatch/py.typed" in shipped
    assert not {n.split("/")[0] for n in shipped} - {"fabwatch"}


def test_the_wheel_says_its_licence_and_its_command(built):
    wheel = zipfile.ZipFile(built[0])
    texts = {n.split("/", 1)[1]: n for n in wheel.namelist() if ".dist-info/" in n}
    assert b"Apache License" in wheel.read(texts["licenses/LICENSE"])
    assert b"fabwatch = fabwatch.cli:main" in wheel.read(texts["entry_points.txt"])
    metadata = wheel.read(texts["METADATA"]).decode()
    required = [line for line in metadata.splitlines() if line.startswith("Requires-Dist:")]
    assert not [r for r in required if "torch" in r and "extra ==" not in r]


def test_the_sdist_holds_what_the_tree_holds(tree, built):
    with tarfile.open(built[1]) as archive:
        names = {m.name.split("/", 1)[1] for m in archive.getmembers() if m.isfile()}
    wanted = set().union(*(below(tree, entry) for entry in TARGETS["sdist"]["only-include"]))
    assert wanted
    assert names - {"PKG-INFO", ".gitignore"} == wanted


def test_everything_in_the_repository_is_in_the_sdist_or_known_to_stay_out():
    if not (ROOT / ".git").exists():
        pytest.skip("needs the repository, not only its files")
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    ).stdout.split()
    kept = TARGETS["sdist"]["only-include"]
    out = {n for n in listed if not any(n == k or n.startswith(f"{k}/") for k in kept)}
    assert out == {".gitignore"}


def test_the_wheel_runs_without_the_tree(built, tmp_path):
    zipfile.ZipFile(built[0]).extractall(tmp_path / "site")
    environ = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    code = (
        "import fabwatch, fabwatch.signatures.loader as x; print(fabwatch.__file__, len(x.load()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=environ,
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    place, count = done.stdout.split()
    assert Path(place).is_relative_to(tmp_path)
    assert int(count) == len(list((ROOT / "signatures/library").rglob("*.yaml")))
