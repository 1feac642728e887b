"""The journal: on disk before anything happens, and readable whatever was torn."""

from __future__ import annotations

import json
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fabwatch.chaos import journal
from fabwatch.chaos.healing import heal, recover
from fabwatch.chaos.model import Refused


def intent(**more):
    return {
        "id": "f-1", "fault": "rank.stop", "mechanism": "sigstop", "state": {"victims": []},
        "injector": {"pid": 0, "start_ticks": 0}, **more,
    }  # fmt: skip


def test_what_was_noted_adds_to_the_state(tmp_path):
    path = tmp_path / "f-1.jsonl"
    journal.create(path, intent())
    journal.append(path, "note", {"state": {"helper": 7}})
    record = journal.read(path)
    assert record.open and record.state.plain() == {"victims": [], "helper": 7}
    journal.append(path, "reverted")
    assert not journal.read(path).open


def test_a_torn_tail_is_survived_and_closed_off_by_the_next_line(tmp_path):
    path = tmp_path / "f-1.jsonl"
    journal.create(path, intent())
    with path.open("ab") as file:
        file.write(b'{"do":"rever')
    assert journal.read(path).open and journal.read(path).torn == 1
    journal.append(path, "reverted")
    record = journal.read(path)
    assert not record.open and record.torn == 1


@settings(max_examples=25)
@given(st.binary(max_size=200))
def test_no_bytes_after_the_intent_hide_it(tmp_path_factory, rubbish):
    path = tmp_path_factory.mktemp("j") / "f-1.jsonl"
    journal.create(path, intent())
    with path.open("ab") as file:
        file.write(rubbish)
    assert journal.read(path).intent is not None
    journal.append(path, "reverted")
    assert not journal.read(path).open


def test_a_torn_intent_means_that_nothing_began(store):
    path = store.path("f-torn")
    path.write_bytes(json.dumps(intent()).encode()[:20])
    os.utime(path, (0, 0))
    assert store.open_records() == []
    assert recover(store) == [] and not path.exists()


def test_a_journal_of_an_earlier_boot_is_closed_without_touching_pids(store):
    path = store.path("f-old")
    me = {"pid": os.getpid(), "start_ticks": 1}
    journal.create(path, intent(boot="another", state={"victims": [me]}))
    assert "booted" in heal(path, "test").says
    assert not journal.read(path).open


def test_a_fault_that_this_version_does_not_know_stays_open_and_is_called_unsafe(store):
    path = store.path("f-new")
    journal.create(path, intent(fault="rank.from-the-future"))
    assert heal(path, "test").known is False
    assert journal.read(path).unsafe and [r.id for r in store.open_records()] == ["f-new"]


def test_a_folder_that_others_may_write_is_refused(tmp_path):
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(Refused, match="others may write"):
        journal.Store(folder).ready()
