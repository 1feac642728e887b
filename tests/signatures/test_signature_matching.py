"""The matcher: thresholds, bindings, groups, caps, order; small made-up signatures."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from fabwatch.signatures.matching import Match, Point, above, grade_of, match
from fabwatch.signatures.model import Clue, Confusable, Grade, Library, Signature
from fabwatch.watchdog.evidence.facts import EVERYONE, Fact, Facts, Scalar, Where, fact
from fabwatch.watchdog.evidence.known import Known
from fabwatch.watchdog.evidence.vocabulary import SOURCES

YES, NO, UNKNOWN = Known.YES, Known.NO, Known.UNKNOWN
STOPPED, LAGS, EXITED, KILLED = (
    "process.stopped",
    "collective.lagging",
    "process.exited",
    "process.killed",
)


def clue(
    name: str,
    present: float = 0,
    absent: float = 0,
    *,
    bind: str = "",
    on: str = "",
    required: bool = False,
    group: str = "",
    **detail: str | tuple[str, ...],
) -> Clue:
    wanted = tuple(sorted((k, (v,) if isinstance(v, str) else tuple(v)) for k, v in detail.items()))
    return Clue(name, bind, on, required, present, absent, group, wanted, "because")


def signature(name: str, *clues: Clue, **more: object) -> Signature:
    base: dict[str, object] = {
        "id": name, "title": name, "layer": "host", "symptom": "hang", "summary": "s",
        "playbook": "p", "clues": tuple(clues),
    }  # fmt: skip
    return Signature(**(base | more))  # type: ignore[arg-type]


def library(*signatures: Signature) -> Library:
    return Library({one.id: one for one in signatures})


def seen(*facts: Fact, unknown: Sequence[str] = ()) -> Facts:
    """Facts of a job in which everything was looked at, but for ``unknown``."""
    out = Facts(list(facts), unknowable=set(unknown))
    for source in SOURCES:
        out.look(source, EVERYONE)
    return out


def only(found: list[Match], name: str = "a") -> Match:
    return next(one for one in found if one.id == name)


# ------------------------------------------------------------------ grades


@pytest.mark.parametrize(
    ("decibans", "grade"),
    [
        (20, Grade.CONFIRMED),
        (19.9, Grade.LIKELY),
        (10, Grade.LIKELY),
        (9.9, Grade.POSSIBLE),
        (0, Grade.POSSIBLE),
        (-9.9, Grade.POSSIBLE),
        (-10, Grade.RULED_OUT),
        (-30, Grade.RULED_OUT),
    ],
)
def test_thresholds_hold_exactly_at_their_borders(decibans: float, grade: Grade) -> None:
    assert grade_of(decibans, [YES]) is grade
    assert grade_of(decibans, []) is grade


def test_a_required_no_rules_out_whatever_else_speaks_for_it() -> None:
    assert grade_of(50, [YES, NO]) is Grade.RULED_OUT
    assert grade_of(50, [UNKNOWN, NO]) is Grade.RULED_OUT


def test_a_required_unknown_is_cannot_tell_unless_it_is_ruled_out_anyway() -> None:
    assert grade_of(50, [YES, UNKNOWN]) is Grade.CANNOT_TELL
    assert grade_of(-9, [UNKNOWN]) is Grade.CANNOT_TELL
    assert grade_of(-10, [UNKNOWN]) is Grade.RULED_OUT


def test_grades_are_ordered_and_only_the_first_two_stand() -> None:
    assert sorted(Grade, key=lambda g: g.order) == list(Grade)
    assert [g.stands for g in Grade] == [True, True, False, False, False]


# ------------------------------------------------------------------ points


def test_points_add_up_present_absent_and_nothing_for_unknown() -> None:
    one = signature(
        "a",
        clue(STOPPED, 12, required=True),
        clue(LAGS, 6, -3),
        clue(EXITED, 4, -5),
        clue(KILLED, 100, -100),
    )
    found = only(match(library(one), seen(fact(STOPPED), fact(LAGS), unknown=[KILLED])))
    assert found.decibans == 12 + 6 - 5
    assert found.grade is Grade.LIKELY
    worths = {p.clue.fact: (p.known, p.worth) for p in found.points}
    assert worths == {STOPPED: (YES, 12), LAGS: (YES, 6), EXITED: (NO, -5), KILLED: (UNKNOWN, 0)}


def test_nobody_looked_is_unknown_and_looking_without_finding_is_no() -> None:
    one = signature("a", clue(STOPPED, 20, required=True))
    assert only(match(library(one), Facts())).grade is Grade.CANNOT_TELL
    assert only(match(library(one), seen())).grade is Grade.RULED_OUT


def test_every_point_cites_the_facts_that_made_it() -> None:
    one = signature("a", clue(STOPPED, 20, required=True, bind="x"), clue(LAGS, 1, on="x"))
    facts = seen(
        fact(STOPPED, ranks=[1], cites=["p1:3", "p1:4"]),
        fact(STOPPED, ranks=[2], cites=["p2:3"]),
        fact(LAGS, ranks=[1, 2], cites=["d#1"]),
        fact(LAGS, ranks=[7], cites=["not this one"]),
    )
    found = only(match(library(one), facts))
    assert [p.cites for p in found.points] == [("p1:3", "p1:4", "p2:3"), ("d#1",)]


def test_of_a_group_only_the_strongest_counts_either_way() -> None:
    weak = clue(LAGS, 3, group="g")
    strong = clue(EXITED, 7, group="g")
    other = clue(KILLED, 2, group="h")
    one = signature("a", clue(STOPPED, 10, required=True), weak, strong, other)
    facts = [fact(STOPPED), fact(LAGS), fact(EXITED), fact(KILLED)]
    found = only(match(library(one), seen(*facts)))
    assert found.decibans == 10 + 7 + 2
    assert {p.clue.fact for p in found.points if not p.counted} == {LAGS}
    found = only(match(library(one), seen(*facts[:2], facts[3])))
    assert found.decibans == 10 + 3 + 2, "the strong one is not there"
    against = signature("a", clue(STOPPED, 10, required=True), weak, clue(EXITED, -8, group="g"))
    assert only(match(library(against), seen(*facts))).decibans == 2


def test_of_equals_in_a_group_one_counts_once() -> None:
    one = signature(
        "a",
        clue(STOPPED, 10, required=True, group="g"),
        clue(LAGS, 10, group="g"),
        clue(EXITED, -10, group="g"),
    )
    facts = seen(fact(STOPPED), fact(LAGS), fact(EXITED))
    found = only(match(library(one), facts))
    assert found.decibans == 10
    assert [p.counted for p in found.points] == [True, False, False]


@pytest.mark.parametrize(
    ("facts", "unknown", "grade"),
    [
        ([STOPPED], [], Grade.LIKELY),
        ([LAGS], [], Grade.LIKELY),
        ([LAGS], [STOPPED], Grade.LIKELY),
        ([], [], Grade.RULED_OUT),
        ([], [STOPPED], Grade.CANNOT_TELL),
    ],
)
def test_required_clues_of_one_group_are_alternatives(
    facts: list[str], unknown: list[str], grade: Grade
) -> None:
    one = signature(
        "a",
        clue(STOPPED, 10, required=True, group="g"),
        clue(LAGS, 10, required=True, group="g"),
    )
    found = only(match(library(one), seen(*(fact(f) for f in facts), unknown=unknown)))
    assert found.grade is grade


# ------------------------------------------------------------------ details


@pytest.mark.parametrize(
    ("detail", "known"),
    [
        ({"scope": "cgroup"}, YES),
        ({"scope": "system"}, YES),
        ({"scope": "global"}, NO),
        ({}, UNKNOWN),
        ({"scope": None}, UNKNOWN),
    ],
)
def test_a_detail_must_have_one_of_the_wanted_values(
    detail: dict[str, Scalar], known: Known
) -> None:
    one = signature("a", clue(STOPPED, 10, required=True, scope=("cgroup", "system")))
    found = only(match(library(one), seen(fact(STOPPED, **detail))))
    assert found.points[0].known is known


def test_details_compare_as_they_are_written() -> None:
    one = signature("a", clue(STOPPED, 1, required=True, first="true", code="9", share="2.5"))
    yes = seen(fact(STOPPED, first=True, code=9, share=2.5))
    assert only(match(library(one), yes)).points[0].known is YES
    no = seen(fact(STOPPED, first=False, code=9, share=2.5))
    assert only(match(library(one), no)).points[0].known is NO


def test_all_wanted_details_must_fit_and_one_misfit_decides() -> None:
    one = signature("a", clue(STOPPED, 1, required=True, a="1", b="2"))
    assert only(match(library(one), seen(fact(STOPPED, a=1, b=3)))).points[0].known is NO
    assert only(match(library(one), seen(fact(STOPPED, b=3)))).points[0].known is NO
    assert only(match(library(one), seen(fact(STOPPED, a=1)))).points[0].known is UNKNOWN


def test_the_detail_ranks_wants_a_fact_about_exactly_those() -> None:
    one = signature("a", clue(STOPPED, 10, required=True, bind="x", ranks="0"))
    assert only(match(library(one), seen(fact(STOPPED, ranks=[0])))).where.ranks == (0,)
    found = only(match(library(one), seen(fact(STOPPED, ranks=[0, 1]))))
    assert found.grade is Grade.RULED_OUT


# ------------------------------------------------------------------ bindings

BOUND = signature(
    "a",
    clue(STOPPED, 10, required=True, bind="x"),
    clue(LAGS, 10, -8, on="x"),
)


def test_on_wants_the_fact_at_the_same_ranks() -> None:
    here = only(match(library(BOUND), seen(fact(STOPPED, ranks=[3]), fact(LAGS, ranks=[3]))))
    assert (here.grade, here.where.ranks) == (Grade.CONFIRMED, (3,))
    there = only(match(library(BOUND), seen(fact(STOPPED, ranks=[3]), fact(LAGS, ranks=[4]))))
    assert (there.decibans, there.where.ranks) == (2, (3,))


def test_only_the_ranks_at_which_it_all_holds_are_blamed() -> None:
    facts = seen(fact(STOPPED, ranks=[1, 2, 3]), fact(LAGS, ranks=[2, 9]))
    found = only(match(library(BOUND), facts))
    assert (found.grade, found.where.ranks) == (Grade.CONFIRMED, (2,))


def test_ranks_that_stand_as_well_are_blamed_together() -> None:
    facts = seen(fact(STOPPED, ranks=[1]), fact(STOPPED, ranks=[4]), fact(LAGS, ranks=[1, 4]))
    assert only(match(library(BOUND), facts)).where.ranks == (1, 4)
    likely = signature("a", clue(STOPPED, 12, required=True, bind="x"), clue(LAGS, 8, on="x"))
    facts = seen(fact(STOPPED, ranks=[1, 4]), fact(LAGS, ranks=[1]))
    found = only(match(library(likely), facts))
    assert (found.grade, found.where.ranks) == (Grade.CONFIRMED, (1, 4))


def test_unknown_at_some_ranks_is_unknown_there_and_no_where_looked() -> None:
    facts = Facts([fact(STOPPED, ranks=[1, 2])], ranks={1, 2})
    facts.look("flight-recorder", 2)
    facts.look("process", 1, 2)
    found = only(match(library(BOUND), facts))
    assert (found.decibans, found.where.ranks) == (10, (1,)), "rank 2 was looked at: NO there"


def test_places_of_hosts_reach_the_ranks_on_them() -> None:
    facts = seen(fact(STOPPED, ranks=[0, 1]), fact(LAGS, hosts=["h1"]))
    found = only(match(library(BOUND), facts, {0: "h0", 1: "h1"}))
    assert (found.grade, found.where.ranks) == (Grade.CONFIRMED, (1,))
    found = only(match(library(BOUND), facts, {}))
    assert found.decibans == 2, "without a map nothing ties the host to a rank"


def test_a_binding_of_hosts_accepts_facts_of_ranks_on_them() -> None:
    facts = seen(fact(STOPPED, hosts=["h1"], links=["h1/eth0"]), fact(LAGS, ranks=[5]))
    found = only(match(library(BOUND), facts, {5: "h1"}))
    assert found.grade is Grade.CONFIRMED
    assert found.where == Where((), ("h1",), (), ("h1/eth0",))
    assert only(match(library(BOUND), facts, {5: "h2"})).decibans == 2


@pytest.mark.parametrize("kind", ["devices", "links"])
def test_a_binding_of_devices_or_links_is_compared_as_such(kind: str) -> None:
    same = seen(fact(STOPPED, **{kind: ["d1"]}), fact(LAGS, **{kind: ["d1"]}))
    assert only(match(library(BOUND), same)).grade is Grade.CONFIRMED
    other = seen(fact(STOPPED, **{kind: ["d1"]}), fact(LAGS, **{kind: ["d2"]}))
    assert only(match(library(BOUND), other)).decibans == 2


def test_a_fact_without_a_place_neither_holds_nor_fails_at_a_place() -> None:
    found = only(match(library(BOUND), seen(fact(STOPPED, ranks=[3]), fact(LAGS))))
    assert found.decibans == 10 and found.points[1].known is UNKNOWN


def test_a_binding_without_a_place_is_looked_for_anywhere() -> None:
    found = only(match(library(BOUND), seen(fact(STOPPED), fact(LAGS, ranks=[4]))))
    assert found.grade is Grade.CONFIRMED and not found.where


def test_a_second_binding_is_of_its_own_and_is_not_blamed() -> None:
    one = signature(
        "a",
        clue(STOPPED, 10, required=True, bind="x"),
        clue(LAGS, 2, bind="waits"),
        clue(EXITED, 4, -6, on="waits"),
    )
    facts = seen(fact(STOPPED, ranks=[1]), fact(LAGS, ranks=[5]), fact(EXITED, ranks=[5]))
    found = only(match(library(one), facts))
    # `waits` is looked for among the places of its own clue, job-wide.
    assert (found.decibans, found.where.ranks) == (16, (1,))
    facts = seen(fact(STOPPED, ranks=[1]), fact(LAGS, ranks=[5, 6]), fact(EXITED, ranks=[5]))
    assert only(match(library(one), facts)).decibans == 6


# ------------------------------------------------------------------ look-alikes


def pair(tell: tuple[str, ...] = (EXITED,), **more: object) -> Library:
    return library(
        signature(
            "a",
            clue(STOPPED, 20, required=True, bind="x"),
            confusable_with=(Confusable("b", "alike", tell),),
        ),
        signature(
            "b",
            clue(LAGS, 5, required=True),
            confusable_with=(Confusable("a", "alike", tell),),
            **more,
        ),
    )


def test_a_look_alike_that_is_not_told_apart_caps_the_grade_and_its_fact_heads_asks() -> None:
    facts = seen(fact(STOPPED, ranks=[1]), fact(LAGS, ranks=[1]), unknown=[EXITED, KILLED])
    found = only(match(pair(), facts))
    assert (found.grade, found.untold, found.asks[0]) == (Grade.POSSIBLE, ("b",), EXITED)
    assert found.decibans == 20, "the points stay what they are"


@pytest.mark.parametrize("facts", [[fact(EXITED, ranks=[1])], []])
def test_knowing_the_telling_fact_either_way_lifts_the_cap(facts: list[Fact]) -> None:
    found = only(match(pair(), seen(fact(STOPPED, ranks=[1]), fact(LAGS), *facts)))
    assert (found.grade, found.untold) == (Grade.CONFIRMED, ())


def test_a_look_alike_that_is_ruled_out_needs_no_telling() -> None:
    facts = seen(fact(STOPPED, ranks=[1]), unknown=[EXITED])
    assert only(match(pair(), facts)).grade is Grade.CONFIRMED


def test_a_look_alike_about_which_nothing_is_known_still_caps() -> None:
    facts = seen(fact(STOPPED, ranks=[1]), unknown=[EXITED, LAGS])
    assert only(match(pair(), facts)).grade is Grade.POSSIBLE


def test_any_one_of_several_telling_facts_is_enough() -> None:
    facts = seen(fact(STOPPED, ranks=[1]), fact(LAGS), unknown=[EXITED])
    assert only(match(pair((EXITED, KILLED)), facts)).grade is Grade.CONFIRMED
    facts = seen(fact(STOPPED, ranks=[1]), fact(LAGS), unknown=[EXITED, KILLED])
    assert only(match(pair((EXITED, KILLED)), facts)).asks[:2] == (EXITED, KILLED)


def test_the_telling_fact_must_be_known_at_the_blamed_ranks() -> None:
    facts = Facts([fact(STOPPED, ranks=[1, 2]), fact(LAGS)], ranks={1, 2})
    facts.look("process", 1, 2)
    facts.look("exit", 1)
    found = only(match(pair(), facts))
    assert (found.grade, found.where.ranks) == (Grade.CONFIRMED, (1,))


def test_a_general_form_is_not_capped_by_its_specific_one() -> None:
    facts = seen(fact(STOPPED, ranks=[1]), fact(LAGS), unknown=[EXITED])
    assert only(match(pair(parents=("a",)), facts)).grade is Grade.CONFIRMED


def test_a_look_alike_that_the_library_does_not_have_is_no_obstacle() -> None:
    lib = library(pair().signatures["a"])
    facts = seen(fact(STOPPED, ranks=[1]), unknown=[EXITED])
    assert only(match(lib, facts)).grade is Grade.CONFIRMED


def test_a_signature_that_names_no_cause_is_never_more_than_possible() -> None:
    one = signature("a", clue(STOPPED, 40, required=True), names_cause=False)
    found = only(match(library(one), seen(fact(STOPPED))))
    assert (found.grade, found.decibans, found.untold) == (Grade.POSSIBLE, 40, ())


# ------------------------------------------------------------------ asks, versions, order


def test_asks_name_unknown_facts_required_first_then_by_weight() -> None:
    one = signature(
        "a",
        clue("gil.held", 2, -15),
        clue(LAGS, 4),
        clue(EXITED, 9),
        clue(STOPPED, 1, required=True),
        clue(KILLED, 30),
    )
    found = only(match(library(one), seen(unknown=["gil.held", LAGS, EXITED, STOPPED])))
    assert found.asks == (STOPPED, "gil.held", EXITED, LAGS)


def test_a_signature_of_another_version_is_ruled_out() -> None:
    one = signature("a", clue(STOPPED, 20, required=True), applies_to=(("nccl", "<2.29.3"),))
    facts = seen(fact(STOPPED))
    assert only(match(library(one), facts, {}, {"nccl": "2.30.0"})).grade is Grade.RULED_OUT
    assert only(match(library(one), facts, {}, {"nccl": "2.28.0"})).grade is Grade.CONFIRMED
    assert only(match(library(one), facts, {}, {})).grade is Grade.CONFIRMED


def ids(found: list[Match]) -> list[str]:
    return [one.id for one in found]


def test_the_better_grade_comes_first_then_the_points_then_the_name() -> None:
    lib = library(
        signature("c", clue(STOPPED, 15, required=True)),
        signature("b", clue(STOPPED, 15, required=True)),
        signature("d", clue(STOPPED, 25, required=True)),
        signature("a", clue(LAGS, 50, required=True)),
        signature("e", clue(STOPPED, 5, required=True)),
    )
    assert ids(match(lib, seen(fact(STOPPED)))) == ["d", "b", "c", "e", "a"]


def test_a_cause_comes_above_what_it_explains_even_with_fewer_points() -> None:
    lib = library(
        signature("effect", clue(LAGS, 60, required=True)),
        signature("cause", clue(STOPPED, 12, required=True), explains=("effect",)),
        signature("other", clue(STOPPED, 30, required=True)),
    )
    found = match(lib, seen(fact(STOPPED), fact(LAGS)))
    assert ids(found) == ["other", "cause", "effect"]


def test_a_cause_that_does_not_stand_itself_stays_below() -> None:
    lib = library(
        signature("effect", clue(LAGS, 60, required=True)),
        signature("cause", clue(STOPPED, 9, required=True), explains=("effect",)),
    )
    assert ids(match(lib, seen(fact(STOPPED), fact(LAGS)))) == ["effect", "cause"]


def test_a_specific_form_comes_above_its_general_one_over_several_steps() -> None:
    lib = library(
        signature("general", clue(LAGS, 60, required=True)),
        signature("middle", clue(EXITED, 60, required=True), parents=("general",)),
        signature("special", clue(STOPPED, 12, required=True), parents=("middle",)),
    )
    found = match(lib, seen(fact(STOPPED), fact(LAGS), fact(EXITED)))
    assert ids(found) == ["special", "middle", "general"]
    found = match(lib, seen(fact(STOPPED), fact(LAGS)))
    assert ids(found)[:2] == ["special", "general"], "the middle one has no evidence"


def test_two_that_explain_each_other_do_not_hang_the_order() -> None:
    lib = library(
        signature("a", clue(STOPPED, 20, required=True), explains=("b",)),
        signature("b", clue(STOPPED, 30, required=True), explains=("a",)),
    )
    assert ids(match(lib, seen(fact(STOPPED)))) == ["b", "a"]


# ------------------------------------------------------------------ what mutants found untested


def test_a_signature_of_another_version_blames_nobody_and_asks_nothing() -> None:
    one = signature(
        "a",
        clue(STOPPED, 20, required=True, bind="x"),
        clue(KILLED, 5),
        applies_to=(("nccl", "<2"),),
    )
    facts = seen(fact(STOPPED, ranks=[1]), unknown=[KILLED])
    found = only(match(library(one), facts, {}, {"nccl": "2.30"}))
    assert (found.grade, found.where, found.asks) == (Grade.RULED_OUT, Where(), ())


def test_the_block_with_more_points_is_the_one_that_is_told() -> None:
    weaker = signature("a", clue(STOPPED, 22, required=True, bind="x"), clue(LAGS, 8, on="x"))
    facts = seen(fact(STOPPED, ranks=[1, 4]), fact(LAGS, ranks=[4]))
    found = only(match(library(weaker), facts))
    assert (found.decibans, found.where.ranks) == (30, (1, 4))


def test_citations_are_of_the_blamed_places_and_of_what_was_seen_alone() -> None:
    facts = seen(
        fact(STOPPED, ranks=[1], cites=["mine"], devices=["d1"]),
        fact(STOPPED, ranks=[5], cites=["other"], devices=["d5"]),
        fact(LAGS, ranks=[1], cites=["lag"]),
        fact(EXITED, cites=["not this"], code=1),
    )
    one = signature(
        "a",
        clue(STOPPED, 12, required=True, bind="x"),
        clue(LAGS, 10, -30, on="x"),
        clue(EXITED, 3, code="2"),
    )
    found = only(match(library(one), facts))
    assert [p.cites for p in found.points] == [("mine",), ("lag",), ()]
    assert (found.where.ranks, found.where.devices) == ((1,), ("d1",))


def test_several_required_clues_count_each_with_or_without_a_group() -> None:
    one = signature(
        "a",
        clue(LAGS, 5),
        clue(STOPPED, 10, required=True),
        clue(KILLED, 10, required=True),
        clue(EXITED, 1, required=True, group="g"),
    )
    assert only(match(library(one), seen(fact(STOPPED), fact(EXITED)))).grade is Grade.RULED_OUT
    assert only(match(library(one), seen(fact(STOPPED), fact(KILLED)))).grade is Grade.RULED_OUT


def test_every_look_alike_is_looked_at_and_all_telling_facts_are_asked() -> None:
    alike = [clue(STOPPED, 12, required=True)]
    lib = library(
        signature(
            "a",
            clue(STOPPED, 20, required=True),
            confusable_with=(
                Confusable("gone", "", (LAGS,)),
                Confusable("special", "", (LAGS,)),
                Confusable("b", "", (EXITED,)),
                Confusable("c", "", (KILLED,)),
            ),
        ),
        signature("special", *alike, parents=("a",)),
        signature("b", *alike),
        signature("c", *alike),
    )
    found = only(match(lib, seen(fact(STOPPED), unknown=[EXITED, KILLED, LAGS])))
    assert (found.untold, found.asks[:2]) == (("b", "c"), (EXITED, KILLED))


def test_what_a_match_or_a_point_is_not_given_is_empty() -> None:
    one = signature("a", clue(STOPPED, 5))
    assert Point(one.clues[0], YES, 5.0) == Point(one.clues[0], YES, 5.0, (), True)
    assert Match(one, Grade.POSSIBLE, 0.0) == Match(one, Grade.POSSIBLE, 0.0, Where(), (), (), ())


def test_clues_without_a_name_are_each_looked_for_anywhere() -> None:
    facts = seen(fact(STOPPED, ranks=[1]), fact(KILLED, ranks=[2]))
    found = only(match(library(signature("a", clue(STOPPED, 5), clue(KILLED, 5, -5))), facts))
    assert [point.known for point in found.points] == [YES, YES]
    assert found.decibans == 10


def test_a_signature_of_another_version_cites_only_where_it_fits_best() -> None:
    facts = seen(
        fact(STOPPED, ranks=[1], cites=["a:1"]),
        fact(STOPPED, ranks=[2], cites=["a:2"]),
        fact(LAGS, ranks=[1], cites=["a:3"]),
    )
    one = signature(
        "a", clue(STOPPED, 5, bind="r"), clue(LAGS, 5, on="r"), applies_to=(("nccl", "<2.20"),)
    )
    found = only(match(library(one), facts, versions={"nccl": "2.28.3"}))
    assert found.grade is Grade.RULED_OUT
    assert [point.cites for point in found.points] == [("a:1",), ("a:3",)]


def test_a_link_that_is_named_alone_is_blamed_beside_the_hosts_that_others_name() -> None:
    facts = seen(fact(STOPPED, hosts=["h1"]), fact(STOPPED, links=["l1"]))
    one = signature("a", clue(STOPPED, 10, required=True, bind="x"))
    assert only(match(library(one), facts)).where == Where(hosts=("h1",), links=("l1",))


def test_what_was_not_seen_cites_nothing_though_it_was_seen_at_another_place() -> None:
    facts = seen(
        fact(STOPPED, ranks=[1], cites=["a:1"]),
        fact(STOPPED, ranks=[2], cites=["a:2"]),
        fact(KILLED, ranks=[2], cites=["a:3"]),
    )
    one = signature("a", clue(STOPPED, 30, required=True, bind="r"), clue(KILLED, -2, on="r"))
    found = only(match(library(one), facts))
    assert found.where == Where(ranks=(1, 2))
    assert sorted(found.points[0].cites) == ["a:1", "a:2"]
    assert (found.points[1].known, found.points[1].cites) == (NO, ())


def test_above_passes_over_itself_and_what_the_library_does_not_have() -> None:
    both = library(signature("a", explains=("a",)), signature("b", explains=("a",)))
    one = only(match(both, seen()))
    assert above(one, ["gone", "a", "b"], both) == ["b"]


def test_a_signature_that_binds_nothing_blames_no_place() -> None:
    facts = seen(fact(STOPPED, ranks=[1]))
    assert only(match(library(signature("a", clue(STOPPED, 20))), facts)).where == Where()


def test_what_is_ruled_out_or_cannot_be_told_is_no_more_for_a_look_alike() -> None:
    gone = seen(fact(LAGS, ranks=[1]), unknown=[EXITED])
    assert only(match(pair(), gone)).grade is Grade.RULED_OUT
    open_ = seen(fact(LAGS, ranks=[1]), unknown=[EXITED, STOPPED])
    assert only(match(pair(), open_)).grade is Grade.CANNOT_TELL


def test_versions_and_hosts_need_not_be_given() -> None:
    one = signature("a", clue(STOPPED, 20), applies_to=(("nccl", "<2"),))
    assert only(match(library(one), seen(fact(STOPPED, hosts=["h1"])))).grade.stands


def test_where_ranks_are_named_a_host_that_has_none_of_them_is_not_blamed() -> None:
    facts = seen(fact(STOPPED, ranks=[1]), fact(STOPPED, hosts=["h9"]))
    one = signature("a", clue(STOPPED, 10, required=True, bind="x"))
    assert only(match(library(one), facts, {1: "h1"})).where.ranks == (1,)
    assert only(match(library(one), facts, {1: "h1"})).where.hosts == ()
