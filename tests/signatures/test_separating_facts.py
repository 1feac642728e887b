"""Which one or two facts would tell the best candidates apart."""

from __future__ import annotations

import pytest

from fabwatch.signatures.matching import match
from fabwatch.signatures.model import Clue, Confusable, Library, Signature
from fabwatch.signatures.separating import Separator, separators
from fabwatch.watchdog.evidence.facts import EVERYONE, Fact, Facts, fact
from fabwatch.watchdog.evidence.vocabulary import SOURCES

STOPPED, LAGS, EXITED, HELD = (
    "process.stopped", "collective.lagging", "process.exited", "gil.held",
)  # fmt: skip


def one(name: str, *clues: Clue, **more: object) -> Signature:
    return Signature(name, name, "host", "hang", "s", "p", clues, **more)  # type: ignore[arg-type]


def lag(weight: float) -> Clue:
    return Clue(LAGS, name="x", required=True, present=weight)


def on(name: str, present: float, absent: float = 0.0, required: bool = False) -> Clue:
    return Clue(name, on="x", present=present, absent=absent, required=required)


def facts(*seen: Fact, looked: tuple[str, ...] = ("flight-recorder",)) -> Facts:
    out = Facts(list(seen), ranks={1, 2})
    for source in looked:
        out.look(source, EVERYONE)
    return out


def found(*signatures: Signature, seen: Facts | None = None) -> list[Separator]:
    library = Library({s.id: s for s in signatures})
    here = seen or facts(fact(LAGS, ranks=[1]))
    return separators(match(library, here), here, library)


def test_the_fact_that_moves_the_two_furthest_apart_comes_first_and_says_what_each_answer_means():
    a = one("a", lag(8), on(STOPPED, 12, -8), on(EXITED, 4, -4))
    b = one("b", lag(7), on(HELD, 10), on(EXITED, 4, -4))
    first, second = found(a, b)
    assert (first.fact, first.yes, first.no, first.worth) == (STOPPED, "a", "b", 20)
    assert (second.fact, second.yes, second.no, second.worth) == (HELD, "b", "", 10)
    assert first.text.startswith("process.stopped (") and "/proc/PID/status" in first.text
    assert "of rank 1" in first.text
    assert str(first).endswith("; yes speaks for a, no speaks for b")
    assert str(second).endswith("; yes speaks for b")


def test_a_fact_that_both_weigh_alike_separates_nothing():
    a = one("a", lag(8), on(EXITED, 14, -14))
    b = one("b", lag(7), on(EXITED, 14, -14))
    assert found(a, b) == []


def test_a_fact_declared_to_tell_the_two_apart_comes_before_heavier_ones():
    a = one("a", lag(12), on(STOPPED, 12), confusable_with=(Confusable("b", "", (HELD,)),))
    b = one("b", lag(12), on(HELD, 6), confusable_with=(Confusable("a", "", (HELD,)),))
    assert [s.fact for s in found(a, b)] == [HELD, STOPPED]


def test_a_required_fact_decides_when_it_is_not_there():
    a = one("a", lag(8))
    b = one("b", lag(7), on(STOPPED, 1, required=True))
    (only,) = found(a, b)
    assert (only.fact, only.yes, only.no, only.worth) == (STOPPED, "b", "a", 21)


@pytest.mark.parametrize("relation", ["explains", "explained", "parent", "child"])
def test_a_consequence_or_a_general_form_is_no_rival(relation):
    more = {
        "explains": ({"explains": ("b",)}, {}),
        "explained": ({}, {"explains": ("a",)}),
        "parent": ({"parents": ("b",)}, {}),
        "child": ({}, {"parents": ("a",)}),
    }[relation]
    a = one("a", lag(8), on(STOPPED, 12), **more[0])
    b = one("b", lag(7), **more[1])
    assert found(a, b) == []
    assert [s.fact for s in found(a, b, one("c", lag(1)))] == [STOPPED], "the next one is"


def test_what_has_been_read_is_not_asked_for_again():
    a, b = one("a", lag(8), on(STOPPED, 12, -8)), one("b", lag(7))
    assert found(a, b, seen=facts(fact(LAGS, ranks=[1]), looked=tuple(SOURCES))) == []


def test_at_most_two_are_named_and_little_ones_not_at_all():
    a = one("a", lag(8), on(STOPPED, 12), on(EXITED, 9), on(HELD, 8))
    assert [s.fact for s in found(a, one("b", lag(7)))] == [STOPPED, EXITED]
    assert found(one("a", lag(8), on(STOPPED, 5)), one("b", lag(7))) == []
    assert [s.fact for s in found(one("a", lag(8), on(STOPPED, 6)), one("b", lag(7)))] == [STOPPED]


def test_without_two_candidates_there_is_nothing_to_separate():
    library = Library({})
    assert separators([], facts(), library) == []
    assert found(one("a", lag(8), on(STOPPED, 12))) == []


def test_a_verdict_that_cannot_tell_asks_for_the_separating_fact_first():
    from fabwatch.signatures.analysis.model import Analysis, HangGraph
    from fabwatch.signatures.conclude import conclude

    a = one("a", lag(8), on(STOPPED, 12, -8))
    b = one("b", lag(7), on(HELD, 9))
    here = facts(fact(LAGS, ranks=[1]), fact("wait.root", ranks=[1], kind="host-stall"))
    library = Library({s.id: s for s in (a, b)})
    verdict = conclude(Analysis(facts=here, hang=HangGraph(waiting=(2,))), library)
    assert verdict.outcome == "cannot-tell"
    assert verdict.asks[0].startswith(f"{STOPPED} (")
    assert verdict.asks[0].endswith("; yes speaks for a, no speaks for b")
    assert sum(text.startswith(f"{STOPPED} (") for text in verdict.asks) == 1, "said once"
