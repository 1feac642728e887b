"""Orders the deaths of ranks: the first cause, and everybody whom it merely took along."""

from __future__ import annotations

import itertools
import re
import signal as signals
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from fabwatch.signatures.analysis.stages import is_user
from fabwatch.watchdog.evidence.facts import Facts, fact
from fabwatch.watchdog.evidence.observations import Exit, LogEvent, PythonError

CONSEQUENT = re.compile(
    r"Connection closed by peer|Connection reset by peer|Application timeout caused pair closure"
    r"|gloo.{0,200}(Timed out waiting|Read error|Write error)|Gloo connectFullMesh failed"
    r"|ProcessGroup\w* watchdog|Watchdog caught collective|collective operation timeout"
    r"|NCCL communicator was aborted|ncclRemoteError|remote process exited|remote error detected"
    r"|Failed to recv, got 0 bytes|recvValue|sendBytes failed|Broken pipe"
    r"|wait timeout after|Socket Timeout|waitForInput|store->get|TCPStore"
    r"|monitored_?barrier|op\.preamble\.length|Detected mismatch between collectives"
    r"|exhausted inputs|SignalException|got signal: (15|2|1)\b"
    r"|rendezvous.{0,80}(closed|timed? ?out)",
    re.I | re.S,
)
_CONSEQUENT_TYPES = frozenset(
    {
        "DistBackendError",
        "DistNetworkError",
        "DistStoreError",
        "ChildFailedError",
        "BrokenPipeError",
        "SignalException",
        "KeyboardInterrupt",
        "RendezvousClosedError",
        "RendezvousTimeoutError",
        "RendezvousConnectionError",
        "ConnectionResetError",
    }
)
_WORKER_KILLED = re.compile(
    r"DataLoader worker \(pid\(?s?\)? ?[^)]*\) (exited unexpectedly|is killed by signal)"
    r"|DataLoader worker .*(killed by signal|exited unexpectedly)",
    re.S,
)
_WORKER_GONE = ("ConnectionResetError", "ConnectionRefusedError", "EOFError", "BrokenPipeError")
"""What a rank sees of a worker that died while it was asked for a tensor's file descriptor."""
_WORKER_FAILED = re.compile(r"Caught \w+ in DataLoader worker process")
_CUDA_OOM = re.compile(
    r"CUDA out of memory(?!\. Tried to allocate more than 1EB)|CUDA error: out of memory"
    r"|OutOfMemoryError(?!.{0,40}Tried to allocate more than 1EB)",
    re.S,
)
_GARBAGE_SIZE = re.compile(r"Tried to allocate more than 1EB memory")
"""A size that never arrived: what was received is no number, and no memory was short."""
_OURS = re.compile(r"^(?:python|pt_|ray::|torchrun|VLLM|vllm|accelerate|deepspeed|mpi)")
_STICKY = re.compile(
    r"CUDA error: (an illegal memory access|device-side assert|unspecified launch failure"
    r"|misaligned address|uncorrectable ECC|an illegal instruction)|CUBLAS_STATUS_EXECUTION_FAILED"
)
_HOST_MEMORY = re.compile(r"\bMemoryError\b|[Cc]annot allocate memory|std::bad_alloc")
_FAULT_SIGNALS = {signals.SIGSEGV, signals.SIGBUS, signals.SIGFPE, signals.SIGILL}
_OUTSIDE = {signals.SIGTERM, signals.SIGINT, signals.SIGHUP}


ALONE_S = 0.5
"""Epoch seconds between the ends of two ranks that one order to a launcher cannot explain."""


@dataclass(frozen=True, slots=True)
class Death:
    """One rank's end, judged.

    ``kind`` is exception, killed, oom, segfault, abort, exit, left,
    terminated or victim; ``primary`` when nothing else explains it. ``spoke``: an exception of its
    own says that it was a victim.
    """

    rank: int
    kind: str
    primary: bool
    order: float
    frame: str = ""
    cites: tuple[str, ...] = ()
    what: str = ""
    spoke: bool = False


