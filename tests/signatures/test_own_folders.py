"""Signatures of users and of installed packages beside the built-in ones."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fabwatch.signatures import installed
from fabwatch.signatures.loader import HOME, LibraryError, load

GOOD = """schema: 1
id: {name}
title: A rank waits for the licence server of the house
layer: program
symptom: hang
playbook: process-stalls
summary: One rank waits for a licence. The others are innocent.
clues:
  - {{fact: process.stopped, name: blamed, required: true, present: 22, why: It is stopped.}}
confusable_with:
  - {{id: process-stopped-sigstop, because: Both stop., tell_apart: gil.held}}
references: ["https://example.org/"]
tests:
  - {{name: it is, facts: {{process.stopped: {{ranks: [1]}}}}, expect: confirmed, ranks: [1]}}
  - {{name: it is not, facts: {{}}, expect: ruled-out}}
  - {{name: nobody looked, facts: {{}}, unknown: [process.stopped], expect: cannot-tell}}
"""


def write(folder: Path, name: str, text: str = GOOD) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.yaml"
    path.write_text(text.format(name=name))
    return path


def package(site: Path, name: str, value: str) -> Path:
    """What an installer leaves on sys.path: a package and its metadata."""
    info = site / f"{name}-1.2.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.2\n")
    (info / "entry_points.txt").write_text(f"[fabwatch.signatures]\nours = {value}\n")
    home = site / name
    home.mkdir()
    (home / "__init__.py").write_text("raise SystemExit('a package of data was executed')\n")
    return home


def fabwatch(*words: object, site: Path | None = None, **environ: str):
    path = {"PYTHONPATH": str(site)} if site else {}
    return subprocess.run(
        [sys.executable, "-m", "fabwatch", *map(str, words)],
        env={**os.environ, **path, **environ}, capture_output=True, text=True, timeout=60,
    )  # fmt: skip


def test_a_user_s_signature_stands_beside_ours_and_its_look_alike_names_it_in_turn(tmp_path):
    write(tmp_path, "licence-server-wait")
    library = load(tmp_path)
    assert library.signatures["licence-server-wait"].layer == "application"
    theirs = library.signatures["process-stopped-sigstop"].confusable_with
    assert [c.tell_apart for c in theirs if c.id == "licence-server-wait"] == [("gil.held",)]
    builtin = load().signatures["process-stopped-sigstop"].confusable_with
    assert "licence-server-wait" not in {c.id for c in builtin}, "ours is not changed"


def test_a_file_that_replaces_ours_takes_over_its_look_alikes(tmp_path):
    write(tmp_path, "rank-host-stalled")
    one = load(tmp_path).signatures["rank-host-stalled"]
    ours = load().signatures["rank-host-stalled"]
    assert one.title != ours.title
    assert {c.id for c in ours.confusable_with} <= {c.id for c in one.confusable_with}


def test_a_look_alike_that_does_not_exist_is_a_problem_all_the_same(tmp_path):
    text = GOOD.replace("process-stopped-sigstop", "no-such-thing")
    path = write(tmp_path, "licence-server-wait", text)
    with pytest.raises(LibraryError) as told:
        load(tmp_path)
    assert told.value.problems == [
        f"{path}:1: licence-server-wait: the look-alike 'no-such-thing' does not exist"
    ]


def test_several_folders_are_read_and_all_their_problems_told_at_once(tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    write(one, "licence-server-wait")
    write(two, "badge-reader-wait")
    done = fabwatch("signatures", "list", "--signatures", one, "--signatures", two)
    assert done.returncode == 0
    assert "licence-server-wait" in done.stdout and "badge-reader-wait" in done.stdout
    by_variable = fabwatch("signatures", "list", FABWATCH_SIGNATURES=f"{one}{os.pathsep}{two}")
    assert by_variable.stdout == done.stdout
    bad = write(one, "licence-server-wait", GOOD.replace("present: 22", "present: lots"))
    worse = write(two, "badge-reader-wait", GOOD.replace("layer: program", "layer: attic"))
    done = fabwatch("signatures", "test", "--signatures", one, "--signatures", two)
    assert done.returncode == 2
    assert f"{bad}:9: 'present' must be a number" in done.stderr
    assert f"{worse}:4: 'layer' is 'attic'" in done.stderr


def test_an_installed_package_offers_its_folder_and_is_never_executed(tmp_path):
    write(package(tmp_path, "acme_failures", "acme_failures.library") / "library", "acme-wait")
    done = fabwatch("signatures", "list", site=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    assert "acme-wait" in done.stdout
    assert "acme-wait" not in fabwatch("signatures", "list").stdout


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ("acme_failures.attic", "there is no folder acme_failures/attic"),
        ("no_such_package", "there is no package no_such_package"),
        ("acme/failures", "it must name a package and folders"),
    ],
)
def test_a_package_that_offers_nothing_is_told_by_name(tmp_path, monkeypatch, value, told):
    package(tmp_path, "acme_failures", value)
    monkeypatch.syspath_prepend(tmp_path)
    found, (problem,) = installed.folders()
    assert found == []
    assert problem.startswith(f"acme_failures 1.2: entry point ours = {value} ")
    assert told in problem


def test_a_broken_package_does_not_cost_a_diagnosis_but_fails_the_test(tmp_path):
    folder = package(tmp_path / "site", "acme_failures", "acme_failures") / "more"
    path = write(folder, "acme-wait", GOOD.replace("layer: program", "layer: attic"))
    log = tmp_path / "train.log"
    log.write_text("RuntimeError: CUDA error: device-side assert triggered\n")
    done = fabwatch("match", log, site=tmp_path / "site")
    assert done.returncode != 2
    assert f"{path}:4: 'layer' is 'attic'" in done.stderr
    assert "goes on without the signatures of installed packages" in done.stderr
    assert done.stdout == fabwatch("match", log).stdout
    assert fabwatch("signatures", "test", "rank-killed", site=tmp_path / "site").returncode == 2


def test_a_draft_tells_every_todo_by_line_and_not_what_follows_from_it(tmp_path):
    text = GOOD.replace("A rank waits", "TODO a rank waits").replace("process.stopped, ", "TODO, ")
    path = write(tmp_path, "licence-server-wait", text.replace("layer: program", "layer: attic"))
    with pytest.raises(LibraryError) as told:
        load(tmp_path)
    assert [p.removeprefix(f"{path}:") for p in told.value.problems] == [
        "3: still to be filled in: title: TODO a rank waits for the licence server of the house",
        "4: 'layer' is 'attic'; it must be one of application, runtime, fabric, gpu, host, "
        "scheduler, numerics, performance, program",
        "9: still to be filled in: fact: TODO",
    ]


def test_none_of_ours_holds_a_todo():
    for path in HOME.rglob("*.yaml"):
        assert "TODO" not in path.read_text(), path
