"""Flight-recorder JSON of each rank from torch's worker socket: needs no GIL."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path

from fabwatch.watchdog.capture import armed
from fabwatch.watchdog.capture.collector import Collector, Target
from fabwatch.watchdog.capture.outcome import Outcome, absent, failed, timed_out
from fabwatch.watchdog.capture.unixhttp import Answer, Unanswered, post

RECORDERS = (
    ("fr_trace_json", "fr_trace_rank_N.json", "CPU"),
    ("dump_nccl_trace_json", "nccl_trace_rank_N.json", "NCCL"),
)
DEADLINE_S = 3.0
CAP = 16 << 20


def collect(target: Target, out: Path) -> Iterator[Outcome]:
    """Both recorders at once. One line for each that answered; else one that says why not."""
    missing = armed.without_socket(target, "w")
    if missing is not None:
        yield missing
        return
    answers: list[Answer | Unanswered] = [Unanswered("silent", "") for _ in RECORDERS]

    def ask(index: int) -> None:
        try:
            answers[index] = post(
                armed.socket_path(target, "w"),
                f"/handler/{RECORDERS[index][0]}",
                until=target.until,
                keep=target.fair_share(CAP),
            )
        except Unanswered as err:
            answers[index] = err
        except Exception as err:
            answers[index] = Unanswered("garbage", f"{type(err).__name__}: {err}")

    other = threading.Thread(target=ask, args=(1,), daemon=True)
    other.start()
    ask(0)
    other.join(target.left() + 0.1)
    outcomes = [
        _outcome(target, out, file, what, answer)
        for (_, file, what), answer in zip(RECORDERS, answers, strict=True)
    ]
    good = [one for one in outcomes if one.path is not None]
    # A recorder that this build does not have is no gap as long as the other one answered.
    bad = [o for o in outcomes if o.path is None and not (good and o.status.value == "absent")]
    if not good and all(o.status is bad[0].status for o in bad):
        bad = bad[:1]
    yield from good
    yield from bad


def _outcome(
    target: Target, out: Path, file: str, what: str, answer: Answer | Unanswered
) -> Outcome:
    if isinstance(answer, Unanswered):
        reason = f"worker server ({what} recorder): {answer}"
        if answer.kind == "silent" or (answer.kind == "cut" and target.left() == 0):
            return timed_out(f"{reason} in {DEADLINE_S:g} s")
        return absent(reason) if answer.kind == "nobody" else failed(reason)
    if answer.status == 404:
        return absent(f"this torch has no {what} flight recorder on its worker server")
    if answer.status != 200:
        said = answer.head[:120].decode(errors="replace").strip()
        return failed(f"worker server ({what} recorder): HTTP {answer.status} {said}")
    path = out / target.named(file)
    if answer.whole:
        body = answer.head + answer.tail
        note = "" if body.strip() else "the answer is empty"
        return target.save(path, body, mask=False, cap=CAP, note=note, partial=not body.strip())
    body, note = newest_entries(answer)
    return target.save(path, body, mask=False, cap=CAP + 4096, note=note, partial=True)


def newest_entries(answer: Answer) -> tuple[bytes, str]:
    """A dump that is too large, without its oldest entries: JSON again if that can be.

    Entries are a flat list of objects, oldest first, so the cut is between two of them.
    """
    dropped = answer.total - len(answer.head) - len(answer.tail)
    start = answer.head.find(b'"entries":[')
    cut = answer.tail.find(b"},{")
    if start >= 0 and cut >= 0:
        body = answer.head[: start + len(b'"entries":[')] + answer.tail[cut + 2 :]
        try:
            json.loads(body)
            return body, f"{answer.total} bytes: the oldest entries were dropped"
        except (ValueError, RecursionError):
            pass
    marker = b"\n[fabwatch: %d bytes cut out here]\n" % dropped
    return answer.head + marker + answer.tail, f"{answer.total} bytes: the middle was cut out"


COLLECTOR = Collector(
    name="fr-json",
    scope="rank",
    tier=1,
    source="flight-recorder",
    needs=("the probe's worker socket",),
    deadline_s=DEADLINE_S,
    first=True,
    collect=collect,
)
