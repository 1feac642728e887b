"""Every signature of the library keeps the rules of the library."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fabwatch import playbooks
from fabwatch.signatures.cases import facts_of, failures, matches, run_case
from fabwatch.signatures.loader import HOME, load
from fabwatch.signatures.matching import above, match
from fabwatch.signatures.model import Grade, Signature
from fabwatch.watchdog.evidence import shapes
from fabwatch.watchdog.evidence.facts import EVERYONE, Facts, fact
from fabwatch.watchdog.evidence.vocabulary import SOURCES, VOCABULARY

LIBRARY = load()
ALL = list(LIBRARY.signatures.values())
CONFIRMED = [
    pytest.param(one, case, id=f"{one.id}-{number}")
    for one in ALL
    for number, case in enumerate(one.cases)
    if case.expect is Grade.CONFIRMED
]

ISSUED = [
    "rank-host-stalled",
    "dataloader-stall",
    "process-stopped-sigstop",
    "gil-held-watchdog-stuck",
    "rank-exception-peers-wait",
    "rank-killed",
    "rank-left-the-loop",
    "oom-kill-cgroup",
    "mismatched-collective-type",
    "collective-size-mismatch",
    "collective-dtype-mismatch",
    "cross-communicator-order-deadlock",
    "p2p-order-deadlock",
    "conditional-collective-rank0",
    "rank-divergent-control-flow",
    "slow-rank0-work",
    "checkpoint-save-barrier-timeout",
    "pg-timeout-too-short",
    "uneven-data-end",
    "gpu-kernel-stalled",
    "network-black-hole",
    "stuck-in-collective-undecided",
    "all-ranks-wait-on-storage",
]

NOT_MADE_YET = frozenset(["gpu.kernel-running"])
"""Facts that signatures use and that nothing makes yet. May only shrink."""


def every(name: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize(name, ALL, ids=[one.id for one in ALL])


def test_the_ids_that_the_first_release_promises_are_there() -> None:
    assert set(ISSUED) <= set(LIBRARY.signatures)


def test_released_ids_never_change() -> None:
    """An id may be added to released_ids.txt; one that stands there must exist for ever."""
    released = (Path(__file__).parent / "released_ids.txt").read_text().split()
    assert released == sorted(set(released))
    known = set(LIBRARY.signatures) | {alias for one in ALL for alias in one.aliases}
    assert set(released) <= known, "an id was removed or renamed"
    assert set(LIBRARY.signatures) <= set(released), "add the new id to released_ids.txt"


@every("one")
def test_own_cases_come_out_as_they_expect(one: Signature) -> None:
    assert [p for case in one.cases if (p := run_case(one, case, LIBRARY))] == []


@every("one")
def test_each_has_a_confirmed_a_ruled_out_and_a_cannot_tell_case(one: Signature) -> None:
    grades = {case.expect for case in one.cases}
    best = Grade.CONFIRMED if one.names_cause else Grade.POSSIBLE
    assert {best, Grade.RULED_OUT, Grade.CANNOT_TELL} <= grades and len(one.cases) >= 3


@pytest.mark.parametrize(("one", "case"), CONFIRMED)
def test_a_confirmed_case_of_one_is_not_likely_for_another(one: Signature, case: object) -> None:
    """Unless the other is a more general form of it, or a consequence of it."""
    found = matches(case, LIBRARY)  # type: ignore[arg-type]
    related = set(one.explains) | LIBRARY.ancestors(one.id)
    assert [m.id for m in found if m.grade.stands and m.id not in related] == [one.id]
    assert found[0].id == one.id, "the cause comes above what it explains"


@every("one")
def test_look_alikes_are_named_by_both_sides_with_the_same_telling_facts(one: Signature) -> None:
    for other in one.confusable_with:
        back = LIBRARY.signatures[other.id].confusable_with
        assert [b.tell_apart for b in back if b.id == one.id] == [other.tell_apart]


@every("one")
def test_a_telling_fact_is_weighed_by_one_of_the_two(one: Signature) -> None:
    """Else knowing it would change nothing."""
    for other in one.confusable_with:
        weighed = {clue.fact for clue in (*one.clues, *LIBRARY.signatures[other.id].clues)}
        assert weighed & set(other.tell_apart), f"{one.id} / {other.id}"


@every("one")
def test_mitigations_are_bounded_and_the_next_capture_is_said(one: Signature) -> None:
    assert one.mitigations and one.capture_next
    for step in one.mitigations:
        for key in ("do", "scope", "risk", "check", "undo", "undo_when"):
            assert len(getattr(step, key)) >= 4, f"{one.id}: {step.id}: {key}"
    assert len({step.id for step in one.mitigations}) == len(one.mitigations)
    assert all(url.startswith("https://") for url in one.references)


SIX = ["Symptom", "Confirm", "Tell apart", "Mitigate", "Undo when", "Prevent"]


@every("one")
def test_each_has_a_section_in_its_playbook_with_all_six_parts(one: Signature) -> None:
    section = playbooks.section(playbooks.read(one.playbook), one.id)
    assert re.findall(r"^### (.*)$", section, re.M) == SIX, f"{one.playbook}.md has none"
    assert "```console\n" in section


@every("one")
def test_the_playbook_says_how_to_undo_every_mitigation(one: Signature) -> None:
    section = playbooks.section(playbooks.read(one.playbook), one.id)
    for step in one.mitigations:
        assert section.count(f"**{step.id}**") == 2


@every("one")
def test_files_lie_in_the_folder_of_their_layer(one: Signature) -> None:
    assert Path(one.path).parent.name == one.layer
    assert Path(one.path).is_relative_to(HOME)


@every("one")
def test_the_sum_of_what_speaks_for_it_can_confirm_it(one: Signature) -> None:
    groups: dict[str, float] = {}
    for number, clue in enumerate(one.clues):
        key = clue.group or f"#{number}"
        groups[key] = max(groups.get(key, 0.0), clue.present, clue.absent)
    assert sum(groups.values()) >= (20 if one.names_cause else 10)


def test_every_fact_used_is_made_somewhere_or_is_a_known_gap() -> None:
    import fabwatch.signatures.analysis as analysis

    source = "\n".join(p.read_text() for p in Path(analysis.__path__[0]).glob("*.py"))
    used = {name for one in ALL for name in one.facts()}
    made = {n for n in used if f'"{n}"' in source or n.startswith("stack.in-")}
    made |= {shape.fact for shape in shapes.known().all}
    assert used - made <= NOT_MADE_YET
    assert used <= set(VOCABULARY)


def healthy() -> Facts:
    facts = Facts()
    for source in SOURCES:
        facts.look(source, EVERYONE)
    return facts


@pytest.mark.parametrize(
    "facts",
    [
        [],
        [fact("progress.advancing", ranks=[0, 1])],
        [fact("stack.in-dataloader", ranks=[0, 1]), fact("progress.advancing", ranks=[0, 1])],
        [fact("stack.in-collective", ranks=[0, 1]), fact("progress.advancing", ranks=[0, 1])],
        [fact("stack.in-compile", ranks=[0, 1, 2, 3]), fact("cpu.advancing", ranks=[0, 1, 2, 3])],
        [fact("stack.in-evaluation", ranks=[0]), fact("cpu.advancing", ranks=[0])],
        [fact("gpu.spinning", devices=["gpu0"]), fact("progress.advancing", ranks=[0])],
        [fact("collective.call-sites-differ", ranks=[0]), fact("progress.advancing", ranks=[0])],
    ],
)
def test_nothing_stands_on_facts_of_a_healthy_job(facts: list[object]) -> None:
    here = healthy()
    here.add(*facts)  # type: ignore[arg-type]
    assert [m.id for m in match(LIBRARY, here) if m.grade.stands] == []


def test_the_rank_that_reports_the_timeout_is_never_blamed() -> None:
    """Rank 0 prints it, rank 2 is stopped: whoever stands blames rank 2 alone."""
    here = healthy()
    here.add(
        fact("timeout.reported", ranks=[0], timeout_ms=600000),
        fact("exception.consequent", ranks=[0, 1]),
        fact("process.aborted", ranks=[0], first=False),
        fact("process.exited", ranks=[1], code=1, first=False),
        fact("process.stopped", ranks=[2], state="T"),
        fact("wait.root", ranks=[2], kind="process-stopped"),
        fact("wait.waiting", ranks=[0, 1]),
    )
    found = [m for m in match(LIBRARY, here) if m.grade.stands]
    assert [(m.id, m.where.ranks) for m in found] == [("process-stopped-sigstop", (2,))]


@pytest.mark.parametrize(
    ("cause", "effect"),
    [
        ("rank-killed", "stuck-in-collective-undecided"),
        ("rank-exception-peers-wait", "remote-peer-exited"),
        ("oom-kill-cgroup", "rank-killed"),
        ("oom-kill-cgroup", "dataloader-worker-killed"),
        ("oom-kill-cgroup", "remote-peer-exited"),
        ("gpu-xid48-dbe", "cuda-illegal-access"),
        ("nic-link-down", "network-black-hole"),
        ("gil-held-watchdog-stuck", "dataloader-stall"),
        ("dataloader-stall", "rank-host-stalled"),
        ("checkpoint-save-barrier-timeout", "slow-rank0-work"),
        ("uneven-data-end", "rank-left-the-loop"),
        ("torchrun-external-sigterm", "rank-killed"),
        ("store-port-in-use", "tcpstore-unreachable"),
    ],
)
def test_causes_rank_above_their_symptoms_and_special_forms_above_general_ones(
    cause: str, effect: str
) -> None:
    best = match(LIBRARY, Facts())
    low = next(m for m in best if m.id == effect)
    assert above(low, [cause], LIBRARY) == [cause]


def test_no_signature_is_a_cause_of_its_own_cause() -> None:
    for one in ALL:
        for name in one.explains:
            assert one.id not in LIBRARY.signatures[name].explains, f"{one.id} and {name}"
            assert one.id not in LIBRARY.ancestors(name), f"{one.id} is above its own effect {name}"


def test_matching_a_thousand_ranks_costs_little() -> None:
    """A count, not a clock: the blocks that the matcher weighs do not grow with the ranks."""
    from fabwatch.signatures import matching
    from fabwatch.signatures.places import Places

    ranks = range(1, 1000)
    here = healthy()
    here.add(
        *(fact("wait.root", ranks=[r], kind="host-stall") for r in ranks),
        *(fact("stack.in-dataloader", ranks=[r]) for r in ranks if r % 2),
        *(fact("stack.in-user-code", ranks=[r]) for r in ranks if not r % 3),
    )
    places = Places(here)
    for one in ALL:
        assert len(matching._blocks(one, places)) <= 8


def test_a_case_means_no_for_everything_that_it_does_not_name() -> None:
    case = ALL[0].cases[0]
    facts = facts_of(case)
    deniable = [n for n, entry in VOCABULARY.items() if entry.denied_by]
    named = {f.name for f in case.facts} | set(case.unknown)
    assert all(facts.known(n).value == "no" for n in deniable if n not in named)


def test_failures_are_located() -> None:
    import dataclasses

    one = LIBRARY.signatures["process-stopped-sigstop"]
    wrong = dataclasses.replace(one.cases[0], expect=Grade.RULED_OUT)
    broken = dataclasses.replace(one, cases=(wrong,))
    library = type(LIBRARY)({**LIBRARY.signatures, one.id: broken})
    (line,) = failures(library)
    assert line.startswith(f"{one.path}:{wrong.line}: {one.id}: ")
    assert "expected ruled-out, came out confirmed (26 decibans" in line
    assert list(failures(LIBRARY)) == []
