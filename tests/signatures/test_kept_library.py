"""The built-in library is read once and kept; what is kept changes nothing and is never trusted."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fabwatch.signatures import kept, loader
from fabwatch.signatures.model import Library
from fabwatch.watchdog.evidence import shapes


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("FABWATCH_CACHE", str(tmp_path / "kept"))
    yield tmp_path / "kept"
    loader._builtin.cache_clear()


def read_again() -> Library:
    loader._builtin.cache_clear()
    return loader.load()


def refuse(*_args, **_more):
    raise AssertionError("the library was parsed")


def test_a_kept_library_is_the_same_as_the_one_that_was_parsed(folder, monkeypatch):
    parsed = read_again()
    (file,) = folder.iterdir()
    before = shapes.known().all
    monkeypatch.setattr(loader, "read_folders", refuse)
    again = read_again()
    assert again == parsed
    assert list(again.signatures) == list(parsed.signatures)
    assert shapes.known().all == before
    assert file.stat().st_mode & 0o077 == 0


def test_a_fresh_process_learns_the_shapes_of_a_kept_library(folder):
    code = (
        "from fabwatch.signatures.loader import load; load()\n"
        "from fabwatch.watchdog.evidence import shapes, vocabulary as v\n"
        "print(sorted((s.origin, s.fact, s.literals) for s in shapes.known().all), "
        "sorted(v.VOCABULARY.items()))"
    )
    run = [sys.executable, "-c", code]
    first, second, without = (
        subprocess.run(
            run, capture_output=True, text=True, timeout=60, check=True,
            env={**os.environ, "FABWATCH_CACHE": where},
        ).stdout
        for where in (str(folder), str(folder), "")
    )  # fmt: skip
    assert first == second == without
    assert len(first) > 10_000


@pytest.mark.parametrize("damage", [b"", b"\x93", b"\x92\x90\x80junk", b"[[], {}]"])
def test_a_damaged_file_is_read_as_if_it_were_not_there(folder, damage):
    parsed = read_again()
    (file,) = folder.iterdir()
    file.write_bytes(damage)
    assert read_again() == parsed
    assert file.stat().st_size > 10_000, "it was written anew"


def test_any_change_of_a_file_or_of_the_reading_code_makes_another_key(tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    one.write_text("a")
    two.write_text("b")
    before = kept.key_of([one, two])
    assert kept.key_of([one, two]) == before
    assert kept.key_of([two, one]) != before
    two.write_text("c")
    assert kept.key_of([one, two]) != before
    code = {path.name for path in loader._READERS}
    assert {"loader.py", "model.py", "strict_yaml.py", "vocabulary.py", "facts.py"} <= code
    assert all(path.is_file() for path in loader._READERS)


def test_a_file_of_somebody_else_is_not_read(folder, monkeypatch):
    kept.put("k", kept.Kept((), {}))
    assert kept.get("k") == kept.Kept((), {})
    mine = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: mine + 1)
    assert kept.get("k") is None


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FABWATCH_CACHE", str(tmp_path / "file"))
    kept.put("k", kept.Kept((), {}))
    assert kept.get("k") is None


def test_an_empty_variable_keeps_nothing_and_the_usual_place_follows_the_user(monkeypatch):
    monkeypatch.setenv("FABWATCH_CACHE", "")
    assert kept.folder() is None
    monkeypatch.delenv("FABWATCH_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "/x/cache")
    assert kept.folder() == Path("/x/cache/fabwatch")
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", "/home/me")
    assert kept.folder() == Path("/home/me/.cache/fabwatch")
    monkeypatch.setenv("HOME", "")
    assert kept.folder() is None


def test_only_the_newest_few_are_kept(folder):
    for number in range(7):
        kept.put(f"k{number}", kept.Kept((), {}))
        file = folder / f"library-k{number}.msgpack"
        os.utime(file, (number, number))
    left = sorted(path.name for path in folder.iterdir())
    assert left == [f"library-k{n}.msgpack" for n in (3, 4, 5, 6)]
