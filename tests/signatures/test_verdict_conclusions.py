"""From facts to a verdict: outcome, symptom, fabric, culprits, and what to ask."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from fabwatch.signatures import verdict as shapes
from fabwatch.signatures.analysis.model import Analysis, Ask, Doubt, HangGraph, Root
from fabwatch.signatures.asking import ask, ranks_text
from fabwatch.signatures.conclude import conclude
from fabwatch.signatures.loader import load
from fabwatch.signatures.verdict import Culprits, Verdict
from fabwatch.watchdog.evidence.facts import EVERYONE, Fact, Facts, fact
from fabwatch.watchdog.evidence.ledger import Evidence, Ledger, Status
from fabwatch.watchdog.evidence.observations import Source, Stall
from fabwatch.watchdog.evidence.vocabulary import SOURCES

LIBRARY = load()
HOSTS = {0: "h0", 1: "h0", 2: "h1", 3: "h1"}
STALL = Stall(Source("incident.json", "watch"), "stall", waited_s=7.0, last_progress=100.0)


def root(kind: str, *ranks: int, **more: object) -> Root:
    return Root(ranks, kind, "default_pg", "all_reduce", 21, **more)  # type: ignore[arg-type]


def verdict(
    *facts: Fact,
    roots: tuple[Root, ...] = (),
    waiting: tuple[int, ...] = (),
    unknown: tuple[str, ...] = (),
    stall: Stall | None = None,
    looked: tuple[str, ...] = tuple(SOURCES),
    **more: object,
) -> Verdict:
    known = Facts(list(facts), unknowable=set(unknown), ranks=set(HOSTS))
    for source in looked:
        known.look(source, EVERYONE)
    analysis = Analysis(known, HangGraph(roots, waiting), tuple(HOSTS), 4, HOSTS)
    return conclude(analysis, LIBRARY, stall=stall, **more)  # type: ignore[arg-type]


STALLED = (
    fact("wait.root", ranks=[2], kind="host-stall"),
    fact("collective.lagging", ranks=[2], lag=1),
    fact("stack.in-user-code", ranks=[2]),
    fact("wait.waiting", ranks=[0, 1, 3]),
)
STALLED_ROOTS = (root("host-stall", 2, frame="train.py:3 f"),)
STOPPED = (
    fact("wait.root", ranks=[2], kind="process-stopped"),
    fact("process.stopped", ranks=[2], cites=["proc_rank_2.txt:3"]),
)


def stalled(*more: Fact, **keys: object) -> Verdict:
    return verdict(*STALLED, *more, roots=STALLED_ROOTS, waiting=(0, 1, 3), **keys)  # type: ignore[arg-type]


# ------------------------------------------------------------------ when waiting is a failure


def test_a_short_wait_without_a_sign_of_failure_is_waiting_and_blames_nobody() -> None:
    found = stalled(stall=STALL)
    assert (found.outcome, found.symptom) == ("waiting", "none")
    assert found.culprits == Culprits()
    assert found.hang.roots[0].ranks == (2,) and found.hang.waiting == (0, 1, 3)
    assert found.hang.since == 100.0
    assert {s.grade for s in found.signatures} <= {"possible"}, "no alarm"


def test_a_wait_that_somebody_ended_is_not_said_to_go_on_nor_to_be_a_hang_for_sure() -> None:
    found = stalled(stall=replace(STALL, ended="signal 15"))
    assert (found.outcome, found.symptom) == ("cannot-tell", "hang")
    assert found.hang.roots[0].ranks == (2,) and found.hang.waiting == (0, 1, 3)
    assert found.asks
    assert {s.grade for s in found.signatures} <= {"possible"}
    sure = verdict(*STOPPED, stall=replace(STALL, ended="signal 15"), waiting=(0, 1, 3))
    assert sure.outcome == "diagnosed", "positive evidence stands, however the job ended"


def test_the_same_wait_is_a_failure_when_it_is_exceeded() -> None:
    found = stalled(fact("wait.exceeded", ranks=[0, 1, 3]), stall=STALL)
    assert (found.outcome, found.symptom, found.fabric) == ("diagnosed", "hang", "acquitted")
    assert found.culprits == Culprits(ranks=(2,), hosts=("h1",))
    assert found.best is not None and found.best.id == "rank-host-stalled"


def test_evidence_saved_by_hand_has_no_watch_and_is_looked_at_as_a_failure() -> None:
    assert stalled(stall=None).outcome == "diagnosed"


def test_a_job_whose_counters_move_is_not_stuck() -> None:
    found = stalled(fact("progress.advancing", ranks=[0, 1, 2, 3]))
    assert (found.outcome, found.culprits) == ("healthy", Culprits())
    both = (fact("progress.advancing", ranks=[0]), fact("progress.frozen", ranks=[1]))
    assert stalled(*both).outcome == "diagnosed", "some stand still"


@pytest.mark.parametrize(
    ("fact_", "best"),
    [
        (fact("process.stopped", ranks=[2]), "process-stopped-sigstop"),
        (fact("gil.held", ranks=[2]), "gil-held-watchdog-stuck"),
        (fact("process.killed", ranks=[2], signal=9, first=True), "rank-killed"),
        (fact("process.left", ranks=[2]), "rank-left-the-loop"),
        (fact("exception.raised", ranks=[2], type="E"), "rank-exception-peers-wait"),
        (fact("collective.type-mismatched", ranks=[2]), "mismatched-collective-type"),
        (fact("collective.deadlocked", ranks=[2, 3]), "cross-communicator-order-deadlock"),
        (fact("p2p.unmatched", ranks=[2]), "p2p-order-deadlock"),
        (fact("gpu.xid", hosts=["h1"], code=79), "gpu-xid79-fell-off-bus"),
        (fact("process.terminated", signal=15), "torchrun-external-sigterm"),
    ],
)
def test_positive_evidence_is_a_diagnosis_at_once(fact_: Fact, best: str) -> None:
    found = verdict(fact_, fact("wait.waiting", ranks=[0]), waiting=(0,), stall=STALL)
    assert found.outcome == "diagnosed" and found.best is not None
    assert found.best.id == best


def test_nothing_pending_and_nothing_wrong_is_healthy_and_acquits() -> None:
    found = verdict(stall=None)
    assert (found.outcome, found.symptom, found.fabric) == ("healthy", "none", "acquitted")
    assert found.signatures == () and found.asks == ()


def test_a_resolved_incident_is_healthy() -> None:
    assert stalled(stall=replace(STALL, resolved=True)).outcome == "healthy"
    died = fact("process.killed", ranks=[2], signal=9, first=True)
    assert stalled(died, stall=replace(STALL, resolved=True)).outcome == "diagnosed"


def test_evidence_that_tells_nothing_is_cannot_tell_and_not_healthy() -> None:
    found = verdict(looked=("gpu", "environment"))
    assert (found.outcome, found.fabric) == ("cannot-tell", "undecided")
    assert any("py-spy" in text or "flight-recorder" in text for text in found.asks)


def test_an_error_line_that_nothing_explains_is_not_health() -> None:
    found = verdict(fact("error.unexplained", text="x"), looked=("nccl-log",))
    assert (found.outcome, found.fabric) == ("cannot-tell", "undecided")


@pytest.mark.parametrize("source", ["nccl-log", "job-log", "ras", "python-stack"])
def test_what_may_show_a_standstill_is_health_only_with_a_sign_of_progress(source: str) -> None:
    assert verdict(looked=(source,)).outcome == "cannot-tell"
    for sign in ("progress.advancing", "progress.resumed", "job.completed"):
        assert verdict(fact(sign), looked=(source,)).outcome == "healthy"


@pytest.mark.parametrize("source", ["nccl-log", "job-log", "ras"])
def test_steps_alone_are_not_health_for_the_log_of_a_hang_ends_in_them_too(source: str) -> None:
    assert verdict(fact("progress.reported", count=9), looked=(source,)).outcome == "cannot-tell"


def test_a_standstill_that_only_the_watch_saw_is_waiting_then_cannot_tell() -> None:
    assert verdict(stall=STALL).outcome == "waiting"
    assert verdict(fact("wait.exceeded"), stall=STALL).outcome == "cannot-tell"
    assert verdict(stall=replace(STALL, trigger="request")).outcome == "healthy"


# ------------------------------------------------------------------ honesty


def test_without_proc_a_stalled_rank_is_named_but_not_diagnosed() -> None:
    found = stalled(unknown=("process.stopped",))
    assert found.outcome == "cannot-tell"
    assert found.culprits.ranks == (2,), "who is known, why is not"
    assert found.signatures[0].grade == "possible"
    assert found.signatures[0].untold == ("process-stopped-sigstop",)
    seen = stalled(unknown=("process.stopped",), looked=("flight-recorder", "python-stack"))
    assert "/proc/PID/status" in seen.asks[0] and "rank 2" in seen.asks[0]


def test_all_entered_none_finished_and_no_device_evidence_is_undecided() -> None:
    found = verdict(
        fact("collective.incomplete", ranks=[0, 1, 2, 3]),
        fact("progress.frozen", ranks=[0, 1, 2, 3]),
        roots=(root("in-collective", suspects=(0, 1, 2, 3), sure=False),),
        waiting=(0, 1, 2, 3),
        unknown=("link.silent", "gpu.kernel-running", "link.down", "gpu.xid"),
    )
    assert (found.outcome, found.symptom, found.fabric) == ("cannot-tell", "hang", "undecided")
    assert found.culprits == Culprits() and found.best is not None
    assert (found.best.id, found.best.decided) == ("stuck-in-collective-undecided", False)
    assert found.hang.roots[0].suspects == (0, 1, 2, 3)
    assert any("ip -s -d link" in text for text in found.asks)


def test_victims_alone_give_no_diagnosis() -> None:
    found = verdict(
        fact("exception.consequent", ranks=[0]),
        fact("process.aborted", ranks=[0], first=False),
    )
    assert (found.outcome, found.culprits) == ("cannot-tell", Culprits())


# ------------------------------------------------------------------ fabric


def test_the_fabric_is_convicted_only_with_positive_evidence_of_a_link() -> None:
    silent = (
        fact("link.silent", links=["h0-h1"]),
        fact("collective.incomplete", ranks=[0, 1, 2, 3]),
        fact("progress.frozen", ranks=[0, 1, 2, 3]),
    )
    found = verdict(*silent, waiting=(0, 1, 2, 3))
    assert (found.outcome, found.fabric) == ("diagnosed", "convicted")
    assert found.culprits == Culprits(links=("h0-h1",)), "no side is proven"
    assert "link.silent" in found.fabric_reasons[0]
    assert verdict(*silent[1:], waiting=(0, 1, 2, 3)).fabric == "undecided"


def test_a_link_down_on_one_host_blames_its_ranks() -> None:
    found = verdict(
        fact("link.down", hosts=["h1"], links=["h1/eth0"]),
        fact("collective.incomplete", ranks=[0, 1, 2, 3]),
        fact("collective.pending", ranks=[0, 1, 2, 3]),
        waiting=(0, 1, 2, 3),
    )
    assert found.fabric == "convicted"
    assert found.culprits == Culprits(ranks=(2, 3), hosts=("h1",), links=("h1/eth0",))


def test_a_host_side_cause_beside_link_trouble_leaves_the_fabric_undecided() -> None:
    found = stalled(fact("link.errors", links=["h0/eth0"]))
    assert (found.outcome, found.fabric) == ("diagnosed", "undecided")
    assert "link.errors" in found.fabric_reasons[-1]


def test_a_slow_link_is_a_slowdown_and_names_no_rank() -> None:
    found = verdict(
        fact("link.limited", hosts=["h0"], links=["h0/eth0"]),
        fact("progress.slowed", factor=8),
        fact("progress.advancing", ranks=[0, 1, 2, 3]),
    )
    assert (found.outcome, found.symptom, found.fabric) == ("diagnosed", "slowdown", "convicted")
    assert found.culprits == Culprits(hosts=("h0",), links=("h0/eth0",))


def test_a_recorder_that_keeps_everything_acquits_without_a_stack() -> None:
    facts = STALLED[:2]
    roots = (root("host-stall", 2),)
    unknown = ("process.stopped", "stack.in-user-code")
    told = verdict(*facts, roots=roots, unknown=unknown, recorded=frozenset({0, 2}))
    assert told.fabric == "acquitted" and "nothing in flight" in told.fabric_reasons[0]
    assert verdict(*facts, roots=roots, unknown=unknown).fabric == "undecided"
    unsure = (root("host-stall", 2, sure=False),)
    assert (
        verdict(*facts, roots=unsure, unknown=unknown, recorded=frozenset({2})).fabric
        == "undecided"
    )


def test_a_device_far_behind_is_not_held_by_the_wire_but_one_step_behind_may_be() -> None:
    def lagging(lag: int) -> Verdict:
        return verdict(
            fact("collective.completion-lagging", ranks=[1], lag=lag),
            fact("wait.root", ranks=[1], kind="completion-lag"),
            roots=(root("completion-lag", 1),),
            waiting=(0,),
        )

    assert (lagging(1).outcome, lagging(1).fabric) == ("diagnosed", "undecided")
    assert lagging(2).fabric == "acquitted"


# ------------------------------------------------------------------ culprits


def test_independent_causes_stand_side_by_side() -> None:
    found = verdict(
        *STOPPED,
        fact("gil.held", ranks=[0]),
        fact("page.stale", ranks=[0]),
        fact("wait.root", ranks=[0], kind="host-stall"),
        roots=(root("process-stopped", 2), root("host-stall", 0)),
        waiting=(1, 3),
    )
    assert found.culprits.ranks == (0, 2) and found.culprits.hosts == ("h0", "h1")


def test_a_consequence_elsewhere_is_no_second_culprit() -> None:
    """Rank 2 was killed; rank 1 is behind because of it."""
    found = verdict(
        fact("process.killed", ranks=[2], signal=9, first=True),
        fact("wait.waiting", ranks=[0]),
        fact("wait.root", ranks=[1], kind="host-stall"),
        fact("collective.lagging", ranks=[1]),
        fact("stack.in-user-code", ranks=[1]),
        waiting=(0,),
    )
    assert found.best is not None and found.best.id == "rank-killed"
    assert found.culprits.ranks == (2,)


def test_a_merely_likely_second_cause_blames_nobody_more() -> None:
    found = verdict(
        *STOPPED,
        fact("wait.root", ranks=[0], kind="host-stall"),
        roots=(root("process-stopped", 2), root("host-stall", 0)),
    )
    assert found.culprits.ranks == (2,)


def test_storage_that_everybody_waits_for_blames_no_rank() -> None:
    everyone = {"ranks": [0, 1, 2, 3]}
    found = verdict(
        fact("wait.all-idle-same-stack", **everyone),
        fact("storage.stalled", **everyone),
        fact("stack.in-io", **everyone),
        roots=(root("external-dependency"),),
    )
    assert found.best is not None and found.best.id == "all-ranks-wait-on-storage"
    assert (found.outcome, found.culprits) == ("diagnosed", Culprits())


def test_a_cause_without_a_place_takes_the_only_root_there_is() -> None:
    facts = (fact("exception.raised", type="E"), fact("process.exited", code=1, first=True))
    one = verdict(*facts, roots=(root("process-dead", 3),))
    assert one.culprits.ranks == (3,)
    two = verdict(*facts, roots=(root("process-dead", 3), root("host-stall", 1)))
    assert two.culprits.ranks == ()


def test_all_ranks_of_one_root_are_blamed_with_any_of_them() -> None:
    found = verdict(
        fact("wait.root", ranks=[1, 2], kind="host-stall"),
        fact("stack.in-user-code", ranks=[2]),
        fact("collective.lagging", ranks=[1, 2]),
        roots=(root("host-stall", 1, 2),),
    )
    assert found.culprits.ranks == (1, 2)


# ------------------------------------------------------------------ symptom


def test_a_mismatch_that_went_on_is_wrong_numbers_and_one_that_holds_is_a_hang() -> None:
    mismatch = fact("collective.type-mismatched", ranks=[0, 1])
    assert verdict(mismatch).symptom == "wrong-numbers"
    held = verdict(mismatch, roots=(root("type-mismatch", 0, 1),), waiting=(2,))
    assert held.symptom == "hang"
    assert verdict(mismatch, fact("timeout.reported", ranks=[0])).symptom == "hang"


def test_a_crash_is_a_crash_although_the_others_wait() -> None:
    found = verdict(
        fact("exception.raised", ranks=[1], type="ValueError"),
        fact("process.exited", ranks=[1], code=1, first=True),
        waiting=(0,),
    )
    assert (found.outcome, found.symptom, found.fabric) == ("diagnosed", "crash", "acquitted")


def test_a_death_that_nothing_explains_is_a_crash_that_cannot_be_told() -> None:
    gone = fact("process.exited", ranks=[1], code=3, first=True)
    found = verdict(gone, unknown=("exception.raised", "exception.consequent"))
    assert (found.outcome, found.symptom) == ("cannot-tell", "crash")
    assert found.signatures[0].id == "rank-exception-peers-wait"


def test_a_death_of_which_no_exception_is_on_record_though_looked_for_is_its_own() -> None:
    found = verdict(fact("process.exited", ranks=[1], code=3, first=True))
    assert (found.outcome, found.symptom, found.fabric) == ("diagnosed", "crash", "acquitted")
    assert found.culprits.ranks == (1,)


# ------------------------------------------------------------------ the shape


def test_the_json_has_the_keys_of_the_contract_and_reads_back() -> None:
    ledger = Ledger(
        [
            Evidence(source="process", status=Status.OK, rank=0),
            Evidence(
                source="python-stack", status=Status.TIMED_OUT, rank=2, reason="no answer in 3 s"
            ),
        ]
    )
    found = stalled(ledger=ledger, notes=("x:1: broken",), ranks=[(2, "h1", 77)])
    data = msgspec.json.decode(shapes.dumps(found))
    assert data["schema"] == "fabwatch.verdict/1"
    for key in (
        "outcome",
        "symptom",
        "fabric",
        "culprits",
        "signatures",
        "hang",
        "ledger",
        "timing",
    ):
        assert key in data
    assert set(data["culprits"]) == {"ranks", "hosts", "devices", "links"}
    first = data["signatures"][0]
    for key in ("id", "title", "layer", "grade", "decibans", "where", "reasons", "asks",
                "mitigations", "playbook"):  # fmt: skip
        assert key in first
    assert set(first["reasons"][0]) >= {"fact", "known", "worth", "cites"}
    assert (
        data["hang"]["roots"][0] | {"frame": "train.py:3 f", "seq": 21} == data["hang"]["roots"][0]
    )
    assert data["ledger"]["timed-out"] == 1 and data["ledger"]["ok"] == 1
    assert data["ledger"]["gaps"] == ["rank 2: python-stack: no answer in 3 s"]
    assert set(data["timing"]) == {
        "last_progress_to_detect_s", "detect_to_captured_s", "captured_to_verdict_s",
    }  # fmt: skip
    assert shapes.loads(shapes.dumps(found)) == found
    with pytest.raises(msgspec.MsgspecError):
        shapes.loads(b'{"schema": "other/1"}')


def test_a_reader_takes_unknown_keys_and_exit_codes_are_those_of_the_contract() -> None:
    data = msgspec.json.decode(shapes.dumps(verdict()))
    data["later"] = {"more": 1}
    assert shapes.loads(msgspec.json.encode(data)).outcome == "healthy"
    assert shapes.EXIT_CODES == {"diagnosed": 0, "healthy": 1, "waiting": 1, "cannot-tell": 3}


def test_reasons_are_cited_heaviest_first_and_unknown_ones_are_left_out() -> None:
    found = verdict(*STOPPED, roots=(root("process-stopped", 2),), unknown=("stack.moving",))
    assert found.best is not None
    reasons = found.best.reasons
    assert (reasons[0].fact, reasons[0].worth) == ("process.stopped", 20.0)
    assert reasons[0].cites == ("proc_rank_2.txt:3",)
    assert "stack.moving" not in {r.fact for r in reasons}
    assert [abs(r.worth) for r in reasons] == sorted((abs(r.worth) for r in reasons), reverse=True)
    assert sum(r.worth for r in reasons) == found.best.decibans


def test_doubts_and_open_questions_of_the_analysis_are_passed_on() -> None:
    facts = Facts(list(STALLED))
    analysis = Analysis(
        facts, HangGraph(STALLED_ROOTS, (0,)), hosts=HOSTS,
        contradictions=(Doubt("two dumps disagree", ("a#1",)),),
        asks=(Ask("a second snapshot", "tells slow from stuck", "fabwatch capture"),),
    )  # fmt: skip
    found = conclude(analysis, LIBRARY)
    assert found.contradictions == ("two dumps disagree [a#1]",)
    assert "a second snapshot: tells slow from stuck (fabwatch capture)" in found.asks
    assert len(found.asks) <= 6


def test_a_question_names_the_first_source_that_was_not_read_and_none_if_all_were() -> None:
    facts = Facts(ranks={0, 1})
    assert "exit code or signal" in ask("process.killed", facts, [1])
    facts.look("exit", 1)
    assert "the job's whole log" in ask("process.killed", facts, [1])
    facts.look("job-log")
    assert ask("process.killed", facts, [1]) == ""


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ([3], "rank 3"),
        ([1, 2, 3, 7], "ranks 1-3, 7"),
        ([5, 4, 5], "ranks 4-5"),
        (range(0, 40, 2), "ranks 0, 2, 4, 6, 8, 10, 12, 14 and 12 more"),
    ],
)
def test_ranks_are_printed_in_stretches(ranks: list[int], text: str) -> None:
    assert ranks_text(ranks) == text


def test_a_likely_cause_on_a_host_acquits_only_when_nothing_is_about_the_way() -> None:
    held = fact("cpu.quota-throttled", hosts=["h1"], percent=63)
    found = verdict(held)
    assert (found.outcome, found.signatures[0].grade) == ("diagnosed", "likely")
    assert found.fabric == "acquitted"
    both = verdict(held, fact("network.error-reported", kind="socket"))
    assert both.fabric == "undecided"


def test_an_nvlink_that_errs_convicts_but_a_slow_bus_beside_another_cause_does_not() -> None:
    link = verdict(fact("nvlink-errors.grew", hosts=["h1"], devices=["0"], counter="crc", by=9))
    assert link.fabric == "convicted"
    slow = fact("pcie-link.downgraded", hosts=["h1"], devices=["5d:00.0"], what="speed")
    beside = verdict(*STOPPED, slow, roots=(root("process-stopped", 2),), waiting=(0, 1, 3))
    assert (beside.signatures[0].id, beside.fabric) == ("process-stopped-sigstop", "acquitted")


def of_dumps(*ranks: int, blind: frozenset[int] = frozenset()) -> str:
    known = Facts([], ranks=set(HOSTS))
    known.look("flight-recorder", *ranks)
    analysis = Analysis(known, HangGraph((), ()), tuple(HOSTS), 4, HOSTS)
    return conclude(analysis, LIBRARY, blind=blind).outcome


def test_health_needs_a_whole_dump_of_every_rank_that_is_known_of() -> None:
    assert of_dumps(0, 1, 2, 3) == "healthy"
    assert of_dumps(2) == "cannot-tell", "the culprit's own dump has nothing pending"
    assert of_dumps(0, 1, 2, 3, blind=frozenset({1})) == "cannot-tell"
