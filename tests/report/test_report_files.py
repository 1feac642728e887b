"""verdict.json and summary.md are written whole or not at all."""

from __future__ import annotations

import json

import pytest

from fabwatch.signatures.report import files
from fabwatch.signatures.verdict import Culprits, Verdict, read

HEALTHY = Verdict(outcome="healthy", symptom="none", fabric="acquitted", culprits=Culprits())


def test_both_files_are_written_and_read_back(tmp_path):
    files.write(HEALTHY, tmp_path)
    assert read(tmp_path / "verdict.json") == HEALTHY
    contract = {"schema", "outcome", "symptom", "fabric", "culprits", "signatures", "hang"}
    assert contract | {"ledger", "timing"} <= set(
        json.loads((tmp_path / "verdict.json").read_bytes())
    )
    assert (tmp_path / "summary.md").read_text().startswith("# Nothing wrong was found")


def test_what_was_there_survives_a_failed_write(tmp_path, monkeypatch):
    (tmp_path / "verdict.json").write_text("old")

    def full(fd):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        files.write(HEALTHY, tmp_path)
    assert (tmp_path / "verdict.json").read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["verdict.json"]


def test_a_folder_that_is_not_there_is_an_error(tmp_path):
    with pytest.raises(OSError):
        files.write(HEALTHY, tmp_path / "no")
