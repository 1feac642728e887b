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
from fabwatch.watchdog.evidence.py_spy_text import MAX_FRAMES, MAX_THREADS, Process, read_text

NAME = "py-spy"
MAKES = ("python-stack", "native-stack")

_SNIFF = re.compile(rb"^\s?Thread (?:0x[0-9A-Fa-f]+|\d+) \((?:active|idle)", re.M)
_HEADER = re.compile(rb"^Process \d+: .*\nPython v\d", re.M)


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


def _from_text(artefact: Artefact, text: str, errors: list[ReadError]) -> Parsed:
    dump = read_text(text)
    if dump.failure:
        errors.append(
            artefact.error(
                f"py-spy failed: {dump.failure}", str(dump.failure_line), "take the stack again"
            )
        )
    if not dump.processes:
        if not dump.failure:
            errors.append(artefact.error("holds no thread", advice="take the stack again"))
        return Parsed(errors=tuple(errors))
    return _result(artefact, dump.processes, dump.native, errors)


def _result(
    artefact: Artefact, made: list[Process], native: bool, errors: list[ReadError]
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
    made, native = processes_of(value)
    if not made:
        errors.append(artefact.error("holds no thread", advice="take the stack again"))
        return Parsed(errors=tuple(errors))
    return _result(artefact, made, native, errors)


def processes_of(value: Any) -> tuple[list[Process], bool]:
    """The processes of py-spy's JSON (a list of threads), and whether frames are native."""
    processes: dict[int | None, Process] = {}
    native = False
    for item in value[:MAX_THREADS] if isinstance(value, list) else []:
        if not isinstance(item, dict):
            continue
        pid = _number(item.get("pid"))
        process = processes.setdefault(pid, Process(pid))
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
    return [p for p in processes.values() if p.threads], native


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
