"""The text of ``py-spy dump``: threads and frames, with or without locals and native frames."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from fabwatch.watchdog.evidence.observations import Frame, ThreadStack

MAX_THREADS = 20_000
MAX_FRAMES = 2_000

_THREAD = re.compile(
    r"^\s?Thread (?P<tid>0x[0-9A-Fa-f]+|\d+) \((?P<how>(?:active|idle)(?:\+gil)?)\)"
    r'(?:: "(?P<name>.*)")?\s*$'
)
_PROCESS = re.compile(r"^Process (?P<pid>\d+): (?P<command>.*)$")
_ASKED = re.compile(r"^\$ .*py-spy dump.*?--pid[= ](?P<pid>\d+)")
_FRAME = re.compile(r"^ {4}(?P<function>\S.*?) \((?P<file>.+?)(?::(?P<line>\d+))?\)\s*$")
_LOCAL = re.compile(r"^ {12,}(?P<name>[\w.]+): (?P<value>.*)$")
_ERROR = re.compile(r"^Error: (?P<text>.*)$")


@dataclass(slots=True)
class Process:
    """One process of a dump."""

    pid: int | None
    command: str = ""
    threads: list[ThreadStack] = field(default_factory=list)


@dataclass(slots=True)
class Dump:
    """What a dump holds. ``failure`` is py-spy's own complaint, ``failure_line`` where."""

    processes: list[Process] = field(default_factory=list)
    native: bool = False
    failure: str = ""
    failure_line: int = 0


@dataclass(slots=True)
class _Thread:
    """The thread that is being read."""

    name: str
    tid: int
    active: bool
    gil: bool
    line: int
    frames: list[Frame] = field(default_factory=list)
    local: list[tuple[str, str]] = field(default_factory=list)

    def end_frame(self) -> None:
        """Give the last frame its locals."""
        if self.local and self.frames:
            last = self.frames[-1]
            self.frames[-1] = Frame(last.function, last.file, last.line, tuple(self.local))
        self.local.clear()

    def made(self) -> ThreadStack:
        """The finished thread."""
        self.end_frame()
        return ThreadStack(
            self.name, self.tid, self.active, self.gil, tuple(self.frames), self.line
        )


def read_text(text: str, first: int = 1) -> Dump:
    """Read a dump; ``first`` is the number of its first line."""
    dump = Dump()
    asked: int | None = None
    thread: _Thread | None = None

    def end_thread() -> None:
        nonlocal thread
        if thread is not None:
            if not dump.processes:
                dump.processes.append(Process(asked))
            if len(dump.processes[-1].threads) < MAX_THREADS:
                dump.processes[-1].threads.append(thread.made())
        thread = None

    for number, raw in enumerate(text.split("\n"), first):
        line = raw.rstrip("\r")
        if match := _THREAD.match(line):
            end_thread()
            tid, how = match["tid"][:20], match["how"]
            thread = _Thread(
                match["name"] or "",
                int(tid, 16) if tid.startswith("0x") else int(tid),
                how.startswith("active"),
                how.endswith("gil"),
                number,
            )
        elif thread is not None and (match := _FRAME.match(line)):
            thread.end_frame()
            if len(thread.frames) < MAX_FRAMES:
                file = match["file"]
                thread.frames.append(
                    Frame(match["function"], file, int((match["line"] or "0")[:9]))
                )
                if ".so" in file and not match["line"]:
                    dump.native = True
        elif thread is not None and (match := _LOCAL.match(line)):
            if len(thread.local) < 64:
                thread.local.append((match["name"], match["value"][:200]))
        elif match := _PROCESS.match(line):
            end_thread()
            dump.processes.append(Process(int(match["pid"][:10]), match["command"][:4000]))
        elif match := _ASKED.match(line):
            asked = int(match["pid"][:10])
            dump.native = dump.native or "--native" in line
        elif (match := _ERROR.match(line)) and not dump.failure:
            dump.failure, dump.failure_line = match["text"][:400], number
    end_thread()
    dump.processes = [process for process in dump.processes if process.threads]
    return dump
