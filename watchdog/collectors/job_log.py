"""The end of the job's own output, where it goes to files."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from fabwatch.watchdog import procfs
from fabwatch.watchdog.capture.collector import Collector, Target
from fabwatch.watchdog.capture.outcome import Outcome, absent, failed

TAIL = 1 << 20
"""Bytes of the end of each log."""

MOST = 80
SHARED = "job.log"
_ELASTIC = re.compile(r"attempt_\d+/\d+/(?:stdout|stderr)\.log$")


@dataclass(slots=True)
class _Log:
    """One file: the ways to open it, whose output it holds, and its path as the job knows it."""

    ways: list[str]
    shown: str
    ranks: set[int] = field(default_factory=set)
    shared: bool = False


def collect(target: Target, out: Path) -> Iterator[Outcome]:
    """job.log for a shared log; job.rank_N.stderr.log and the like for a rank's own."""
    logs: dict[tuple[int, int], _Log] = {}
    kinds: set[str] = set()
    job = target.job
    for file in job.logs:
        _add(logs, file, file, None, kinds)
    if job.launcher_pid is not None:
        for fd in (1, 2):
            _add_fd(logs, job.launcher_pid, fd, None, kinds)
    for rank in job.ranks:
        if procfs.same(rank.pid, rank.start_ticks):
            for fd in (1, 2):
                _add_fd(logs, rank.pid, fd, rank.rank, kinds)
    folders = _elastic_folders(target, [log.shown for log in logs.values()])
    for folder in folders:
        for path in sorted(folder.glob("**/attempt_*/*/std*.log"))[:MOST]:
            _add(logs, str(path), str(path), _rank_of_local(target, path), kinds)
    if not logs:
        where = ", ".join(sorted(kinds)) or "nowhere that can be seen"
        yield absent(f"the job's output goes to {where}: give its log with the next question")
        return
    names: set[str] = set()
    for log in sorted(logs.values(), key=lambda one: (not one.shared, sorted(one.ranks)))[:MOST]:
        name = _name(log, names)
        names.add(name)
        yield _take(target, out / name, log)


def _add_fd(
    logs: dict[tuple[int, int], _Log], pid: int, fd: int, rank: int | None, kinds: set[str]
) -> None:
    link = f"/proc/{pid}/fd/{fd}"
    try:
        shown = str(Path(link).readlink())
    except OSError:
        return
    _add(logs, link, shown, rank, kinds)


def _add(
    logs: dict[tuple[int, int], _Log], way: str, shown: str, rank: int | None, kinds: set[str]
) -> None:
    try:
        info = Path(way).stat()
    except OSError:
        return
    if not stat.S_ISREG(info.st_mode):
        terminal = stat.S_ISCHR(info.st_mode) and not shown.endswith("null")
        kinds.add(
            "a pipe" if stat.S_ISFIFO(info.st_mode)
            else "a socket" if stat.S_ISSOCK(info.st_mode)
            else "a terminal" if terminal else shown
        )  # fmt: skip
        return
    log = logs.setdefault((info.st_dev, info.st_ino), _Log([], shown))
    log.ways.append(way)
    if rank is None:
        log.shared = log.shared or not _ELASTIC.search(shown)
    else:
        log.ranks.add(rank)


def _elastic_folders(target: Target, seen: list[str]) -> list[Path]:
    """Torchelastic's log directories: of the launcher's command line, or around a known log."""
    found: list[Path] = []
    for shown in seen:
        if _ELASTIC.search(shown):
            found.append(Path(shown).parents[2])
    pid = target.job.launcher_pid
    if pid is not None:
        try:
            words = procfs.read(f"/proc/{pid}/cmdline").split(b"\0")
            cwd = Path(f"/proc/{pid}/cwd").readlink()
        except OSError:
            return list(dict.fromkeys(found))
        given = procfs.environ(pid).get("PET_LOG_DIR", "")
        for index, word in enumerate(words):
            option, equals, value = os.fsdecode(word).partition("=")
            if option in ("--log-dir", "--log_dir"):
                given = value if equals else os.fsdecode((*words, b"")[index + 1])
        if given:
            found.append(cwd / given)
    return list(dict.fromkeys(found))


def _rank_of_local(target: Target, file: Path) -> int | None:
    """The rank that wrote <attempt>/<local rank>/stderr.log, of the newest attempt known."""
    local = file.parent.name
    for rank in target.job.ranks:
        if str(rank.local_rank) == local and file.parents[1].name == f"attempt_{rank.attempt}":
            return rank.rank
    return None


def _name(log: _Log, taken: set[str]) -> str:
    end = re.sub(r"[^A-Za-z0-9_-]", "-", Path(log.shown.removesuffix(" (deleted)")).stem) or "log"
    if len(log.ranks) == 1 and not log.shared:
        name = f"job.rank_{min(log.ranks)}.{end[:40]}.log"
    elif SHARED not in taken:
        name = SHARED
    else:
        name = f"job.{end[:60]}.log"
    number = 2
    while name in taken:
        name = f"{name.removesuffix('.log')}-{number}.log"
        number += 1
    return name


def _take(target: Target, path: Path, log: _Log) -> Outcome:
    why = ""
    for way in log.ways:
        try:
            text, size = tail(way)
        except OSError as err:
            why = f"{log.shown}: {err.strerror}"
            continue
        note = f"from {log.shown}"
        if size > len(text):
            note += f", the last {len(text)} of {size} bytes"
        return target.save(path, text, cap=2 * TAIL, note=note)
    return failed(why or f"{log.shown}: cannot be opened")


def tail(path: str, most: int = TAIL) -> tuple[bytes, int]:
    """The last ``most`` bytes from a line's beginning, and the file's size. Raises OSError.

    A cut line is dropped: it may be the end of a secret whose name was cut off.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        size = os.fstat(fd).st_size
        start = max(0, size - most)
        parts: list[bytes] = []
        at = start
        while at < size:
            part = os.pread(fd, min(1 << 18, size - at), at)
            if not part:
                break
            parts.append(part)
            at += len(part)
        text = b"".join(parts)
        if start:
            text = text.partition(b"\n")[2]
        return text, size
    finally:
        os.close(fd)


COLLECTOR = Collector(
    name="job-log",
    scope="run",
    tier=2,
    source="job-log",
    needs=("output in files",),
    deadline_s=4.0,
    collect=collect,
)
