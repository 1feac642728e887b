"""What one raw artefact says, typed: the parsers make these, the analysis reads them.

An observation is about one rank or one host and carries its citation. Nothing here compares
ranks; that is the analysis' work (fabwatch.signatures.analysis).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Source:
    """Where an observation comes from.

    ``path`` is relative to what was read (bundle, directory) and is what citations print.
    ``kind`` is a source name of :mod:`fabwatch.watchdog.evidence.vocabulary`. ``snapshot`` counts
    from 1: the same artefact taken again later has the next number. ``taken`` is epoch seconds of
    the taking host's clock, None if the artefact does not say.
    """

    path: str
    kind: str
    rank: int | None = None
    host: str | None = None
    snapshot: int = 1
    taken: float | None = None

    def cite(self, where: int | str | None = None) -> str:
        """``path``, ``path:line`` for an int, ``path#record`` for a str."""
        if where is None:
            return self.path
        return f"{self.path}:{where}" if isinstance(where, int) else f"{self.path}#{where}"


@dataclass(frozen=True, slots=True)
class Frame:
    """One stack frame. ``locals`` holds only what a collector let through (peer ranks, tags)."""

    function: str
    file: str = ""
    line: int = 0
    locals: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        """``train.py:35 next_batch``."""
        place = f"{self.file}:{self.line}" if self.line else self.file
        return f"{place} {self.function}".strip()


# ------------------------------------------------------------------ flight recorder


@dataclass(frozen=True, slots=True)
class Group:
    """A process group. ``ranks`` are global ranks in group order; () when the dump lost them."""

    name: str
    desc: str = ""
    ranks: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class GroupStatus:
    """High-water marks of one group on one rank; -1 is none (or, for started, not recorded).

    On Gloo these count operation ids, send/recv included: one rank's own liveness, never
    comparable across ranks.
    """

    enqueued: int = -1
    started: int = -1
    completed: int = -1


@dataclass(frozen=True, slots=True)
class Op:
    """One recorded operation, spelling normalised: ``op`` is all_reduce, never ALLREDUCE.

    ``index`` is the position in the dump (for citations). ``seq`` is collective_seq_id: comparable
    inside a group for collectives. ``finished`` folds the backends' conventions: NCCL
    state == completed, Gloo retired. ``started`` is None when this recording cannot tell (no
    timing). ``sizes_in``/``sizes_out`` are shapes per tensor; ``dtypes_*`` torch scalar type names.
    Times are epoch nanoseconds of the rank's host.
    """

    index: int
    record_id: int
    group: str
    seq: int
    op: str
    backend: str = ""
    p2p_seq: int = 0
    op_id: int = 0
    is_p2p: bool = False
    peer: tuple[int, int] | None = None  # (src, dst), group ranks
    sizes_in: tuple[tuple[int, ...], ...] = ()
    sizes_out: tuple[tuple[int, ...], ...] = ()
    dtypes_in: tuple[str, ...] = ()
    dtypes_out: tuple[str, ...] = ()
    finished: bool = False
    started: bool | None = None
    retired: bool = False
    created_ns: int | None = None
    started_ns: int | None = None
    completed_ns: int | None = None
    timeout_ms: int | None = None
    thread: str = ""
    frames: tuple[Frame, ...] = ()


@dataclass(frozen=True, slots=True)
class RankTrace:
    """One flight-recorder dump of one rank. ``ops`` are oldest first.

    ``status`` is keyed by the rank-local group id; ``group_ids`` maps group name -> that id as far
    as entries tell. ``backend`` is "nccl", "gloo", ... by majority of entries, "" if none.
    ``wrapped`` says that older operations were overwritten (first record_id > 0). A long dump keeps
    its operations in columns (:mod:`fabwatch.watchdog.evidence.op_columns`).
    """

    source: Source
    rank: int
    version: str = ""
    comm_lib_version: str = ""
    backend: str = ""
    groups: tuple[Group, ...] = ()
    status: tuple[tuple[str, GroupStatus], ...] = ()
    group_ids: tuple[tuple[str, str], ...] = ()
    ops: Sequence[Op] = ()
    wrapped: bool = False
    truncated: bool = False


@dataclass(frozen=True, slots=True)
class ProgressPage:
    """The probe's page of one rank: pg_status and groups with a time stamp.

    ``age_s``: seconds since the probe's last tick when it was read. ``stale`` is decided by the
    reader (several missed ticks): the interpreter could not run a Python thread (GIL held,
    stopped, frozen).
    """

    source: Source
    rank: int
    pid: int
    world_size: int | None = None
    local_rank: int | None = None
    tick: int = 0
    age_s: float = 0.0
    stale: bool = False
    torch_version: str = ""
    groups: tuple[Group, ...] = ()
    status: tuple[tuple[str, GroupStatus], ...] = ()  # keys "gloo:0", "nccl:0": recorder:pg id


# ------------------------------------------------------------------ stacks


@dataclass(frozen=True, slots=True)
class ThreadStack:
    """One thread, innermost frame first."""

    name: str
    os_tid: int | None = None
    active: bool = False
    gil: bool = False
    frames: tuple[Frame, ...] = ()
    line: int = 0  # where it stands in the artefact


