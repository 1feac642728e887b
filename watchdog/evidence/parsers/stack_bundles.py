"""Read stacks that other hang detectors leave: sysom's stackdata, xpu_timer's stacktrace.

Example (sysom, ``00003-00016.stackdata``)::

    {"pid": 4711, "rank": 3, "world_size": 16, "process_state": "S", "stack_data": [...]}

xpu_timer's ``00003-00016.stacktrace`` is a protobuf message of the same: threads as py-spy and as
pstack saw them, pid, rank and state.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec

from fabwatch.watchdog.evidence.artefact import Artefact
from fabwatch.watchdog.evidence.observations import (
    Frame,
    JobShape,
    Observation,
    Parsed,
    ProcessState,
    RankStacks,
    ReadError,
    Source,
    ThreadStack,
)
from fabwatch.watchdog.evidence.parsers.py_spy import processes_of
from fabwatch.watchdog.evidence.protobuf import Broken, fields
from fabwatch.watchdog.evidence.py_spy_text import MAX_FRAMES, MAX_THREADS

NAME = "stack-bundles"
MAKES = ("python-stack", "native-stack", "process")

_NO_DUMP = b'"ray_train_dump_error"'
"""What Ray Train writes in place of a flight-recorder dump that it did not get."""
_LIMIT = 64 * 1024 * 1024
_RANKS = 10_000_000
_PSTACK, _PYTHON, _PID, _RANK, _STATE = 1, 2, 3, 4, 11


def sniff(head: bytes, name: str) -> int:
    """The keys of sysom's JSON, or a message whose first part is a thread with frames."""
    start = head.lstrip()[:1]
    if start == b"{" and _NO_DUMP in head[:200]:
        return 97
    if start == b"{":
        keys = (b'"rank"', b'"world_size"', b'"pid"')
        ours = b'"stack_data"' in head or b'"process_tree"' in head
        return 93 if ours and all(key in head for key in keys) else 0
    if head[:1] in (b"\x0a", b"\x12"):
        try:
            number, value = next(iter(fields(head)))
        except (Broken, StopIteration):
            return 75 if name.endswith(".stacktrace") else 0
        return 75 if isinstance(value, bytes) and _thread(value, number) is not None else 0
    return 0


def parse(artefact: Artefact) -> Parsed:
    """The stacks of one rank, its state, and the size of the job."""
    data, _ = artefact.read(_LIMIT)
    if data.lstrip()[:1] == b"{":
        return _sysom(artefact, data)
    return _xpu_timer(artefact, data)


def _sysom(artefact: Artefact, data: bytes) -> Parsed:
    try:
        value = msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError, ValueError) as err:
        return Parsed(errors=(artefact.error(f"broken JSON: {err}", advice="copy it again"),))
    if not isinstance(value, dict):
        return Parsed(errors=(artefact.error("not an object", advice="not used"),))
    if why := value.get(_NO_DUMP.decode().strip('"')):
        problem = f"Ray got no dump of this rank: {str(why)[:200]}"
        return Parsed(errors=(artefact.error(problem, advice="its other files may say more"),))
    rank, pid = _small(value.get("rank"), _RANKS), _small(value.get("pid"), 1 << 31)
    world = _small(value.get("world_size"), _RANKS)
    source = artefact.source("python-stack", rank=rank)
    out: list[Observation] = []
    if rank is not None and pid is not None:
        out.append(JobShape(source, world, ((rank, source.host or "", pid),)))
    threads = value.get("stack_data")
    made, native = processes_of(threads if isinstance(threads, list) else [])
    for index, one in enumerate(made):
        out.append(
            RankStacks(source, rank if index == 0 else None, one.pid or pid, native, one.command,
                       tuple(one.threads))
        )  # fmt: skip
    looked = [source] if made else []
    if made and native:
        looked.append(replace(source, kind="native-stack"))
    _state(out, looked, artefact, rank, pid, value.get("process_state"))
    if "stack_data" in value and not made:
        return Parsed(
            tuple(out),
            (artefact.error("holds no thread", advice="py-spy failed or ran out of time there"),),
            tuple(looked),
        )
    return Parsed(tuple(out), (), tuple(looked))


def _state(
    out: list[Observation],
    looked: list[Source],
    artefact: Artefact,
    rank: int | None,
    pid: int | None,
    said: Any,
) -> None:
    """The state letter of the process, when it is one."""
    letter = str(said or "").strip()[:1]
    if pid is None or letter not in tuple("RSDTtZX"):
        return
    source = artefact.source("process", rank=rank)
    out.append(ProcessState(source=source, rank=rank, pid=pid, state=letter))
    looked.append(source)


def _xpu_timer(artefact: Artefact, data: bytes) -> Parsed:
    python: list[ThreadStack] = []
    native: list[ThreadStack] = []
    numbers: dict[int, int] = {}
    state = problem = ""
    try:
        for number, value in fields(data):
            if isinstance(value, int):
                numbers[number] = value
            elif number in (_PSTACK, _PYTHON):
                into = python if number == _PYTHON else native
                thread = _thread(value, number)
                if thread is not None and len(into) < MAX_THREADS:
                    into.append(thread)
            elif number == _STATE:
                state = value.decode("utf-8", "replace")
    except Broken as err:
        problem = str(err)
    errors: tuple[ReadError, ...] = ()
    if problem:
        errors = (artefact.error(f"broken message: {problem}", advice="copy it again"),)
    rank, pid = _small(numbers.get(_RANK, 0), _RANKS), _small(numbers.get(_PID), 1 << 31)
    if not python and not native:
        return Parsed(errors=errors or (artefact.error("holds no thread", advice="not used"),))
    out: list[Observation] = []
    looked: list[Source] = []
    for kind, threads in (("python-stack", python), ("native-stack", native)):
        if threads:
            source = artefact.source(kind, rank=rank)
            looked.append(source)
            out.append(RankStacks(source, rank, pid, kind == "native-stack", "", tuple(threads)))
    _state(out, looked, artefact, rank, pid, state)
    return Parsed(tuple(out), errors, tuple(looked))


def _thread(data: bytes, number: int) -> ThreadStack | None:
    """One thread of field 1 (pstack) or 2 (py-spy); None when the bytes are something else."""
    name, tid, active, gil = "", None, False, False
    frames: list[Frame] = []
    python = number == _PYTHON
    try:
        for field, value in fields(data):
            if isinstance(value, int):
                if python and field == 4:
                    tid = value if value < 1 << 31 else None
                active = active or (python and field == 5 and value == 1)
                gil = gil or (python and field == 6 and value == 1)
            elif field == (3 if python else 2):
                name = value.decode("utf-8")[:200]
            elif field == (7 if python else 3):
                texts = {n: v.decode("utf-8") for n, v in fields(value) if isinstance(v, bytes)}
                if len(frames) < MAX_FRAMES:
                    frames.append(Frame(texts.get(1, "")[:400], texts.get(2, "")[:1000]))
            else:
                return None
    except (Broken, UnicodeDecodeError):
        return None
    return ThreadStack(name, tid, active, gil, tuple(frames)) if frames else None


def _small(value: Any, below: int) -> int | None:
    return value if type(value) is int and 0 <= value < below else None
