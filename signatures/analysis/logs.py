"""Reads what the job itself printed about its collectives, enough for a graph on logs alone.

Works by the fields of an event (seq, op, enqueued, completed, ...), whatever the pattern's name.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

from fabwatch.signatures.analysis.mismatch import Split, family, split
from fabwatch.watchdog.evidence.facts import Facts, fact
from fabwatch.watchdog.evidence.observations import LogEvent
from fabwatch.watchdog.evidence.opnames import normal_op

PREAMBLE = re.compile(r"op\.preamble\.length <= op\.nbytes\. (?P<got>\d+) vs (?P<want>\d+)")
_PRINT = re.compile(
    r"OpType=(?P<op>\w+)(?:.*?TensorShape=\[(?P<shape>[^\]]*)\])?(?:.*?TensorDtypes=(?P<dtype>\w+))?"
)
_SEQ = re.compile(r"SequenceNumber=(\d+)")
_SAME_SIZES = frozenset({"all_reduce", "broadcast", "reduce"})
"""Operations whose input has one size on all ranks."""


@dataclass(slots=True)
class LogMarks:
    """One rank in one group as its log lines say; -1 is unsaid."""

    rank: int
    group: str
    at: int = -1
    enqueued: int = -1
    completed: int = -1
    op: str = ""
    numel: int | None = None
    cite: str = ""


@dataclass(slots=True)
class Logs:
    """What the logs tell the graph."""

    marks: dict[tuple[int, str], LogMarks] = field(default_factory=dict)
    splits: list[Split] = field(default_factory=list)
    split_cites: tuple[str, ...] = ()
    preamble: list[LogEvent] = field(default_factory=list)
    barrier_missing: dict[int, str] = field(default_factory=dict)
    timeouts: list[LogEvent] = field(default_factory=list)
    timeout_s: float | None = None


def _first(event: LogEvent, *names: str) -> str:
    return next((value for name in names if (value := event.get(name))), "")


def _int(text: str, default: int = -1) -> int:
    try:
        return int(text)
    except ValueError:
        return default


def _ranks(text: str) -> list[int]:
    return [int(n) for n in re.findall(r"\d+", text)]


def read(events: Iterable[LogEvent], facts: Facts) -> Logs:
    """Collect log marks, fingerprints and time-outs; add their facts."""
    out = Logs()
    events = list(events)
    prints: dict[int, tuple[str, str]] = {}
    for event in events:
        _timeout(event, out)
        _marks(event, out)
        _desync(event, out)
        if PREAMBLE.search(event.text) or (
            event.get("got") and event.get("want") and "gloo" in event.kind
        ):
            out.preamble.append(event)
        if event.kind == "detail.mismatch":
            _reported(event, facts)
        if event.get("fa") and event.get("fb"):
            for side in "ab":
                rank = _int(event.get(side))
                if rank >= 0:
                    prints.setdefault(rank, (event.get("f" + side), event.cite))
        if "passmonitoredbarrier" in event.text.lower().replace(" ", "") or (
            "barrier" in event.kind and event.get("ranks")
        ):
            for rank in _ranks(event.get("ranks")):
                out.barrier_missing.setdefault(rank, event.cite)
    if out.barrier_missing:
        facts.add(
            fact(
                "monitored-barrier.failed",
                ranks=out.barrier_missing,
                cites=out.barrier_missing.values(),
            )
        )
    _fingerprints(prints, out, facts)
    if not out.splits:
        _watchdog_splits(events, out)
    if out.timeouts:
        ranks = [r for e in out.timeouts if (r := _rank(e)) is not None]
        ms = [m for e in out.timeouts if (m := _int(_first(e, "timeout_ms", "ms"))) > 0]
        facts.add(
            fact(
                "timeout.reported",
                ranks=ranks,
                cites=[e.cite for e in out.timeouts][:8],
                timeout_ms=min(ms, default=None),
            )
        )
        out.timeout_s = min(ms) / 1000 if ms else None
    return out


_WIDTHS = (2.0, 4.0, 8.0)
"""How many times wider one element type may be than another."""


def other_sizes(log: Logs) -> bool:
    """Whether Gloo refused a length that no other element type explains.

    Gloo's operations use message slots of their own (gloo/types.h), so that a message which meets
    its counterpart is of the same operation; only the number of bytes differs.
    """
    for event in log.preamble:
        if match := PREAMBLE.search(event.text):
            got, want = int(match["got"][:18]), int(match["want"][:18])
            ratio = max(got, want) / max(min(got, want), 1)
            if ratio not in _WIDTHS:
                return True
    return False


def _rank(event: LogEvent) -> int | None:
    if event.rank is not None:
        return event.rank
    text = _first(event, "rank", "pg_rank", "pg_rank2", "pg_rank3")
    return int(text) if text.isdigit() else None


def _is_timeout(event: LogEvent) -> bool:
    if event.kind.endswith(".timeout") and event.kind.startswith("gloo"):
        return True
    if event.kind == "nccl.unique-id":
        return bool(re.search(r"[Tt]ime(?:d )?out", event.get("why")))
    if event.kind.endswith("watchdog-timeout") or (event.get("seq") and event.get("op")):
        return True
    text = event.text
    return bool(
        re.search(r"Watchdog caught collective operation timeout", text)
        or re.search(r"gloo.*Timed out waiting \d+ms", text)
        or "failed to pass monitoredBarrier" in text
    )


def _timeout(event: LogEvent, out: Logs) -> None:
    if _is_timeout(event):
        out.timeouts.append(event)


def _desync(event: LogEvent, out: Logs) -> None:
    """Torch's own desync report: who joined which collective (count from 1) of the world."""
    joined, done, coming = (_int(event.get(n)) for n in ("joined", "done", "next"))
    if not event.get("ranks") or (joined < 0 and done < 0):
        return
    for rank in _ranks(event.get("ranks")):
        found = out.marks.setdefault((rank, "0"), LogMarks(rank, "0", cite=event.cite))
        if joined > 0:
            found.enqueued, found.completed = joined, joined - 1
            found.at = joined
        elif coming > 0:
            found.enqueued = found.completed = done