@dataclass(frozen=True, slots=True)
class RankStacks:
    """Stacks of one process. ``native`` when C frames are mixed in."""

    source: Source
    rank: int | None
    pid: int | None = None
    native: bool = False
    command: str = ""
    threads: tuple[ThreadStack, ...] = ()

    @property
    def main(self) -> ThreadStack | None:
        """The main thread: by name, else the one whose tid is the pid, else the first."""
        for thread in self.threads:
            if thread.name == "MainThread" or (self.pid and thread.os_tid == self.pid):
                return thread
        return self.threads[0] if self.threads else None


# ------------------------------------------------------------------ processes


@dataclass(frozen=True, slots=True)
class ProcessState:
    """What /proc says of one rank's process. Counters are cumulative; None is not readable."""

    source: Source
    rank: int | None
    pid: int
    state: str = ""  # R S D T t Z X
    comm: str = ""
    command: str = ""
    threads: int | None = None
    wchan: str = ""
    kernel_stack: tuple[str, ...] = ()
    frozen: bool | None = None
    cgroup: str = ""
    cpu_ticks: int | None = None
    read_bytes: int | None = None
    write_bytes: int | None = None
    rss_kb: int | None = None
    start_ticks: int | None = None
    tracer_pid: int | None = None
    children: tuple[tuple[int, str, str], ...] = ()  # (pid, state, comm)
    line: int = 0  # of a list of processes; 0 for a file that is all about this one


@dataclass(frozen=True, slots=True)
class Exit:
    """The end of one rank's process. ``code`` is the exit code, ``signal`` the number if killed.

    ``order`` counts exits of a run from 1 by the moment they were seen. ``ours`` is True when
    the launcher had already begun to end this rank (SIGTERM after somebody else's failure).
    """

    source: Source
    rank: int
    pid: int | None = None
    code: int | None = None
    signal: int | None = None
    when: float | None = None
    order: int | None = None
    ours: bool = False
    oom_killed: bool | None = None
    cite: str = ""


@dataclass(frozen=True, slots=True)
class PythonError:
    """An uncaught Python exception. ``rank`` None: the log does not say whose.

    ``frames`` innermost LAST as Python prints them. ``text`` is the message, clipped.
    """

    source: Source
    rank: int | None
    type: str
    text: str = ""
    frames: tuple[Frame, ...] = ()
    when: float | None = None
    cite: str = ""


@dataclass(frozen=True, slots=True)
class LogEvent:
    """One recognised line of a log. ``kind`` is the pattern's name (``nccl.watchdog-timeout``).

    ``fields`` are the pattern's named groups, as text. ``rank``/``host`` from the line's prefix or
    the file, None if unsaid. ``order`` is the line number, so that events of one file sort.
    """

    source: Source
    kind: str
    line: int
    text: str = ""
    rank: int | None = None
    host: str | None = None
    when: float | None = None
    fields: tuple[tuple[str, str], ...] = ()

    def get(self, name: str, default: str = "") -> str:
        """The field ``name``, or ``default``."""
        for key, value in self.fields:
            if key == name:
                return value
        return default

    @property
    def cite(self) -> str:
        """``path:line``."""
        return self.source.cite(self.line)


# ------------------------------------------------------------------ NCCL RAS, GPUs


@dataclass(frozen=True, slots=True)
class RasRank:
    """One rank of one communicator as NCCL RAS sees it."""

    rank: int
    host: str = ""
    pid: int | None = None
    device: str = ""
    counts: tuple[tuple[str, int], ...] = ()  # ("AllReduce", 21)
    missing: bool = False
    abort: bool = False
    finalize: bool = False
    destroy: bool = False
    async_error: int = 0
    init_state: int = 0


@dataclass(frozen=True, slots=True)
class RasComm:
    """One communicator."""

    hash: str
    size: int
    ranks: tuple[RasRank, ...] = ()
    status: str = ""  # RUNNING INIT ...
    errors: tuple[str, ...] = ()  # MISMATCH INCOMPLETE ...