@dataclass(slots=True)
class Deaths:
    """All deaths.

    ``first`` are the ranks that began it, () when nobody died of a cause of its own. ``gone`` are
    all ranks whose process has ended. ``leaving`` ranks had a consequent exception before the
    standstill was noted.
    """

    first: tuple[Death, ...] = ()
    gone: dict[int, Death] = field(default_factory=dict)
    left: tuple[Death, ...] = ()
    leaving: dict[int, str] = field(default_factory=dict)


_FROM_WORKER = re.compile(
    r"(torch/utils/data/|multiprocessing/(queues|connection|resource_sharer))"
)


def from_loader_worker(error: PythonError) -> bool:
    """Whether a broken connection is the one to a data-loader worker, not to another rank."""
    innermost = error.frames[-4:]
    return any("torch/utils/data/" in f.file for f in error.frames) and any(
        _FROM_WORKER.search(f.file) for f in innermost
    )


def is_consequent(error: PythonError) -> bool:
    """Whether a peer's failure, a time-out or the launcher explains this exception."""
    if from_loader_worker(error):
        return False
    if error.type.rsplit(".", 1)[-1] in _CONSEQUENT_TYPES:
        return True
    text = f"{error.type}: {error.text}"
    return bool(CONSEQUENT.search(text) or _GARBAGE_SIZE.search(text))


_NEAR = 8


def _completed(error: PythonError, events: list[LogEvent]) -> PythonError:
    """A traceback whose last line was not taken apart gets its words from an event beside it."""
    path, _, line = error.cite.rpartition(":")
    if error.type or error.text or not line.isdigit():
        return error
    for event in events:
        near = event.source.path == path and abs(event.line - int(line)) <= _NEAR
        if near and CONSEQUENT.search(event.text):
            return replace(error, text=event.text)
    return error


def normal_exit(one: Exit) -> tuple[int | None, int | None]:
    """Exit code and signal, with a shell's 128 + n and a launcher's -n undone."""
    code, number = one.code, one.signal
    if number is None and code is not None:
        if code < 0:
            return None, -code
        if 128 < code <= 128 + 64 and code - 128 in (1, 2, 4, 6, 7, 8, 9, 11, 15):
            return None, code - 128
    return code, number


def judge(
    exits: Iterable[Exit],
    errors: Iterable[PythonError],
    events: Iterable[LogEvent],
    rank_of_pid: Mapping[int, int],
    waiting: bool,
    timed_out: bool,
    since: float | None,
    facts: Facts,
    living: frozenset[int] = frozenset(),
) -> Deaths:
    """Add exit and exception facts; say who began it.

    ``living``: ranks whose process was seen to live when the evidence was taken.

    ``waiting``: somebody waits in an operation. ``timed_out``: the job reported a time-out, after
    which torch's own watchdog aborts processes. ``since``: epoch seconds at which a standstill
    was noted; whoever died after it did not cause it.
    """
    events, exits, errors = list(events), list(exits), list(errors)
    # A kill that no pid claims was another program's when nobody of the job is missing.
    unharmed = bool(living) and living >= facts.ranks and not exits and not errors
    counted = unharmed or any(one.oom_killed is not None for one in exits)
    errors = [_completed(error, events) for error in errors]
    leaving = {
        e.rank: e.type
        for e in errors
        if e.rank is not None and since is not None and e.when is not None and e.when <= since
        if is_consequent(e)
    }
    if since is not None:
        # Who leaves with code 0 before anybody fails was on its way out while the others waited.
        exits = sorted(exits, key=lambda e: (e.when or 0.0, e.order or 0))
        leavers = list(itertools.takewhile(lambda e: normal_exit(e) == (0, None), exits))
        failing = {e.rank for e in errors if e.when is not None and e.when < since}
        exits = [
            e
            for e in exits
            if e.when is None or e.when < since or e in leavers or e.rank in failing
        ]
        errors = [e for e in errors if e.when is None or e.when < since]
    last: dict[int, Exit] = {}
    for one in exits:
        known = last.get(one.rank)
        if known is None or (one.when or 0) >= (known.when or 0):
            last[one.rank] = one
    by_rank: dict[int, list[PythonError]] = defaultdict(list)
    nameless: list[PythonError] = []
    for error in errors:
        if error.rank is None:
            nameless.append(error)
        else:
            by_rank[error.rank].append(error)
    _claim_nameless(nameless, by_rank, last)
    oom = _oom_ranks(last, events, rank_of_pid, counted, facts)
    told = bool(nameless) and all(is_consequent(e) for e in nameless)
    aborts = told or timed_out or any(CONSEQUENT.search(e.text) for e in events)
    deaths: dict[int, Death] = {}
    for rank in sorted(set(last) | set(by_rank)):
        death = _death(rank, last.get(rank), by_rank.get(rank, []), oom)
        if death is not None and (
            (death.kind == "abort" and aborts) or (death.kind == "exit" and told)
        ):
            death = replace(death, kind="victim", primary=False)
        if death is not None:
            deaths[rank] = death
    _hit_alone(deaths, last, facts.ranks)
    if any(
        d.kind in ("exception", "killed", "oom", "segfault", "abort", "exit", "victim")
        for d in deaths.values()
    ):
        waiting = True
    _say_errors(by_rank, nameless, facts)
    gone = {r: d for r, d in deaths.items() if r in last}
    left = tuple(d for d in deaths.values() if d.kind == "left") if waiting else ()
    alive = len(last) < len(set(last) | set(by_rank)) or any(
        d.kind != "left" for d in gone.values()
    )
    if not (left and (waiting or alive)) or {d.rank for d in left} >= facts.ranks | set(last):
        left = ()  # nobody waits, or all have left: that is how a job ends
    first = _first(deaths, left)
    _say_deaths(deaths, first, left, last, facts)
    return Deaths(first, gone, left, leaving)


