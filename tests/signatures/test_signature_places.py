"""Where facts hold: bounds of details, hosts and their ranks, what may be denied, what was told."""

from __future__ import annotations

import pytest

from fabwatch.signatures.model import Clue
from fabwatch.signatures.places import Block, Places
from fabwatch.signatures.versions import applies, bad_range
from fabwatch.watchdog.evidence.facts import EVERYONE, Facts, fact
from fabwatch.watchdog.evidence.known import Known
from fabwatch.watchdog.evidence.vocabulary import VOCABULARY

LAGS, STOPPED = "collective.lagging", "process.stopped"
HOSTS = {0: "a", 1: "a", 2: "b"}


def places(*facts, looked=(), **more):
    out = Facts(list(facts), **more)
    for source, ranks in looked:
        out.look(source, *ranks)
    return Places(out, HOSTS)


@pytest.mark.parametrize(
    ("wanted", "yes", "no"),
    [
        (">3", [4, 3.5], [3, 2]),
        (">=3", [3, 4], [2, 2.9]),
        ("<3", [2, -1], [3, 4]),
        ("<=3", [3, 2], [4, 3.1]),
        (">= 2.5", [2.5, "7"], [2.4, "many", True]),
        ("<-1", [-2], [-1, 0]),
        ("3", [3], [4]),
    ],
)
def test_a_bound_is_kept_or_not(wanted, yes, no):
    clue = Clue(LAGS, detail=(("lag", (wanted,)),))
    for value in yes:
        assert places(fact(LAGS, lag=value)).anywhere(clue) is Known.YES, value
    for value in no:
        assert places(fact(LAGS, lag=value)).anywhere(clue) is Known.NO, value


def test_one_of_several_bounds_is_enough_and_several_ranks_are_written_with_spaces():
    clue = Clue(LAGS, detail=(("lag", ("<0", ">5")),))
    assert places(fact(LAGS, lag=6)).anywhere(clue) is Known.YES
    both = Clue(LAGS, detail=(("ranks", ("0 2",)), ("lag", ("1",))))
    assert places(fact(LAGS, ranks=[0, 2], lag=1)).anywhere(both) is Known.YES
    assert places(fact(LAGS, ranks=[0, 2], lag=2)).anywhere(both) is Known.NO
    said = Clue(LAGS, detail=(("lag", ("Down",)),))
    assert places(fact(LAGS, lag="Down")).anywhere(said) is Known.YES, "text keeps its case"


def test_a_fact_that_nobody_can_know_is_unknown_and_a_denied_one_is_no():
    assert places(unknowable={LAGS}).anywhere(Clue(LAGS)) is Known.UNKNOWN
    looked = [("flight-recorder", (EVERYONE,))]
    assert places(unknowable={LAGS}, looked=looked).anywhere(Clue(LAGS)) is Known.UNKNOWN
    block = Block("ranks", frozenset({0, 1}))
    assert places(denied={LAGS}).at(block, Clue(LAGS)) is Known.NO


def test_told_is_yes_or_no_at_every_place_or_anywhere():
    block = Block("ranks", frozenset({0, 1}))
    assert places(looked=[("process", (0, 1))]).told(STOPPED, block)
    assert not places(looked=[("process", (0,))]).told(STOPPED, block)
    assert places(fact(STOPPED)).told(STOPPED, None)
    assert not places().told(STOPPED, None)


