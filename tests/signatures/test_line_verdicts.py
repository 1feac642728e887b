"""What a line alone decides: that something is wrong, and whether the way between hosts is."""

from __future__ import annotations

from fabwatch.signatures.analysis.model import Analysis, HangGraph
from fabwatch.signatures.conclude import conclude
from fabwatch.signatures.loader import load
from fabwatch.signatures.verdict import Verdict
from fabwatch.watchdog.evidence.facts import EVERYONE, Fact, Facts, fact
from fabwatch.watchdog.evidence.vocabulary import SOURCES

LIBRARY = load()


def verdict(*facts: Fact) -> Verdict:
    known = Facts(list(facts), ranks={0, 1})
    for source in SOURCES:
        known.look(source, EVERYONE)
    return conclude(Analysis(known, HangGraph((), ()), (0, 1), 2, {}), LIBRARY)


def test_a_line_that_states_a_cause_is_a_failure_without_anybody_waiting() -> None:
    assert verdict(fact("memlock.refused", ranks=[0])).outcome == "diagnosed"


def test_a_line_that_only_sets_the_scene_is_no_failure() -> None:
    assert verdict(fact("nccl-net.chosen", network="Socket")).outcome != "diagnosed"


def test_a_cause_stated_by_the_hosts_own_software_acquits_the_fabric() -> None:
    assert verdict(fact("memlock.refused", ranks=[0])).fabric == "acquitted"


def test_a_refused_way_between_hosts_acquits_nobody() -> None:
    found = verdict(
        fact("bootstrap-connect.failed", ranks=[0]),
        fact("network.error-reported", kind="socket", why="No route to host"),
    )
    assert (found.outcome, found.fabric) == ("diagnosed", "undecided")


def test_a_port_that_reports_its_own_error_convicts_the_fabric() -> None:
    found = verdict(
        fact("ib-port.reported", event="port error", links=["mlx5_0"]),
        fact("network.error-reported", kind="ib-completion", status=12),
    )
    assert (found.outcome, found.fabric) == ("diagnosed", "convicted")