def _hit_alone(deaths: dict[int, Death], last: Mapping[int, Exit], known: Iterable[int]) -> None:
    """A SIGTERM that one rank got while the others lived on was meant for that rank alone.

    A launcher that is told to end signals all its ranks within milliseconds of each other.
    """
    ended = [d for d in deaths.values() if d.kind == "terminated"]
    if len(ended) != 1:
        return
    one = ended[0]
    if one.order >= 1e12:
        return  # without a clock nobody knows who outlived it
    others = (set(known) | set(last)) - {one.rank}
    lived = [
        rank
        for rank in others
        if rank not in last or (when := last[rank].when) is None or when - one.order >= ALONE_S
    ]
    if others and len(lived) == len(others):
        deaths[one.rank] = replace(one, kind="killed", primary=True)


def _claim_nameless(
    nameless: list[PythonError], by_rank: dict[int, list[PythonError]], last: Mapping[int, Exit]
) -> None:
    """Give an exception that no log prefix attributes to the only rank that can have raised it."""
    causes = [e for e in nameless if not is_consequent(e)]
    failed = [
        r
        for r, one in last.items()
        if not one.ours and normal_exit(one)[0] not in (0, None) and r not in by_rank
    ]
    if len(failed) == 1 and len({(e.type, e.text) for e in causes}) == 1:
        by_rank[failed[0]].append(causes[0])
        nameless[:] = [e for e in nameless if e not in causes]


def _oom_ranks(
    last: Mapping[int, Exit],
    events: Iterable[LogEvent],
    rank_of_pid: Mapping[int, int],
    counted: bool,
    facts: Facts,
) -> dict[int, tuple[str, ...]]:
    """Ranks that the OOM killer ended; ``counted``: somebody looked at an exit's cgroup."""
    out: dict[int, tuple[str, ...]] = {}
    pids = {one.pid: rank for rank, one in last.items() if one.pid} | dict(rank_of_pid)
    scope: dict[int, str] = {}
    for rank, one in last.items():
        if one.oom_killed:
            out[rank] = (one.cite or one.source.cite(),)
            scope[rank] = "cgroup"
    for event in events:
        if event.source.kind not in ("kernel-log", "cgroup") or "oom" not in event.kind.lower():
            continue
        text = event.get("pid")
        pid = int(text) if text.isdigit() else None
        who = pids.get(pid) if pid is not None else event.rank
        if who is not None:
            out[who] = (*out.get(who, ()), event.cite)
            scope.setdefault(who, _oom_scope(event) or "global")
    if not out and not counted:
        _unclaimed_oom(events, facts)
    for rank, cites in sorted(out.items()):
        facts.add(fact("process.oom-killed", ranks=[rank], cites=cites, scope=scope[rank]))
    return out