def test_facts_of_hosts_reach_their_ranks_and_no_others():
    by_host = fact(STOPPED, hosts=["a"])
    found = places(fact(STOPPED, ranks=[2]), by_host)
    assert found.whole([fact(STOPPED, ranks=[2]), by_host]) == Block("ranks", frozenset({0, 1, 2}))
    assert found.whole([fact(STOPPED, ranks=[2], hosts=["a"])]) == Block("ranks", frozenset({2}))
    assert found.whole([by_host]) == Block("hosts", frozenset({"a"}))
    ranks = Block("ranks", frozenset({0, 1, 2}))
    assert places(by_host).split(ranks, Clue(STOPPED))[0] == (
        Known.YES, Block("ranks", frozenset({0, 1})),
    )  # fmt: skip
    exact = places(fact(STOPPED, ranks=[0], hosts=["a"]))
    assert exact.split(ranks, Clue(STOPPED))[0] == (Known.YES, Block("ranks", frozenset({0})))
    hosts = Block("hosts", frozenset({"a", "b"}))
    of_rank = places(fact(STOPPED, ranks=[2, 9]))
    assert of_rank.split(hosts, Clue(STOPPED))[0] == (Known.YES, Block("hosts", frozenset({"b"})))


def test_a_host_is_denied_when_a_rank_on_it_was_read_and_a_link_never():
    hosts = Block("hosts", frozenset({"a", "b"}))
    found = places(looked=[("process", (2, 9))])
    assert found.split(hosts, Clue(STOPPED)) == [
        (Known.NO, Block("hosts", frozenset({"b"}))),
        (Known.UNKNOWN, Block("hosts", frozenset({"a"}))),
    ]
    links = Block("links", frozenset({"x"}))
    assert found.split(links, Clue(STOPPED)) == [(Known.UNKNOWN, links)]


def test_versions_that_are_no_numbers_and_ranges_that_are_none():
    assert applies((("nccl", ">=2.27"),), {"nccl": "unknown"}) is False
    assert applies((("nccl", "nonsense"),), {"nccl": "2.27"}) is False
    assert applies((("nccl", "==0"),), {"nccl": "0.0"}) is True
    assert applies((("nccl", ">=2.27"),), {}) is None
    assert bad_range("nccl", "2.27") == (
        "nccl: '2.27' is no version range such as '>=2.27,<2.29.3'"
    )


def test_without_hosts_no_rank_is_known_to_live_anywhere():
    facts = [fact(LAGS, ranks=[1]), fact(LAGS, hosts=["a"])]
    assert Places(Facts(facts)).whole(facts) == Block("ranks", frozenset({1}))


def test_another_value_denies_nothing_where_the_fact_cannot_be_known():
    here = places(fact(LAGS, lag=1), unknowable={LAGS})
    assert here.anywhere(Clue(LAGS, detail=(("lag", ("3",)),))) is Known.UNKNOWN
    assert here.anywhere(Clue(LAGS, detail=(("lag", ("1",)),))) is Known.YES


def test_a_source_read_on_a_host_denies_nothing_of_a_link_with_the_same_name():
    source = VOCABULARY[LAGS].denied_by[0]
    here = places(looked=[(source, [0])])
    assert here.at(Block("links", frozenset({"a"})), Clue(LAGS)) is Known.UNKNOWN
    assert here.at(Block("hosts", frozenset({"a"})), Clue(LAGS)) is Known.NO


def test_where_adds_what_every_fact_says_of_other_kinds_of_place():
    facts = [fact(LAGS, ranks=[1], devices=["d1"]), fact(LAGS, ranks=[1], devices=["d2"])]
    where = places(*facts).where(Block("ranks", frozenset({1})), facts)
    assert (where.ranks, where.devices) == ((1,), ("d1", "d2"))


def test_hosts_that_a_fact_names_are_not_replaced_by_those_of_its_ranks():
    named = Clue(LAGS)
    here = places(fact(LAGS, hosts=["b"], ranks=[0]), fact(LAGS, ranks=[0], links=["l1"]))
    assert here.cited(named, Block("hosts", frozenset({"b"})))
    only = places(fact(LAGS, hosts=["b"], ranks=[0]))
    assert only.cited(named, Block("hosts", frozenset({"a"}))) == []
    assert places(fact(LAGS, ranks=[0])).cited(named, Block("links", frozenset({"a"}))) == []
