"""What a verdict has to say, in the order in which a tired reader needs it.

The screen and summary.md tell the same story; only length and dress differ.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from fabwatch.signatures.asking import ranks_text
from fabwatch.signatures.report.roles import advice
from fabwatch.signatures.report.text import clean, counted, listed, odds, seconds
from fabwatch.signatures.verdict import Candidate, HangRoot, Reason, Verdict

KINDS = {
    "host-stall": "did not come to the operation",
    "process-stopped": "its process is stopped",
    "process-dead": "it has failed or ended",
    "left-the-loop": "it has left the loop",
    "absent": "nothing of it is there: no dump, no answer",
    "type-mismatch": "it entered another operation than its peers",
    "size-mismatch": "it entered with another size than its peers",
    "dtype-mismatch": "it entered with another dtype than its peers",
    "root-mismatch": "it entered with another root than its peers",
    "call-sites-differ": "it entered from other code than its peers",
    "deadlock": "groups were entered in crossed order",
    "p2p-cycle": "sends and receives wait for each other",
    "p2p-unmatched": "a send or receive without a partner",
    "completion-lag": "peers finished the operation, it did not",
    "gpu-stalled": "its device does not get on",
    "in-collective": "all entered the operation, none finished it",
    "uneven-participation": "it takes part less often than its peers",
    "external-dependency": "something outside the job is waited for",
}
"""Kind of a root of the wait-for graph -> what it means, in a few words."""


@dataclass(frozen=True, slots=True)
class Line:
    """One statement; ``aside`` is quieter (a citation, a number), ``sign`` stands before it."""

    text: str
    aside: str = ""
    sign: str = ""
    loud: bool = False


@dataclass(frozen=True, slots=True)
class Section:
    """A label with its lines. ``most`` of them are shown on the screen; all in summary.md."""

    label: str
    lines: tuple[Line, ...]
    most: int = 3
    width: int = 2  # how many screen lines one statement may fill


@dataclass(frozen=True, slots=True)
class Story:
    """A headline, what kind of news it is (``tone``), and sections in reading order."""

    tone: str  # confirmed, likely, cannot-tell, waiting, healthy
    badge: str
    headline: str
    below: str
    sections: tuple[Section, ...]


def tell(verdict: Verdict, place: str = "", now: float | None = None, role: str = "") -> Story:
    """The story of ``verdict``; ``place`` is where the bundle lies, ``now`` epoch seconds.

    ``role`` (of roles.ROLES) adds what the verdict asks of it; "" adds nothing.
    """
    tellers = {
        "diagnosed": _diagnosed,
        "cannot-tell": _cannot_tell,
        "waiting": _waiting,
        "healthy": _healthy,
    }
    tone, headline, below, sections = tellers[verdict.outcome](verdict, now)
    badge = verdict.outcome.replace("-", " ")
    if verdict.symptom != "none":
        badge += f" · {verdict.symptom.replace('-', ' ')}"
    if role:
        mine = tuple(Line(text) for text in advice(verdict, role))
        sections = [Section(f"{role}:", mine, most=4, width=3), *sections]
    every = [*sections, _evidence(verdict), Section("bundle", _only(place), width=9)]
    return Story(tone, badge, headline, below, tuple(s for s in every if s.lines))


_Told = tuple[str, str, str, list[Section]]


def _diagnosed(verdict: Verdict, now: float | None) -> _Told:
    best = verdict.signatures[0]
    below = f"{best.id} · {best.grade}, {best.decibans:+.0f} decibans ({odds(best.decibans)})"
    # A confirmed verdict without a rival that stands leaves nothing to fetch before one acts.
    settled = best.grade == "confirmed" and not _rivals(verdict)
    asks = () if settled else _asks(verdict, best)
    sections = [
        Section("culprit", tuple(_culprits(verdict)), most=4),
        Section("waiting", tuple(_waiters(verdict, now))),
        Section("why", tuple(_reasons(best, for_it=True)), most=4),
        Section("against", tuple([*_reasons(best, for_it=False), *_doubts(verdict)])),
        Section("fabric", tuple(_fabric(verdict)), most=2),
        Section("also", tuple(_others(_rivals(verdict))), most=2, width=1),
        Section("fetch next", asks, most=2, width=2),
        Section("first aid", tuple(_aid(best)), most=5),
        Section("playbook", _playbook(best), width=1),
    ]
    return best.grade, clean(best.title), below, sections


def _cannot_tell(verdict: Verdict, now: float | None) -> _Told:
    named = bool(verdict.culprits.ranks)
    headline = (
        "Something is wrong, and whose fault it is, but not why"
        if named
        else "Something is wrong, and the evidence cannot tell what"
        if verdict.symptom != "none"
        else "Nothing here tells whether anything is wrong"
    )
    asks = _asks(verdict, verdict.best)
    below = "What stands under 'fetch next' would decide." if asks else ""
    sections = [
        Section("culprit" if named else "suspects", tuple(_culprits(verdict)), most=4),
        Section("waiting", tuple(_waiters(verdict, now))),
        Section("standing", tuple(Line(clean(text)) for text in verdict.standing), most=4),
        Section("fetch next", asks, most=4, width=3),
        Section("candidates", tuple(_others(verdict.signatures)), width=1),
        Section("against", tuple(_doubts(verdict))),
        Section("fabric", tuple(_fabric(verdict)), most=2),
    ]
    return "cannot-tell", headline, below, sections


def _waiting(verdict: Verdict, now: float | None) -> _Told:
    sections = [
        Section("waiting", tuple(_waiters(verdict, now))),
        Section("for", tuple(_culprits(verdict)), most=4),
        Section("candidates", tuple(_others(verdict.signatures)), most=2, width=1),
        Section("fetch next", _asks(verdict, verdict.best), most=2, width=3),
    ]
    below = "A long evaluation, checkpoint or compile looks like this. No alarm; nothing to do yet."
    headline = "Somebody waits longer than usual, and there is no sign of a failure"
    return "waiting", headline, below, sections


def _healthy(verdict: Verdict, now: float | None) -> _Told:
    seen = f"{counted(len(verdict.ranks), 'rank')} seen. " if verdict.ranks else ""
    below = f"{seen}This speaks for what was looked at, not for what the gaps hide."
    sections = [
        Section("doubts", tuple(_doubts(verdict))),
        Section("fetch next", _asks(verdict, None), most=1),
    ]
    return "healthy", "Nothing wrong was found", below, sections


# ------------------------------------------------------------------ who


def _culprits(verdict: Verdict) -> Iterator[Line]:
    """One line for each place with the same code line: rank -> host -> pid -> code."""
    homes = {rank: (host, pid) for rank, host, pid in verdict.ranks}
    blamed = verdict.culprits.ranks
    loud = bool(blamed)
    roots = verdict.hang.roots
    if not blamed:
        blamed = tuple(sorted({r for root in roots for r in root.ranks or root.suspects}))
    groups: dict[tuple[str, str], list[int]] = {}
    for rank in blamed:
        root = _root_of(rank, roots)
        key = (homes.get(rank, ("", 0))[0], clean(root.frame) if root else "")
        groups.setdefault(key, []).append(rank)
    for (host, frame), ranks in groups.items():
        pids = [str(homes[r][1]) for r in ranks if r in homes and homes[r][1]]
        parts = [ranks_text(ranks), clean(host)]
        if pids:
            parts.append(f"pid {listed(pids, 3)}")
        parts.append(frame)
        root = _root_of(ranks[0], roots)
        yield Line(" → ".join(p for p in parts if p), _kind(root), loud=loud)
    if not blamed and verdict.culprits.hosts:
        yield Line(f"host {listed(verdict.culprits.hosts, 6)}", loud=True)
    for what, names in (("device", verdict.culprits.devices), ("link", verdict.culprits.links)):
        if names:
            yield Line(f"{what} {listed(names, 6)}", loud=True)
    if verdict.outcome == "diagnosed" and not any(
        (blamed, verdict.culprits.hosts, verdict.culprits.devices, verdict.culprits.links)
    ):
        yield Line("no rank, host or link is to blame by this evidence")


def _root_of(rank: int, roots: Sequence[HangRoot]) -> HangRoot | None:
    return next((root for root in roots if rank in root.ranks or rank in root.suspects), None)


def _kind(root: HangRoot | None) -> str:
    if root is None:
        return ""
    what = KINDS.get(root.kind, root.kind.replace("-", " "))
    operation = _operation(root)
    return f"{what}: {operation}" if operation else what


def _operation(root: HangRoot) -> str:
    number = f" #{root.seq}" if root.seq is not None else ""
    group = f" of {root.group}" if root.group else ""
    return clean(f"{root.op}{number}{group}") if root.op else ""


def _waiters(verdict: Verdict, now: float | None) -> Iterator[Line]:
    hang, world = verdict.hang, len(verdict.ranks)
    if not hang.waiting:
        return
    operations = list(dict.fromkeys(filter(None, map(_operation, hang.roots))))
    what = f" in {listed(operations, 2)}" if operations else ""
    since = ""
    if hang.since is not None and now is not None and now > hang.since:
        since = f"no progress for {seconds(now - hang.since)}"
    elif hang.since is not None:
        since = f"since {time.strftime('%F %T', time.gmtime(hang.since))} UTC"
    of = f" ({len(hang.waiting)} of {world})" if world else ""
    yield Line(f"{ranks_text(hang.waiting)}{of}{what}", since)


# ------------------------------------------------------------------ why


def _reasons(candidate: Candidate, *, for_it: bool) -> Iterator[Line]:
    kept = [r for r in candidate.reasons if (r.worth > 0 if for_it else r.worth < 0)]
    for reason in sorted(kept, key=lambda r: -abs(r.worth)):
        yield Line(_because(reason), listed(reason.cites, 2), f"{reason.worth:+.0f}")


def _because(reason: Reason) -> str:
    """The reason in words; a clue that counts against says what was not found."""
    if reason.known == "no":
        return f"not seen: {reason.fact}" + (f" ({clean(reason.why)})" if reason.why else "")
    return clean(reason.why) or reason.fact


def _doubts(verdict: Verdict) -> Iterator[Line]:
    for text in verdict.contradictions:
        yield Line(clean(text), sign="!")


def _fabric(verdict: Verdict) -> Iterator[Line]:
    yield Line(verdict.fabric, "; ".join(clean(r) for r in verdict.fabric_reasons[:2]))


def _rivals(verdict: Verdict) -> Sequence[Candidate]:
    """What else a reader should know of: beside a confirmed first, not what is merely possible."""
    rest = verdict.signatures[1:]
    if verdict.signatures and verdict.signatures[0].grade == "confirmed":
        return [one for one in rest if one.grade in ("confirmed", "likely")]
    return rest


def _others(candidates: Sequence[Candidate]) -> Iterator[Line]:
    for one in candidates:
        where = f", {ranks_text(one.where.ranks)}" if one.where.ranks else ""
        untold = f"; not told apart from {listed(one.untold, 2)}" if one.untold else ""
        yield Line(f"{one.id}: {clean(one.title)}", f"{one.grade}{where}{untold}")


def _asks(verdict: Verdict, best: Candidate | None) -> tuple[Line, ...]:
    texts = verdict.asks or (best.asks if best else ())
    return tuple(Line(clean(text)) for text in dict.fromkeys(texts))


# ------------------------------------------------------------------ what to do


def _aid(candidate: Candidate) -> Iterator[Line]:
    """The first mitigation, with what it may cost and when to undo it."""
    if not candidate.mitigations:
        return
    first = candidate.mitigations[0]
    yield Line(clean(first.do), loud=True)
    for sign, text in (("risk", first.risk), ("check", first.check)):
        if text:
            yield Line(clean(text), sign=sign)
    if first.undo:
        yield Line(clean(first.undo), sign="undo")
    if first.undo_when:
        yield Line(clean(first.undo_when), sign="when")


def _playbook(candidate: Candidate) -> tuple[Line, ...]:
    if not candidate.playbook:
        return ()
    more = len(candidate.mitigations) - 1
    aside = f"{counted(more, 'further step')} there" if more > 0 else ""
    return (Line(f"fabwatch playbook {candidate.id}", aside),)


# ------------------------------------------------------------------ evidence


def _evidence(verdict: Verdict) -> Section:
    counts = verdict.ledger
    tried = {
        "ok": counts.ok,
        "partial": counts.partial,
        "failed": counts.failed,
        "timed out": counts.timed_out,
        "not armed": counts.not_armed,
        "absent": counts.absent,
    }
    lines = []
    if any(tried.values()):
        text = ", ".join(f"{n} {name}" for name, n in tried.items() if n or name == "ok")
        lines.append(Line(text))
    if timing := _timing(verdict):
        lines.append(Line(timing))
    lines += [Line(clean(gap), sign="gap") for gap in counts.gaps]
    lines += [Line(clean(note), sign="note") for note in verdict.notes]
    return Section("evidence", tuple(lines), most=4, width=1)


def _timing(verdict: Verdict) -> str:
    known = (
        ("noticed", verdict.timing.last_progress_to_detect_s, "after the last progress"),
        ("captured in", verdict.timing.detect_to_captured_s, ""),
    )
    return ", ".join(
        f"{what} {seconds(value)} {tail}".strip()
        for what, value, tail in known
        if value is not None
    )


def _only(text: str) -> tuple[Line, ...]:
    return (Line(clean(text)),) if text else ()
