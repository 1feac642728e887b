"""Read py-spy dumps: text with or without native frames and locals, and JSON.

Example::

    Process 1384: /usr/bin/python3 -u train.py
    Python v3.12.3 (/usr/bin/python3.12)

    Thread 1384 (active+gil): "MainThread"
        step (train.py:23)
            Locals:
                dst: 1
        <module> (train.py:55)
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from fabwatch.watchdog.evidence.artefact import Artefact
from fabwatch.watchdog.evidence.observations import (
    Frame,
    Parsed,
    RankStacks,
    ReadError,
    ThreadStack,
)

NAME = "py-spy"
MAKES = ("python-stack", "native-stack")

MAX_THREADS = 20_000
MAX_FRAMES = 2_000

_THREAD = re.compile(
    r"^\s?Thread (?P<tid>0x[0-9A-Fa-f]+|\d+) \((?P<how>(?:active|idle)(?:\+gil)?)\)"
    r'(?:: "(?P<name>.*)")?\s*$'
)
_SNIFF = re.compile(rb"^\s?Thread (?:0x[0-9A-Fa-f]+|\d+) \((?:active|idle)", re.M)
_HEADER = re.compile(rb"^Process \d+: .*\nPython v\d", re.M)
_PROCESS = re.compile(r"^Process (?P<pid>\d+): (?P<command>.*)$")
_ASKED = re.compile(r"^\$ .*py-spy dump.*?--pid[= ](?P<pid>\d+)")
_FRAME = re.compile(r"^ {4}(?P<function>\S.*?) \((?P<file>.+?)(?::(?P<line>\d+))?\)\s*$")
_LOCAL = re.compile(r"^ {12,}(?P<name>[\w.]+): (?P<value>.*)$")
_ERROR = re.compile(r"^Error: (?P<text>.*)$")


def sniff(head: bytes, name: str) -> int:
    """Thread headers as py-spy writes them."""
    if _SNIFF.search(head[:16384]):
        return 90
    if _HEADER.search(head[:4096]) or b"py-spy dump" in head[:300]:
        return 85
    start = head.lstrip()[:1]
    if start == b"[" and b'"owns_gil"' in head and b'"frames"' in head:
        return 90
    return 0


def parse(artefact: Artefact) -> Parsed:
    """One RankStacks for each process in the dump."""
    text, cut = artefact.text()
    errors: list[ReadError] = []
    if cut:
        errors.append(artefact.error("too large", advice="only its start was read"))
    if text.lstrip()[:1] == "[":
        return _from_json(artefact, text, errors)
    return _from_text(artefact, text, errors)


class _Process:
    """One process of a dump while it is read."""

    def __init__(self, pid: int | None, command: str = "", line: int = 0) -> None:
        self.pid = pid
        self.command = command
        self.line = line
        self.threads: list[ThreadStack] = []
        self.native = False


def _from_text(artefact: Artefact, text: str, errors: list[ReadError]) -> Parsed:
    processes: list[_Process] = []
    asked: int | None = None
    asked_native = False
    failure = ""
    head: tuple[str, int | None, bool, bool, int] | None = None
    frames: list[Frame] = []
    local: list[tuple[str, str]] = []

    def close_frame() -> None:
        if local and frames:
            last = frames[-1]
            frames[-1] = Frame(last.function, last.file, last.line, tuple(local))
        local.clear()

    def close_thread() -> None:
        nonlocal head
        close_frame()
        if head is not None:
            if not processes:
                processes.append(_Process(asked))
            if len(processes[-1].threads) < MAX_THREADS:
                name, tid, active, gil, line = head
                processes[-1].threads.append(
                    ThreadStack(name, tid, active, gil, tuple(frames), line)
                )
        head = None
        frames.clear()

    for number, raw in enumerate(text.split("\n"), 1):
        line = raw.rstrip("\r")
        if match := _THREAD.match(line):
            close_thread()
            tid = match["tid"]
            how = match["how"]
            head = (
                match["name"] or "",
                int(tid, 16) if tid.startswith("0x") else int(tid),
                how.startswith("active"),
                how.endswith("gil"),
                number,
            )
        elif head is not None and (match := _FRAME.match(line)):
            close_frame()
            if len(frames) < MAX_FRAMES:
                file = match["file"]
                frames.append(Frame(match["function"], file, int((match["line"] or "0")[:9])))
                if ".so" in file and not match["line"]:
                    asked_native = True
        elif head is not None and (match := _LOCAL.match(line)):
            if len(local) < 64:
                local.append((match["name"], match["value"][:200]))
        elif match := _PROCESS.match(line):
            close_thread()
            processes.append(_Process(int(match["pid"][:10]), match["command"][:4000], number))
        elif match := _ASKED.match(line):
            asked = int(match["pid"][:10])
            asked_native = asked_native or "--native" in line or " -n " in line
        elif (match := _ERROR.match(line)) and not failure:
            failure = match["text"]
            errors.append(
                artefact.error(f"py-spy failed: {failure}", str(number), "take the stack again")
            )
    close_thread()
    made = [p for p in processes if p.threads]
    if not made:
        if not failure:
            errors.append(artefact.error("holds no thread", advice="take the stack again"))
        return Parsed(errors=tuple(errors))
    native = asked_native or any(p.native for p in made)
    return _result(artefact, made, native, errors)


def _result(
    artefact: Artefact, made: list[_Process], native: bool, errors: list[ReadError]
) -> Parsed:
    kind = "native-stack" if native else "python-stack"
    source = artefact.source(kind)
    looked = [source]
    if native:  # a native dump shows the Python frames too
        looked.append(artefact.source("python-stack"))
    out = tuple(
        RankStacks(
            source,
            source.rank if index == 0 else None,
            process.pid if process.pid is not None else artefact.hint.pid,
            native,
            process.command,
            tuple(process.threads),
        )
        for index, process in enumerate(made)
    )
    return Parsed(out, tuple(errors), tuple(looked))


def _from_json(artefact: Artefact, text: str, errors: list[ReadError]) -> Parsed:
    try:
        value = msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError, ValueError) as err:
        errors.append(artefact.error(f"broken JSON: {err}", advice="take the stack again"))
        return Parsed(errors=tuple(errors))
    processes: dict[int | None, _Process] = {}
    native = False
    for item in value[:MAX_THREADS] if isinstance(value, list) else []:
        if not isinstance(item, dict):
            continue
        pid = _number(item.get("pid"))
        process = processes.setdefault(pid, _Process(pid))
        info = item.get("process_info")
        if isinstance(info, dict) and isinstance(info.get("command_line"), str):
            process.command = info["command_line"][:4000]
        frames = []
        raw = item.get("frames")
        for one in raw[:MAX_FRAMES] if isinstance(raw, list) else []:
            if isinstance(one, dict):
                file = str(one.get("short_filename") or one.get("filename") or "")[:1000]
                line = _number(one.get("line")) or 0
                native = native or (not line and ".so" in file)
                frames.append(
                    Frame(str(one.get("name") or "")[:400], file, line, _locals(one.get("locals")))
                )
        process.threads.append(
            ThreadStack(
                str(item.get("thread_name") or "")[:200],
                _number(item.get("os_thread_id")) or _number(item.get("thread_id")),
                item.get("active") is True,
                item.get("owns_gil") is True,
                tuple(frames),
            )
        )
    made = [p for p in processes.values() if p.threads]
    if not made:
        errors.append(artefact.error("holds no thread", advice="take the stack again"))
        return Parsed(errors=tuple(errors))
    return _result(artefact, made, native, errors)


def _locals(raw: Any) -> tuple[tuple[str, str], ...]:
    if not isinstance(raw, list):
        return ()
    return tuple(
        (str(one.get("name"))[:80], str(one.get("repr"))[:200])
        for one in raw[:64]
        if isinstance(one, dict)
    )


def _number(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value < 1 << 63 else None
