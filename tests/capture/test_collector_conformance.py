"""Every collector in the folder keeps the same promises, whatever became of its target."""

from __future__ import annotations

import hashlib
import importlib
import signal
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fabwatch.watchdog.capture import children
from fabwatch.watchdog.capture.collector import Collector, collectors
from fabwatch.watchdog.capture.outcome import Outcome
from fabwatch.watchdog.evidence.ledger import Status
from fabwatch.watchdog.evidence.vocabulary import SOURCES

EVERY = pytest.mark.parametrize("collector", collectors(), ids=lambda one: one.name)


def attempt(stage: Any, collector: Collector) -> list[Outcome]:
    """One attempt for rank 0, the host or the run, checked for what holds of every attempt."""
    out = stage.incident / {"rank": "ranks/0", "host": "hosts/node-a", "run": "."}[collector.scope]
    target = stage.target(0 if collector.scope == "rank" else None, collector.deadline_s)
    before = {p for p in stage.incident.rglob("*") if p.is_file()}
    began = time.monotonic()
    outcomes = list(children.attempt(collector, target, out))
    assert time.monotonic() - began < collector.deadline_s + 20  # it ends, however loaded we are
    assert outcomes, "an attempt without an outcome leaves no ledger line"
    for one in outcomes:
        assert (one.source or collector.source) in SOURCES
        if one.status in (Status.OK, Status.PARTIAL):
            assert one.path is not None
        else:
            assert one.reason, "a gap must say why"
        if one.path is not None:
            data = one.path.read_bytes()
            assert one.path.is_relative_to(out)
            assert one.size == len(data)
            assert one.sha256 == hashlib.sha256(data).hexdigest()
            assert one.path.stat().st_mode & 0o777 == 0o600
            assert one.path.parent.stat().st_mode & 0o777 == 0o700 or collector.scope == "run"
            assert stage.secret.encode() not in data
    written = {p for p in stage.incident.rglob("*") if p.is_file()} - before
    unlisted = written - {one.path for one in outcomes}
    # A refused RAS connection is written down for people beside its absent line.
    assert {p.name for p in unlisted} <= {"ras.txt", "ras.json"}
    return outcomes


@EVERY
def test_a_collector_says_what_it_is_for_and_what_it_costs(collector: Collector) -> None:
    module = importlib.import_module(collector.collect.__module__)
    assert (module.__doc__ or "").strip()
    assert collector.collect.__doc__
    assert Path(module.__file__ or "").parent.name == "collectors"
    assert 0 < collector.deadline_s <= (3 if collector.tier == 1 else 20)
    assert collector.name == collector.name.lower().replace("_", "-")
    if collector.undo is not None:
        assert collector.perturbs, "what must be undone has disturbed the job"


@EVERY
def test_a_living_target_gives_outcomes(stage: Any, collector: Collector) -> None:
    stage.start()
    attempt(stage, collector)
    assert stage.processes[0].poll() is None, "a collector must not end its target"
    assert stage.eventually(
        lambda: (
            stage.processes[0].poll() is None
            and Path(f"/proc/{stage.ranks[0].pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
            in "SR"
        )
    ), "a collector must not leave its target stopped"


@EVERY
def test_an_ended_target_gives_reasons(stage: Any, collector: Collector) -> None:
    stage.start()
    stage.processes[0].kill()
    stage.processes[0].wait(30)
    outcomes = attempt(stage, collector)
    if collector.scope == "rank" and collector.living:
        assert [one.status for one in outcomes] == [Status.ABSENT]


@EVERY
def test_another_process_with_the_same_number_is_not_read(stage: Any, collector: Collector) -> None:
    rank = stage.start()
    stage.ranks[0] = msgspec.structs.replace(rank, start_ticks=rank.start_ticks - 1, cgroups="")
    outcomes = attempt(stage, collector)
    if collector.scope == "rank":
        assert not [one for one in outcomes if one.path is not None]


@EVERY
def test_a_stopped_target_hangs_nobody_and_stays_stopped(stage: Any, collector: Collector) -> None:
    rank = stage.start()
    stage.processes[0].send_signal(signal.SIGSTOP)
    stat = Path(f"/proc/{rank.pid}/stat")
    assert stage.eventually(lambda: ") T " in stat.read_text())
    attempt(stage, collector)
    assert ") T " in stat.read_text()