def _oom_scope(event: LogEvent) -> str:
    """What was out of memory: "cgroup", "global" (the host), "" when the line does not say.

    A kill of the host names the victim's cgroup as well: only the constraint tells.
    """
    if said := event.get("scope"):
        return said
    return "cgroup" if re.search(r"[Mm]emory cgroup|oom_memcg=|memcg", event.text) else ""


def _unclaimed_oom(events: Iterable[LogEvent], facts: Facts) -> None:
    """Kernel kills of a process that looks like the job's, though no pid says whose it was.

    The kernel writes pids of the host, which containers do not know.
    """
    kills: dict[str, list[LogEvent]] = defaultdict(list)
    scope: dict[str, str] = {}
    for event in events:
        if event.source.kind != "kernel-log" or "oom" not in event.kind.lower():
            continue
        host = event.host or ""
        if (said := _oom_scope(event)) and scope.get(host) != "cgroup":
            scope[host] = said
        names = re.findall(r"(?:[Kk]illed? process \d+,? \(|task=|^)([\w:.\-/]+)", event.text)
        if any(_OURS.match(name) for name in names):
            kills[host].append(event)
    for host, seen in kills.items():
        facts.add(
            fact(
                "process.oom-killed",
                hosts=[host] if host else [],
                cites=[event.cite for event in seen[:6]],
                scope=scope.get(host, "global"),
                said_by="kernel",
            )
        )


def _death(
    rank: int,
    one: Exit | None,
    errors: list[PythonError],
    oom: Mapping[int, tuple[str, ...]],
) -> Death | None:
    own = [e for e in errors if not is_consequent(e)]
    when = _order(one, errors)
    cites = tuple(
        dict.fromkeys(
            [
                *([one.cite or one.source.cite()] if one else []),
                *(e.cite or e.source.cite() for e in errors),
            ]
        )
    )
    if rank in oom:
        return Death(rank, "oom", True, when, "", (*cites, *oom[rank]), "out of memory")
    if own:
        error = own[0]
        return Death(rank, "exception", True, when, _frame(error), cites, error.type)
    if one is None:
        return (
            Death(rank, "victim", False, when, "", cites, errors[0].type, True) if errors else None
        )
    if errors or one.ours:
        what = errors[0].type if errors else "ended by the launcher"
        return Death(rank, "victim", False, when, "", cites, what, bool(errors))
    code, number = normal_exit(one)
    if number in _FAULT_SIGNALS:
        return Death(rank, "segfault", True, when, "", cites, f"signal {number}")
    if number == signals.SIGABRT:
        return Death(rank, "abort", True, when, "", cites, "signal 6")
    if number in _OUTSIDE:
        return Death(rank, "terminated", False, when, "", cites, f"signal {number}")
    if number is not None:
        return Death(rank, "killed", True, when, "", cites, f"signal {number}")
    if code == 0:
        return Death(rank, "left", True, when, "", cites, "code 0")
    return Death(rank, "exit", True, when, "", cites, f"code {code}")


def _order(one: Exit | None, errors: list[PythonError]) -> float:
    """The moment of a death; without a clock, its place in the order of exits."""
    times = [e.when for e in errors if e.when is not None]
    if one is not None and one.when is not None:
        times.append(one.when)
    if times:
        return min(times)
    return 1e12 + one.order if one is not None and one.order is not None else 1e13


def _frame(error: PythonError) -> str:
    mine = [f for f in error.frames if is_user(f)]
    frames = mine or list(error.frames)
    return str(frames[-1]) if frames else ""


