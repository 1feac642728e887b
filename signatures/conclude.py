"""From an analysis and a library to a verdict: match, decide the outcome, name who and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fabwatch.signatures.analysis.model import Analysis, Root
from fabwatch.signatures.asking import ask
from fabwatch.signatures.blame import causes, culprits_of, fabric_of
from fabwatch.signatures.matching import Match, match
from fabwatch.signatures.model import Grade, Library
from fabwatch.signatures.outcome import outcome_of, symptom_of
from fabwatch.signatures.separating import separators
from fabwatch.signatures.situation import Situation
from fabwatch.signatures.verdict import (
    Advice,
    Candidate,
    Culprits,
    Hang,
    HangRoot,
    LedgerCounts,
    Outcome,
    Reason,
    Timing,
    Verdict,
)
from fabwatch.watchdog.evidence.facts import Facts, Where
from fabwatch.watchdog.evidence.known import Known
from fabwatch.watchdog.evidence.ledger import Ledger
from fabwatch.watchdog.evidence.observations import Stall

MOST_ASKS = 6
"""How many open questions a verdict prints; more would not be read."""


def conclude(
    analysis: Analysis,
    library: Library,
    *,
    stall: Stall | None = None,
    versions: Mapping[str, str] | None = None,
    ledger: Ledger | None = None,
    notes: Sequence[str] = (),
    ranks: Sequence[tuple[int, str, int]] = (),
    timing: Timing | None = None,
    recorded: frozenset[int] = frozenset(),
    blind: frozenset[int] = frozenset(),
) -> Verdict:
    """The verdict on an analysis.

    ``stall`` is what the watch saw (None: evidence saved by hand), ``versions`` what was loaded
    (``nccl``, ``torch``, ``arch``), ``notes`` what could not be read, ``ranks`` (rank, host, pid).
    ``recorded`` and ``blind`` as in Situation.
    """
    hosts = analysis.hosts
    matches = tuple(match(library, analysis.facts, hosts, versions))
    it = Situation(
        library=library,
        facts=analysis.facts,
        matches=matches,
        roots=tuple(_root(root) for root in analysis.hang.roots),
        waiting=tuple(sorted(analysis.hang.waiting)),
        stall=stall,
        hosts=hosts,
        recorded=recorded,
        blind=blind,
    )
    outcome = outcome_of(it)
    found = causes(it) if outcome == "diagnosed" else []
    fabric, reasons = fabric_of(it, outcome, found)
    candidates = tuple(_candidate(one, analysis.facts, outcome) for one in _shown(it, outcome))
    return Verdict(
        outcome=outcome,
        symptom=symptom_of(it, outcome),
        fabric=fabric,
        culprits=culprits_of(it, outcome, found),
        signatures=candidates,
        hang=Hang(
            roots=it.roots,
            waiting=it.waiting,
            since=stall.last_progress if stall else None,
        ),
        ledger=_counts(ledger) if ledger else LedgerCounts(),
        timing=timing or Timing(),
        asks=_asks(it, outcome, candidates, analysis),
        fabric_reasons=reasons,
        contradictions=tuple(str(doubt) for doubt in analysis.contradictions),
        notes=tuple(notes),
        ranks=tuple(sorted(ranks)),
    )


def _root(root: Root) -> HangRoot:
    return HangRoot(
        ranks=root.ranks,
        kind=root.kind,
        group=root.group,
        op=root.op,
        seq=root.seq if root.seq >= 0 else None,
        frame=root.frame,
        cites=root.cites,
        suspects=root.suspects,
        sure=root.sure,
        why=root.why,
    )


def _shown(it: Situation, outcome: Outcome) -> list[Match]:
    """Matches worth printing: those that stand, and possible ones with points in their favour."""
    if outcome == "healthy":
        return []
    return [
        one
        for one in it.matches
        if one.grade.stands or (one.grade is Grade.POSSIBLE and one.decibans > 0)
    ]


def _candidate(one: Match, facts: Facts, outcome: Outcome) -> Candidate:
    signature = one.signature
    grade = one.grade
    if grade.stands and (
        outcome == "waiting" or (outcome == "cannot-tell" and signature.names_cause)
    ):
        grade = Grade.POSSIBLE  # nothing is known to be wrong (yet, or before somebody ended it)
    return Candidate(
        id=signature.id,
        title=signature.title,
        layer=signature.layer,
        grade=grade.value,
        decibans=round(one.decibans, 1),
        where=_places(one.where),
        reasons=tuple(
            Reason(
                fact=point.clue.fact,
                known=point.known.value,
                worth=point.worth if point.counted else 0.0,
                cites=point.cites,
                why=point.clue.why,
            )
            for point in sorted(one.points, key=lambda p: -abs(p.worth) if p.counted else 0.0)
            if point.known is not Known.UNKNOWN
        ),
        asks=tuple(text for name in one.asks if (text := ask(name, facts, one.where.ranks))),
        mitigations=tuple(
            Advice(
                id=m.id,
                do=m.do,
                scope=m.scope,
                risk=m.risk,
                check=m.check,
                undo=m.undo,
                undo_when=m.undo_when,
            )
            for m in signature.mitigations
        ),
        playbook=signature.playbook,
        summary=signature.summary,
        untold=one.untold,
        references=signature.references,
        decided=signature.names_cause,
    )


def _places(where: Where) -> Culprits:
    return Culprits(ranks=where.ranks, hosts=where.hosts, devices=where.devices, links=where.links)


def _asks(
    it: Situation, outcome: Outcome, candidates: Sequence[Candidate], analysis: Analysis
) -> tuple[str, ...]:
    """What to fetch next: only where the evidence leaves something open, most telling first."""
    if outcome == "healthy":  # those who left nothing may be the ones in trouble
        return tuple(str(one) for one in analysis.asks[:1])
    asks: list[str] = []
    shown = {c.id for c in candidates}
    if outcome == "cannot-tell":
        if any(not root.ranks or not root.sure for root in analysis.hang.roots):
            asks += [str(one) for one in analysis.asks[:2]]  # who comes before why
        told = separators([m for m in it.matches if m.id in shown], it.facts, it.library)
        asks += map(str, told)
        done = {one.text for one in told}
        for candidate in candidates[:3]:
            asks += [text for text in candidate.asks[:3] if text not in done]
        if not asks:
            if not candidates and not analysis.asks:
                asks += [ask(name, it.facts) for name in _FIRST]
            for one in it.matches:
                if one.grade is Grade.CANNOT_TELL and one.decibans > 0:
                    asks += [ask(name, it.facts, one.where.ranks) for name in one.asks[:2]]
    asks += [str(one) for one in analysis.asks]
    if outcome == "cannot-tell":
        top = next((m for m in it.matches if m.id in shown), None)
        asks += top.signature.capture_next if top else ()
    return tuple(dict.fromkeys(text for text in asks if text))[:MOST_ASKS]


_FIRST = ("collective.lagging", "process.stopped", "stack.in-user-code", "process.exited")
"""What is worth knowing of any broken job about which nothing is known."""


def _counts(ledger: Ledger) -> LedgerCounts:
    counts = ledger.counts()
    return LedgerCounts(
        ok=counts["ok"],
        partial=counts["partial"],
        failed=counts["failed"],
        timed_out=counts["timed-out"],
        not_armed=counts["not-armed"],
        absent=counts["absent"],
        gaps=tuple(ledger.gaps()),
    )