def _marks(event: LogEvent, out: Logs) -> None:
    rank = _rank(event)
    enqueued = _first(event, "enq", "enqueued", "last_enqueued")
    completed = _first(event, "comp", "completed", "last_completed")
    seq, op = event.get("seq"), _first(event, "op", "op_type")
    if rank is None or not (enqueued or (seq and op)):
        return
    group = _first(event, "pg_guid", "pg_desc", "pg_id", "pg_old") or "0"
    found = out.marks.setdefault((rank, group), LogMarks(rank, group))
    found.cite = found.cite or event.cite
    if enqueued:
        found.enqueued = max(found.enqueued, _int(enqueued))
        found.completed = max(found.completed, _int(completed))
        at = _int(_first(event, "at", "failed_at"))
        found.at = at if found.at < 0 else found.at
    if seq and op:
        found.at = _int(seq)
        found.enqueued = max(found.enqueued, found.at)
        found.op = normal_op(op)
        numel = _int(_first(event, "numel_in", "numel"))
        found.numel = numel if numel >= 0 else None


def _fingerprints(prints: dict[int, tuple[str, str]], out: Logs, facts: Facts) -> None:
    if len(prints) < 2:
        return
    out.split_cites = tuple(dict.fromkeys(cite for _, cite in prints.values()))
    parsed = {r: m for r, (text, _) in prints.items() if (m := _PRINT.search(text))}
    numbers = {r: int(m[1]) for r, (text, _) in prints.items() if (m := _SEQ.search(text))}
    seq = min(numbers.values(), default=-1)
    ops = {r: family(normal_op(m["op"])) for r, m in parsed.items()}
    op = next(iter(ops.values()), "")
    aspects: list[tuple[str, dict[int, str]]] = [
        ("type", ops),
        ("size", {r: m["shape"] for r, m in parsed.items() if m["shape"] is not None}),
        ("dtype", {r: m["dtype"] for r, m in parsed.items() if m["dtype"]}),
    ]
    for aspect, values in aspects:
        if found := split("0", seq, op, aspect, values, True):
            out.splits.append(found)
            return
    if len(set(numbers.values())) > 1:
        facts.add(
            fact("collective.numbers-differ", ranks=numbers, cites=out.split_cites, op=op,
                 low=seq, high=max(numbers.values()))
        )  # fmt: skip


def _reported(event: LogEvent, facts: Facts) -> None:
    """A refusal of torch's DETAIL checks as such; old versions do not say what peers called."""
    match = _PRINT.search(event.get("fa"))
    rank = _int(event.get("a"))
    facts.add(
        fact(
            "collective.mismatch-reported",
            ranks=[rank] if rank >= 0 else [],
            cites=[event.cite],
            op=normal_op(match["op"]) if match else "",
            both=bool(event.get("fb")),
        )
    )


def _watchdog_splits(events: Iterable[LogEvent], out: Logs) -> None:
    """Time-out lines of several ranks about one number that name different operations or sizes.

    A rank of another group may have the same number, so groups must be known to be the same, or
    nothing may speak of more than one.
    """
    at: dict[int, dict[int, tuple[str, int, str]]] = defaultdict(dict)
    groups = {g for _, g in out.marks}
    for event in events:
        if not event.kind.endswith("watchdog-timeout") or not event.get("seq").isdigit():
            continue
        rank = _rank(event)
        if rank is not None:
            numel = _int(event.get("numel_in"))
            at[int(event.get("seq"))][rank] = (normal_op(event.get("op")), numel, event.cite)
    if len(groups - {"0", "default_pg"}) > 0:
        return
    for seq, seen in sorted(at.items()):
        if len(seen) < 2:
            continue
        ops = {r: family(op) for r, (op, _, _) in seen.items()}
        cites = tuple(cite for _, _, cite in seen.values())
        found = split("0", seq, next(iter(ops.values())), "type", ops, True)
        if found is None and set(ops.values()) <= _SAME_SIZES:
            sizes = {r: n for r, (_, n, _) in seen.items() if n >= 0}
            found = split("0", seq, next(iter(ops.values())), "size", sizes, True)
        if found is not None:
            out.splits.append(found)
            out.split_cites = cites
            return


def log_groups(out: Logs) -> dict[str, dict[int, LogMarks]]:
    """Group -> rank -> marks."""
    groups: dict[str, dict[int, LogMarks]] = defaultdict(dict)
    for (rank, group), marks in out.marks.items():
        groups[group][rank] = marks
    return dict(groups)
