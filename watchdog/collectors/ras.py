"""NCCL's own view of its communicators: RAS status as text and JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

from fabwatch.watchdog import procfs
from fabwatch.watchdog.capture.collector import Collector, Target
from fabwatch.watchdog.capture.job import RankProcess
from fabwatch.watchdog.capture.libraries import version
from fabwatch.watchdog.capture.outcome import Outcome, absent, failed, not_armed, timed_out
from fabwatch.watchdog.capture.rasclient import RasError, status
from fabwatch.watchdog.progress.page import read_page

DEFAULT = "localhost:28028"
FIRST = (2, 24)
"""RAS exists from here on."""

SAFE = (2, 27)
"""Before this, a question during the set-up of a communicator could crash the job."""


def collect(target: Target, out: Path) -> Iterator[Outcome]:
    """ras.json, then ras.txt. That nobody listens is written down too: it says how far NCCL got."""
    living = [rank for rank in target.job.ranks if procfs.same(rank.pid, rank.start_ticks)]
    library = next(filter(None, (_nccl(rank.pid) for rank in living)), "")
    if not library:
        yield absent("no rank that lives has NCCL mapped")
        return
    found = tuple(int(x) for x in re.findall(r"\d+", version(library))[:2])
    if found and found < FIRST:
        yield absent(f"NCCL {version(library)} has no RAS (2.24 and later)")
        return
    if found < SAFE and not all(settled(target, rank) for rank in living):
        name = f"NCCL {version(library)}" if found else "this NCCL (version unknown)"
        yield absent(f"not asked: {name} can crash when asked during its set-up")
        return
    environ = procfs.environ(living[0].pid)
    if environ.get("NCCL_RAS_ENABLE", "").strip() == "0":
        yield not_armed("NCCL_RAS_ENABLE=0")
        return
    text = environ.get("NCCL_RAS_ADDR", "")
    place = address(text or DEFAULT)
    if place is None:
        yield failed(f"NCCL_RAS_ADDR={text!r} is no host:port")
        return
    note = "" if text else "default address, shared by all jobs of this user: compare the pids"
    for form, name in (("json", "ras.json"), ("text", "ras.txt")):
        try:
            report = status(*place, form=form, until=target.until)
        except RasError as err:
            line = f"RAS failed: {err}\n".encode()
            target.save(out / name, line)
            yield (
                absent(f"{err}: no communicator got past its bootstrap, or all have ended")
                if (err.refused)
                else timed_out(str(err))
            )
            if err.refused:
                return
            continue
        if form == "json" and report.form != "json":
            continue  # too old for JSON: the text follows anyway
        why = note if report.whole else "the answer was cut off"
        if form == "json" and report.whole and not _is_json(report.data):
            why = "; ".join(x for x in (why, "not valid JSON as NCCL wrote it") if x)
        yield target.save(out / name, report.data, mask=False, note=why, partial=not report.whole)


def address(text: str) -> tuple[str, int] | None:
    """``host:port`` or ``[v6]:port``; None for anything else."""
    found = re.fullmatch(r"\[([0-9A-Fa-f:.%\w]+)\]:(\d{1,5})|([^:\s\[\]]+):(\d{1,5})", text.strip())
    if not found:
        return None
    return found[1] or found[3], int(found[2] or found[4])


def settled(target: Target, rank: RankProcess) -> bool:
    """Whether the rank has finished an NCCL operation, so that its first set-up is over."""
    page = read_page(Path(target.job.run_dir) / f"live/{rank.pid}.page")
    marks = page.status if page is not None else ()
    return any(key.startswith("nccl") and mark.completed > 0 for key, mark in marks)


def _nccl(pid: int) -> str:
    try:
        return next((p for p in procfs.mapped(pid) if "libnccl.so" in Path(p).name), "")
    except OSError:
        return ""


def _is_json(data: bytes) -> bool:
    try:
        json.loads(data)
        return True
    except (ValueError, RecursionError):
        return False


COLLECTOR = Collector(
    name="ras",
    scope="host",
    tier=2,
    source="ras",
    needs=("NCCL 2.24 or later in the ranks",),
    deadline_s=18.0,
    collect=collect,
)
