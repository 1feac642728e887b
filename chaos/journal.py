"""The write-ahead journal of one fault: fsynced JSON lines; a torn tail is survived.

Lines, in order: ``intent`` (everything that the undo needs), any ``note`` (more of it),
``injected``, ``held``, ``reverting``, ``reverted`` or ``unsafe``. A journal without ``reverted``
is in force. Nothing may be touched before ``intent`` is on disk, so a file without a whole
``intent`` stands for a fault that never began.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fabwatch.chaos.model import Json, Refused, Values
from fabwatch.watchdog import procfs

SCHEMA = "fabwatch.chaos.journal/1"


def boot_id() -> str:
    """The kernel's name for this boot; "" when it has none."""
    with contextlib.suppress(OSError):
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return ""


@dataclass
class Record:
    """What a journal says. ``torn``: lines that could not be read."""

    path: Path
    intent: Values | None = None
    state: Values = field(default_factory=Values)
    done: list[str] = field(default_factory=list)
    last: Values = field(default_factory=Values)
    torn: int = 0

    @property
    def id(self) -> str:
        """The file's stem."""
        return self.path.stem

    @property
    def open(self) -> bool:
        """Whether the fault may be in force."""
        return self.intent is not None and "reverted" not in self.done

    @property
    def unsafe(self) -> bool:
        """Whether an attempt to heal failed."""
        return self.open and "unsafe" in self.done

    @property
    def owner(self) -> tuple[int, int]:
        """(pid, start ticks) of the injector; (0, 0) when nobody says."""
        who = (self.intent or Values()).get("injector")
        values = Values(who) if isinstance(who, dict) else Values()
        return (values.whole("pid"), values.whole("start_ticks")) if values else (0, 0)

    def owner_alive(self) -> bool:
        """Whether the injector lives (on this boot)."""
        pid, start = self.owner
        now = procfs.stat(pid) if pid else None
        return (
            now is not None
            and now.start_ticks == start
            and now.state not in "ZX"
            and not self.other_boot()
        )

    def other_boot(self) -> bool:
        """Whether the host was booted since."""
        there = (self.intent or Values()).get("boot")
        return isinstance(there, str) and bool(there) and there != boot_id()


def read(path: Path) -> Record:
    """What is in the file; unreadable lines are counted, never fatal. Raises OSError."""
    record = Record(path)
    for line in path.read_bytes().split(b"\n"):
        if not line.strip():
            continue
        try:
            entry = json.loads(line)
        except ValueError:
            record.torn += 1
            continue
        if not isinstance(entry, dict) or not isinstance(entry.get("do"), str):
            record.torn += 1
            continue
        values = Values(entry)
        what = values.text("do")
        if what == "intent" and record.intent is None:
            record.intent = values
        more = values.get("state")
        if isinstance(more, dict):
            record.state = record.state.plus(more)
        record.done.append(what)
        record.last = values
    return record


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def create(path: Path, intent: Mapping[str, Json]) -> None:
    """Write the intent; it and the file's name are on disk on return. Raises OSError."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    os.close(fd)
    append(path, "intent", {"schema": SCHEMA, "boot": boot_id(), **intent})
    _sync_folder(path.parent)


def append(path: Path, what: str, more: Mapping[str, Json] | None = None) -> None:
    """Add one line; on disk on return. A torn line before it is closed off first."""
    entry = {"do": what, "at": time.time(), "pid": os.getpid(), **(more or {})}
    data = json.dumps(entry, separators=(",", ":")).encode() + b"\n"
    fd = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CLOEXEC)
    try:
        size = os.fstat(fd).st_size
        if size and os.pread(fd, 1, size - 1) != b"\n":
            data = b"\n" + data
        while data:
            data = data[os.write(fd, data) :]
        os.fsync(fd)
    finally:
        os.close(fd)


@contextlib.contextmanager
def locked(path: Path, seconds: float) -> Iterator[bool]:
    """Hold the journal against other healers; yields False when it stayed taken so long."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        until = time.monotonic() + seconds
        got = False
        while True:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                got = True
            if got or time.monotonic() > until:
                break
            time.sleep(0.01)
        yield got
    finally:
        os.close(fd)


@dataclass(frozen=True)
class Store:
    """The folder of all journals of this user, with the audit log."""

    folder: Path

    @classmethod
    def default(cls) -> Store:
        """FABWATCH_CHAOS_STATE, or a private folder that every later run finds again."""
        named = os.environ.get("FABWATCH_CHAOS_STATE")
        if named:
            return cls(Path(named))
        if os.geteuid() == 0:
            return cls(Path("/run/fabwatch/chaos"))
        return cls(Path(f"/tmp/fabwatch-chaos-{os.geteuid()}"))

    def ready(self) -> Store:
        """Make the folder; :class:`Refused` when it is not ours alone."""
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = self.folder.lstat()
        if self.folder.is_symlink() or found.st_uid != os.geteuid():
            raise Refused(f"{self.folder}: not a folder of this user; set FABWATCH_CHAOS_STATE")
        if found.st_mode & 0o022:
            raise Refused(f"{self.folder}: others may write there; chmod 700 it")
        return self

    @contextlib.contextmanager
    def locked(self, seconds: float = 30.0) -> Iterator[None]:
        """One starter at a time: between looking for open journals and writing one's own."""
        lock = self.folder / "lock"
        lock.touch(mode=0o600)
        with locked(lock, seconds) as got:
            if not got:
                raise Refused(f"{lock}: another injector is starting; try again")
            yield

    def path(self, name: str) -> Path:
        """The journal with that id."""
        return self.folder / f"{name}.jsonl"

    def records(self) -> list[Record]:
        """Every journal, oldest first by name; those that vanish meanwhile are left out."""
        found = []
        for path in sorted(self.folder.glob("f-*.jsonl")):
            with contextlib.suppress(FileNotFoundError):
                found.append(read(path))
        return found

    def open_records(self) -> list[Record]:
        """Those in force."""
        return [record for record in self.records() if record.open]

    def put_away(self, record: Record) -> None:
        """Move a closed journal to ``closed/``: what is in force stays quick to list."""
        closed = self.folder / "closed"
        closed.mkdir(mode=0o700, exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            record.path.rename(closed / record.path.name)

    def audit(self, what: str, more: Mapping[str, Json]) -> None:
        """One line for whoever asks later who broke what, when."""
        import socket
        import sys

        entry: dict[str, Json] = {
            "at": time.time(),
            "what": what,
            "host": socket.gethostname(),
            "uid": os.getuid(),
            "login": os.environ.get("SUDO_USER") or os.environ.get("USER") or "",
            "pid": os.getpid(),
            "command": list(sys.argv),
            **more,
        }
        data = json.dumps(entry, separators=(",", ":")).encode() + b"\n"
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        fd = os.open(self.folder / "audit.jsonl", flags, 0o600)
        try:
            os.write(fd, data)
        finally:
            os.close(fd)