def _first(deaths: Mapping[int, Death], left: tuple[Death, ...]) -> tuple[Death, ...]:
    """Who began it; ranks that died of the very same exception, or were killed too, count."""
    leavers = {d.rank for d in left}
    causes = [d for d in deaths.values() if d.primary and (d.kind != "left" or d.rank in leavers)]
    if not causes:
        return ()
    strong = [d for d in causes if d.kind not in ("exit", "left", "abort")]
    causes.sort(key=lambda d: (d.order, d.rank))
    head = causes[0]
    if strong and head.kind in ("exit", "abort") and head.order >= 1e12:
        head = min(strong, key=lambda d: (d.order, d.rank))
    same = {head.rank: head}
    for death in causes:
        twin = death.kind == head.kind and death.what == head.what and death.frame == head.frame
        if (twin and death.kind in ("exception", "left", "oom", "killed", "segfault")) or (
            death.kind in ("killed", "oom", "segfault") and head.kind in ("killed", "oom")
        ):
            same[death.rank] = death
    return tuple(same[r] for r in sorted(same))


def _say_errors(
    by_rank: Mapping[int, list[PythonError]], nameless: list[PythonError], facts: Facts
) -> None:
    flat = [(rank, e) for rank, es in sorted(by_rank.items()) for e in es]
    earliest = min(
        (e.when for _, e in flat if e.when is not None and not is_consequent(e)), default=None
    )
    for rank, error in [*flat, *((None, e) for e in nameless)]:
        ranks = [] if rank is None else [rank]
        cites = [error.cite or error.source.cite()]
        text = f"{error.type}: {error.text}"
        name = "exception.consequent" if is_consequent(error) else "exception.raised"
        facts.add(
            fact(
                name,
                ranks=ranks,
                cites=cites,
                type=error.type,
                frame=_frame(error),
                text=error.text[:200],
                first=error.when == earliest,
                nameless=rank is None,
            )
        )
        for pattern, known in (
            (_WORKER_KILLED, "dataloader-worker.killed"),
            (_WORKER_FAILED, "dataloader-worker.failed"),
            (_CUDA_OOM, "cuda.out-of-memory"),
            (_STICKY, "cuda.sticky-error"),
            (_HOST_MEMORY, "memory.host-exhausted"),
        ):
            if pattern.search(text) or (
                known == "dataloader-worker.killed"
                and error.type.endswith(_WORKER_GONE)
                and from_loader_worker(error)
            ):
                facts.add(fact(known, ranks=ranks, cites=cites, text=error.text[:200]))


def _say_deaths(
    deaths: Mapping[int, Death],
    first: tuple[Death, ...],
    left: tuple[Death, ...],
    last: Mapping[int, Exit],
    facts: Facts,
) -> None:
    began = {d.rank for d in first}
    leavers = {d.rank for d in left}
    for rank, death in sorted(deaths.items()):
        one = last.get(rank)
        if one is None:
            continue
        code, number = normal_exit(one)
        begin = rank in began

        def say(
            name: str,
            code: int | None = None,
            signal: int | None = None,
            rank: int = rank,
            cites: tuple[str, ...] = death.cites,
            begin: bool = begin,
        ) -> None:
            end = {"code": code} if signal is None else {"signal": signal}
            facts.add(fact(name, ranks=[rank], cites=cites, first=begin, **end))

        if code not in (0, None):
            say("process.exited", code=code)
        own_fault = number in _FAULT_SIGNALS or number == signals.SIGABRT
        outside = number in _OUTSIDE and death.kind != "killed"
        if number is not None and not one.ours and not outside and not own_fault:
            say("process.killed", signal=number)
        if number in _FAULT_SIGNALS:
            say("process.segfaulted", signal=number)
        if number == signals.SIGABRT and death.primary:
            say("process.aborted", signal=number)
        elif number == signals.SIGABRT:
            facts.unknowable.add("process.aborted")  # it did, as somebody else's victim
        if outside and not one.ours and not began:
            say("process.terminated", signal=number)
        if rank in leavers:
            say("process.left", code=0)
