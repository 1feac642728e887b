"""Diagnoses what was read: analyse across ranks, match the library, conclude.

``diagnose(read(paths), load())`` is all that a command needs.
"""

from __future__ import annotations

import msgspec

from fabwatch.signatures.analysis import analyse
from fabwatch.signatures.analysis.stages import of_thread
from fabwatch.signatures.conclude import conclude
from fabwatch.signatures.loader import load
from fabwatch.signatures.model import Library
from fabwatch.signatures.verdict import Timing, Verdict
from fabwatch.watchdog.evidence.observations import RankStacks, Stall
from fabwatch.watchdog.evidence.reading import Reading
from fabwatch.watchdog.evidence.reading import versions_of as versions_of


def diagnose(reading: Reading, library: Library | None = None) -> Verdict:
    """The verdict on everything in ``reading``, by ``library`` (default: the built-in one).

    Never raises for what the evidence holds; LibraryError if the built-in library is broken.
    """
    stall = current_stall(reading)
    verdict = conclude(
        analyse(reading),
        load() if library is None else library,
        stall=stall,
        versions=versions_of(reading),
        ledger=reading.ledger,
        notes=tuple(str(problem) for problem in reading.problems),
        ranks=ranks_of(reading),
        timing=timing_of(stall),
        recorded=recorded_ranks(reading),
        blind=blind_ranks(reading),
    )
    if verdict.outcome != "cannot-tell" or verdict.hang.roots:
        return verdict
    return msgspec.structs.replace(verdict, standing=standing_of(reading))


def standing_of(reading: Reading) -> tuple[str, ...]:
    """Where each main thread stands, newest stack of each process, at most 64 of them."""
    newest: dict[tuple[int | None, int | None, str], RankStacks] = {}
    for one in reading.stacks:
        who = (one.rank, one.pid if one.rank is None else None, one.source.host or "")
        known = newest.get(who)
        if known is None or one.source.snapshot >= known.source.snapshot:
            newest[who] = one
    said = []
    for one in newest.values():
        main = one.main
        stage = of_thread(main)
        if main is None or stage.frame is None:
            continue
        name = f"rank {one.rank}" if one.rank is not None else f"pid {one.pid or '?'}"
        inner = "" if main.frames[0] == stage.frame else f", in {main.frames[0]}"
        doing = f" ({stage.primary})" if stage.primary else ""
        said.append(f"{name} at {stage.frame}{inner}{doing}  {one.source.cite(main.line or None)}")
    return tuple(sorted(said, key=_by_number)[:64])


def _by_number(text: str) -> tuple[str, int]:
    kind, _, rest = text.partition(" ")
    number = rest.split(" ", 1)[0]
    return kind, int(number) if number.isdigit() else -1


def current_stall(reading: Reading) -> Stall | None:
    """What the watch saw last; an unresolved incident counts before a resolved one."""
    return max(
        reading.stalls,
        key=lambda one: (not one.resolved, one.detected or 0.0),
        default=None,
    )


def ranks_of(reading: Reading) -> tuple[tuple[int, str, int], ...]:
    """(rank, host, pid) of every rank that a manifest or log names, the last word counting."""
    out: dict[int, tuple[int, str, int]] = {}
    for shape in reading.shapes:
        for rank, host, pid in shape.ranks:
            out[rank] = (rank, host, pid)
    return tuple(out[rank] for rank in sorted(out))


def recorded_ranks(reading: Reading) -> frozenset[int]:
    """Ranks whose recorder keeps every operation: NCCL's, also when nothing is in flight.

    A dump without operations does not name its backend; then that of its peers counts.
    """
    backends = {trace.backend for trace in reading.traces if trace.backend}
    if backends != {"nccl"}:
        return frozenset(t.rank for t in reading.traces if t.backend == "nccl")
    return frozenset(t.rank for t in reading.traces)


def blind_ranks(reading: Reading) -> frozenset[int]:
    """Ranks of which no dump is whole: cut off, or without a single operation or count."""
    whole = {
        trace.rank
        for trace in reading.traces
        if not trace.truncated and (trace.ops or trace.status)
    }
    return frozenset(trace.rank for trace in reading.traces) - whole


def timing_of(stall: Stall | None) -> Timing:
    """How long detection and the first capture took, in seconds."""
    if stall is None or stall.detected is None:
        return Timing()
    captured = stall.captured
    return Timing(
        last_progress_to_detect_s=_seconds(stall.last_progress, stall.detected),
        detect_to_captured_s=None if captured is None else _seconds(stall.detected, captured),
    )


def _seconds(start: float | None, end: float) -> float | None:
    return None if start is None else round(end - start, 3)