@dataclass(frozen=True, slots=True)
class RasReport:
    """One answer of NCCL RAS (text or JSON). ``dead`` lists (host, pid) known to be dead."""

    source: Source
    nccl_version: str = ""
    comms: tuple[RasComm, ...] = ()
    dead: tuple[tuple[str, int], ...] = ()
    nodes: int | None = None
    processes: int | None = None
    timed_out: bool = False
    reachable: bool = True  # False: nobody answered (refused, reset), which is evidence too


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU of nvidia-smi or NVML. Utilisation in per cent, power in watts, memory in MiB."""

    index: int
    name: str = ""
    uuid: str = ""
    bus: str = ""
    utilisation: int | None = None
    power_w: float | None = None
    power_cap_w: float | None = None
    memory_used_mib: int | None = None
    temperature_c: int | None = None
    pids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class GpuReport:
    """All GPUs of one host at one moment."""

    source: Source
    driver: str = ""
    gpus: tuple[Gpu, ...] = ()


@dataclass(frozen=True, slots=True)
class LinkCounters:
    """One network interface (or RDMA port) of one host at one moment. Counters are cumulative."""

    source: Source
    name: str
    state: str = ""  # UP DOWN UNKNOWN
    carrier: bool | None = None
    counters: tuple[tuple[str, int], ...] = ()  # rx_bytes tx_bytes rx_drop tx_retrans ...


@dataclass(frozen=True, slots=True)
class Measured:
    """What a tool or file reads of one thing of a host: a port, a GPU, a PCIe device, a limit.

    ``kind`` is one of :data:`MEASURED`, ``name`` which one (``mlx5_0``, ``0000:3b:00.0``,
    ``memlock``). Each value comes with the line that states it (0: the whole file).
    """

    source: Source
    kind: str
    name: str
    values: tuple[tuple[str, str | int | float, int], ...] = ()

    def get(self, key: str) -> str | int | float | None:
        """The value ``key``, or None."""
        for name, value, _ in self.values:
            if name == key:
                return value
        return None

    def text(self, key: str) -> str:
        """The value ``key`` as text, "" when it is not there."""
        value = self.get(key)
        return "" if value is None else str(value)

    def number(self, key: str) -> float | None:
        """The value ``key`` when it is a number."""
        value = self.get(key)
        return None if value is None or isinstance(value, str) else float(value)

    def cite(self, *keys: str) -> str:
        """Where the first of ``keys`` stands (the first value's place without keys)."""
        lines = [line for name, _, line in self.values if line and (not keys or name in keys)]
        return self.source.cite(lines[0] if lines else None)


MEASURED: dict[str, str] = {
    "rdma-port": "state, phys_state, rate_gbps, lanes, link_layer, active_mtu, max_mtu; counters",
    "nic": "speed_mbps, speed_max_mbps, link; counters of ethtool -S",
    "pcie": "width, width_max, speed, speed_max, acs, class, gone",
    "gpu": "states and counts of nvidia-smi -q, csv queries and dcgmi, named as their columns",
    "nvlink": "state, speed; crc, replay and recovery counts; name is GPU/LINK",
    "limit": "value (number or unlimited); memlock and stack in KiB",
    "mount": "percent, size_kb, available_kb; inodes_percent",
    "pressure": "some_avg10, full_avg10",
    "cgroup": "quota_usec, period_usec; nr_periods, nr_throttled, throttled_usec",
    "path": "target, size (bytes of payload), sent, came: one run of ping",
    "environment": "the variables of one process, by name",
    "module": "loaded: yes or no",
    "service": "state, why",
    "library": "the version of each wheel or mapped file, by name or path",
    "scheduled": "state, reason, exitcode and so on of a node, job or pod",
    "topology": "path between a pair of devices (NV18, PIX, SYS ...)",
    "memory": "total_kb, available_kb, swap_used_kb",
}
"""Kinds of measured things, and the values that they may have."""


# ------------------------------------------------------------------ the watch itself


@dataclass(frozen=True, slots=True)
class Stall:
    """Why fabwatch captured: what incident.json says.

    ``trigger``: stall, exit, timeout-near, request. ``waited_s``: since the last progress of the
    waiting ranks. ``limit_s``: the wait that becomes a failure (CONTRACT.md). ``phase``: start,
    compile, first-step, steady, evaluation, checkpoint, teardown.
    """

    source: Source
    trigger: str
    phase: str = ""
    waited_s: float | None = None
    longest_wait_s: float | None = None
    limit_s: float | None = None
    last_progress: float | None = None
    detected: float | None = None
    still_ranks: tuple[int, ...] = ()
    moving_ranks: tuple[int, ...] = ()
    resolved: bool = False
    captured: float | None = None  # end of the first capture
    job_started: float | None = None
    ended: str = ""  # how the job ended while it still stood; "" while it runs, or if it moved on
    told_to_end: float | None = None  # when the launcher was signalled while it stood


@dataclass(frozen=True, slots=True)
class JobShape:
    """Who is in the job: what a manifest, a log or file names tell. () when unknown."""

    source: Source
    world_size: int | None = None
    ranks: tuple[tuple[int, str, int], ...] = ()  # (rank, host, pid)
    versions: tuple[tuple[str, str], ...] = ()


Observation = (
    RankTrace
    | ProgressPage
    | RankStacks
    | ProcessState
    | Exit
    | PythonError
    | LogEvent
    | RasReport
    | GpuReport
    | LinkCounters
    | Measured
    | Stall
    | JobShape
)


@dataclass(frozen=True, slots=True)
class ReadError:
    """Something that could not be read: what, where, and what to do about it."""

    path: str
    where: str
    problem: str
    advice: str = ""

    def __str__(self) -> str:
        """One line."""
        place = f"{self.path}{':' + self.where if self.where else ''}"
        return f"{place}: {self.problem}{'; ' + self.advice if self.advice else ''}"


@dataclass(frozen=True, slots=True)
class Parsed:
    """What a parser returns: never raises for bad input, collects located errors instead."""

    observations: tuple[Observation, ...] = ()
    errors: tuple[ReadError, ...] = ()
    looked: tuple[Source, ...] = field(default=())  # what was covered, also when nothing was found
