"""tools/new.py and tools/docs.py as maintainers run them."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def tree(tmp_path):
    """A tree with the folders that members live in, and the scripts."""
    for folder in ("watchdog/collectors", "watchdog/evidence/parsers", "playbooks", "docs"):
        (tmp_path / folder).mkdir(parents=True)
    for layer in ("host", "gpu"):
        (tmp_path / "signatures/library" / layer).mkdir(parents=True)
    (tmp_path / "tools").mkdir()
    for name in ("new.py", "docs.py"):
        shutil.copy(ROOT / "tools" / name, tmp_path / "tools" / name)
    return tmp_path


def run(tree, *words):
    return subprocess.run(
        [sys.executable, *words], cwd=tree, capture_output=True, text=True, timeout=60
    )


@pytest.mark.parametrize(
    ("kind", "path"),
    [
        ("collector", "watchdog/collectors/big_thing.py"),
        ("parser", "watchdog/evidence/parsers/big_thing.py"),
        ("signature", "signatures/library/gpu/big-thing.yaml"),
        ("playbook", "playbooks/big-thing.md"),
    ],
)
def test_a_scaffold_is_written_once_and_never_over_something(tree, kind, path):
    words = ["tools/new.py", kind, "big-thing", "--layer", "gpu"]
    assert run(tree, *words).returncode == 0
    text = (tree / path).read_text()
    assert "TODO" in text
    if path.endswith(".py"):
        compile(text, path, "exec")
    (tree / path).write_text("mine")
    again = run(tree, *words)
    assert again.returncode == 1
    assert "exists already" in again.stderr
    assert (tree / path).read_text() == "mine"


@pytest.mark.parametrize("name", ["BigThing", "big_thing", "../thing", "-x"])
def test_a_name_that_is_not_kebab_case_is_refused(tree, name):
    assert run(tree, "tools/new.py", "playbook", "--", name).returncode == 2
    assert list((tree / "playbooks").iterdir()) == []


def test_an_unfilled_signature_is_rejected_with_located_errors(tree):
    run(tree, "tools/new.py", "signature", "big-thing")
    library = tree / "signatures/library"
    done = run(tree, "-m", "fabwatch", "signatures", "list", "--signatures", str(library))
    assert done.returncode == 2
    assert "big-thing.yaml:" in done.stderr


def test_generated_docs_are_current():
    done = subprocess.run(
        [sys.executable, ROOT / "tools/docs.py", "--check"],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_the_check_of_docs_can_fail(tree):
    assert run(tree, "tools/docs.py").returncode == 0
    assert run(tree, "tools/docs.py", "--check").returncode == 0
    page = tree / "docs/cli.md"
    page.write_text(page.read_text() + "x\n")
    done = run(tree, "tools/docs.py", "--check")
    assert done.returncode == 1
    assert "docs/cli.md:1: is stale" in done.stderr


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["startup", "--times", "2"], ["python -c pass: ", "fabwatch --help: "]),
        (["match", "--ranks", "16", "--times", "1"], ["facts of 16 ranks", "library, parsed: "]),
    ],
)
def test_a_short_measurement_prints_its_figures(words, told):
    done = subprocess.run(
        [sys.executable, ROOT / "tools/bench.py", *words],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for text in told:
        assert text in done.stdout
