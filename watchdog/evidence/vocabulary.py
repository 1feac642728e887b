"""The names of facts: what each means and which sources can show it.

The generated table docs/facts.md is made from this file. A fact that no source can show in the
evidence at hand is UNKNOWN, which is why ``seen_by`` matters more than it looks.
"""

from __future__ import annotations

from dataclasses import dataclass

SOURCES: dict[str, str] = {
    "flight-recorder": "torch flight recorder: nccl_trace_rank_N, fr_trace_rank_N(.json), _dump_N",
    "flight-recorder-frames": "pickled dumps with frames, by the probe's thread (needs the GIL)",
    "pg-status": "the probe's page: high-water marks per group once a second",
    "python-stack": "py-spy dump, faulthandler, debug server stacks",
    "native-stack": "py-spy dump --native, gdb thread apply all bt",
    "process": "/proc: state, wchan, CPU and I/O counters, cgroup freezer",
    "exit": "exit codes and signals of ranks as the watch saw them",
    "exception": "the uncaught exception of a rank: probe record or torchelastic error.json",
    "job-log": "the job's own output: torchrun log, stdout.log, stderr.log, any mixed log",
    "nccl-log": "NCCL_DEBUG output",
    "ras": "NCCL RAS status",
    "gpu": "nvidia-smi, NVML",
    "kernel-log": "dmesg, journalctl -k",
    "cgroup": "memory.events, cpu.stat, freezer of the ranks' cgroups",
    "interfaces": "ip -s link, sysfs of network devices",
    "sockets": "ss -ti, netstat -s",
    "pressure": "/proc/pressure/*",
    "environment": "environment variables, masked",
    "libraries": "versions of the libraries really mapped",
    "watch": "incident.json: what the watch saw of the job's rhythm",
    "other-text": "any other text beside: output of a command, a script, notes",
}


@dataclass(frozen=True, slots=True)
class Entry:
    """One fact name: meaning, and the sources that can show it.

    ``silent`` are those of ``seen_by`` that can show the fact but not deny it: a log without a
    desync report says nothing about who lags. ``fetch`` is how to get it, where no source's
    general words would do.
    """

    says: str
    seen_by: tuple[str, ...]
    silent: tuple[str, ...] = ()
    fetch: str = ""

    @property
    def denied_by(self) -> tuple[str, ...]:
        """Sources that make the fact a NO when they were read and did not show it."""
        return tuple(source for source in self.seen_by if source not in self.silent)


def _e(says: str, *seen_by: str, silent: tuple[str, ...] = ()) -> Entry:
    unknown = set(seen_by) | set(silent)
    unknown -= set(SOURCES)
    if unknown or not set(silent) <= set(seen_by):
        raise ValueError(f"unknown sources {sorted(unknown)} or silent beyond seen_by: {silent}")
    return Entry(says, seen_by, silent)


_HANG = ("flight-recorder", "job-log", "ras")
_MUTE = ("job-log", "ras")

VOCABULARY: dict[str, Entry] = {
    # ---- one rank's process
    "process.stopped": _e("state T or t, or its cgroup is frozen", "process"),
    "process.uninterruptible": _e("state D in every snapshot taken; wchan in detail", "process"),
    "process.exited": _e(
        "ended with a non-zero exit code; code, first", "exit", "job-log", silent=("job-log",)
    ),
    "process.killed": _e(
        "ended by a signal that nobody of the job sent; signal, first",
        "exit",
        "job-log",
        silent=("job-log",),
    ),
    "process.left": _e(
        "ended with code 0, or is in teardown, while others still call collectives",
        "exit",
        "python-stack",
    ),
    "process.absent": _e(
        "nothing answers for this rank: no process, no dump, no stack",
        "process",
        "exit",
        "ras",
        silent=("ras",),
    ),
    "process.oom-killed": _e(
        "the kernel's OOM killer ended it; scope cgroup or global",
        "cgroup",
        "kernel-log",
        "job-log",
        silent=("job-log",),
    ),
    "process.segfaulted": _e(
        "ended by SIGSEGV, SIGBUS, SIGFPE or SIGILL", "exit", "job-log", silent=("job-log",)
    ),
    "process.aborted": _e("ended by SIGABRT", "exit", "job-log", silent=("job-log",)),
    "process.terminated": _e(
        "got SIGTERM or SIGINT or SIGHUP from outside the job", "exit", "job-log"
    ),
    "gil.held": _e(
        "one thread keeps the GIL: page stale and the same frame in every snapshot",
        "pg-status",
        "python-stack",
        "job-log",
        silent=("job-log",),
    ),
    "thread.running": _e(
        "a thread was on a CPU when its stack was taken", "python-stack", silent=("python-stack",)
    ),
    "page.stale": _e("the probe's thread could not run for several ticks", "pg-status"),
    # ---- exceptions
    "exception.raised": _e(
        "an uncaught exception that no peer's failure explains; type, frame", "exception", "job-log"
    ),
    "exception.consequent": _e(
        "an uncaught exception that a peer's failure or a timeout explains", "exception", "job-log"
    ),
    "dataloader-worker.killed": _e(
        "a DataLoader worker was killed by a signal", "exception", "job-log"
    ),
    "dataloader-worker.failed": _e(
        "a DataLoader worker raised an exception", "exception", "job-log"
    ),
    "cuda.out-of-memory": _e("CUDA out of memory", "exception", "job-log"),
    "cuda.sticky-error": _e(
        "sticky error; error: illegal-access, device-assert, launch-failure, misaligned, other",
        "exception",
        "job-log",
    ),
    "memory.host-exhausted": _e("MemoryError or cannot allocate memory", "exception", "job-log"),
    "shm.exhausted": _e(
        "shared memory is full; segment is nccl or torch", "nccl-log", "exception", "job-log"
    ),
    "disk.full": _e("no space left or quota exceeded while writing files", "exception", "job-log"),
    "inputs.exhausted": _e(
        "a rank ran out of batches before its peers",
        "exception",
        "job-log",
        "python-stack",
        silent=("exception", "job-log", "python-stack"),
    ),
    "inputs.uneven": _e(
        "processes report different amounts of data under one label, and a collective timed out; "
        "low, high",
        "job-log",
        silent=("job-log",),
    ),
    "process.responded": _e(
        "did something of its own while others waited for it: wrote a dump, printed, a fresh page",
        "flight-recorder",
        "pg-status",
        "job-log",
        silent=("flight-recorder", "pg-status", "job-log"),
    ),
    "error.unexplained": _e(
        "an error-level line of a log that no other fact explains; text", "job-log", "nccl-log"
    ),
    # ---- start-up
    "store.unreachable": _e("a client cannot connect to the TCPStore", "exception", "job-log"),
    "store.lost": _e(
        "the connection to the TCPStore broke in the middle of the job", "exception", "job-log"
    ),
    "store.port-taken": _e("the store's port is in use by somebody else", "exception", "job-log"),
    "rendezvous.incomplete": _e(
        "fewer nodes or ranks joined than were expected; joined, expected", "exception", "job-log"
    ),
    "name.unresolvable": _e(
        "a host name could not be resolved", "exception", "job-log", "nccl-log"
    ),
    "interface.none-matched": _e(
        "no network interface fits what was asked for", "nccl-log", "job-log"
    ),
    "gloo.mesh-failed": _e("Gloo could not connect its full mesh", "exception", "job-log"),
    "gpu.duplicated": _e("two ranks use one GPU", "nccl-log", "job-log", "gpu", silent=("gpu",)),
    # ---- waiting
    "collective.pending": _e(
        "ranks have entered an operation that has not finished",
        *_HANG,
        "python-stack",
        silent=_MUTE,
    ),
    "collective.lagging": _e(
        "ranks never entered the operation that others wait in; group, seq, op, lag",
        *_HANG,
        silent=_MUTE,
    ),
    "collective.incomplete": _e(
        "all members entered the operation and none finished it", *_HANG, silent=_MUTE
    ),
    "collective.completion-lagging": _e(
        "a peer finished the operation, this rank did not",
        "flight-recorder",
        "job-log",
        silent=("job-log",),
    ),
    "collective.not-started": _e(
        "entered on the host, never started on the device (timing on)", "flight-recorder"
    ),
    "collective.type-mismatched": _e(
        "different operations at one sequence number; ranks are the minority",
        "flight-recorder",
        "job-log",
        "ras",
        silent=("job-log", "ras"),
    ),
    "collective.size-mismatched": _e(
        "different sizes at one sequence number", "flight-recorder", "job-log", silent=("job-log",)
    ),
    "collective.dtype-mismatched": _e(
        "different dtypes at one sequence number", "flight-recorder", "job-log", silent=("job-log",)
    ),
    "collective.root-mismatched": _e("different roots at one sequence number", "flight-recorder"),
    "collective.call-sites-differ": _e(
        "same operation and number, called from different code; ranks are the minority",
        "flight-recorder",
    ),
    "collective.count-mismatched": _e("RAS counts of one communicator differ in every poll", "ras"),
    "collective.deadlocked": _e(
        "groups entered in crossed order; ranks are the cycle; first_use",
        "flight-recorder",
        "ras",
        silent=("ras",),
    ),
    "p2p.deadlocked": _e(
        "sends and receives wait for each other in a cycle", "flight-recorder", "python-stack"
    ),
    "p2p.unmatched": _e(
        "a send or receive whose partner never makes the matching call",
        "flight-recorder",
        "python-stack",
    ),
    "wait.root": _e(
        "a root of the wait-for graph; kind, group, op, seq, frame",
        *_HANG,
        "python-stack",
        silent=_MUTE,
    ),
    "wait.waiting": _e("ranks that wait for a root", *_HANG, "python-stack", silent=_MUTE),
    "wait.exceeded": _e(
        "the wait is longer than CONTRACT.md allows before it is a failure", "watch"
    ),
    "wait.all-idle-same-stack": _e(
        "every rank stands in the same non-communication stack", "python-stack"
    ),
    "progress.frozen": _e(
        "no counter moved between two snapshots", "flight-recorder", "pg-status", "ras", "watch"
    ),
    "progress.advancing": _e(
        "counters moved between two snapshots", "flight-recorder", "pg-status", "ras", "watch"
    ),
    "timeout.reported": _e("the job itself reported a collective timeout; timeout_ms", "job-log"),
    "timeout.short": _e(
        "the group's timeout is shorter than the work that the slow rank was doing",
        "flight-recorder",
        "job-log",
        silent=("job-log", "flight-recorder"),
    ),
    "monitored-barrier.failed": _e("monitored_barrier names ranks that did not come", "job-log"),
    # ---- where a rank's own code stands (main thread)
    "stack.in-collective": _e("in a collective call or its wait", "python-stack"),
    "stack.in-p2p": _e("in send, recv or their wait", "python-stack"),
    "stack.in-dataloader": _e("in a data loader or fetching a batch", "python-stack"),
    "stack.in-checkpoint": _e("writing or reading a checkpoint", "python-stack"),
    "stack.in-evaluation": _e("evaluating or validating", "python-stack"),
    "stack.in-compile": _e("compiling (inductor, dynamo, triton, extension build)", "python-stack"),
    "stack.in-sleep": _e("sleeping or waiting on purpose", "python-stack"),
    "stack.in-io": _e("reading or writing files or object storage", "python-stack"),
    "stack.in-lock": _e("waiting for a lock, queue or condition", "python-stack"),
    "stack.in-device-sync": _e("waiting for a device", "python-stack", "native-stack"),
    "stack.in-teardown": _e(
        "in atexit, destroy_process_group or interpreter shutdown", "python-stack"
    ),
    "stack.in-init": _e("in init_process_group, rendezvous or store", "python-stack"),
    "stack.in-user-code": _e(
        "in code that is neither torch nor the standard library", "python-stack"
    ),
    "stack.moving": _e("the main thread's stack differs between two snapshots", "python-stack"),
    "io.advancing": _e("bytes read or written moved between two snapshots", "process"),
    "cpu.advancing": _e("CPU time moved between two snapshots", "process"),
    # ---- devices, links, hosts
    "gpu.spinning": _e("busy with low power: a kernel that spins", "gpu"),
    "gpu.kernel-running": _e(
        "native stack waits for a user kernel that does not end", "native-stack"
    ),
    "link.down": _e(
        "an interface or port is down",
        "interfaces",
        "nccl-log",
        "kernel-log",
        "job-log",
        silent=("nccl-log", "job-log", "kernel-log"),
    ),
    "link.silent": _e(
        "byte counters between two hosts stopped", "interfaces", "sockets", silent=("sockets",)
    ),
    "link.errors": _e(
        "error or retransmit counters moved",
        "interfaces",
        "sockets",
        "nccl-log",
        silent=("nccl-log",),
    ),
    "network.error-reported": _e(
        "a library reports a network error that no dead peer explains", "nccl-log", "job-log"
    ),
    "storage.stalled": _e(
        "ranks wait for storage: D state in I/O, or io pressure",
        "process",
        "pressure",
        "kernel-log",
        silent=("kernel-log",),
    ),
    "link.limited": _e(
        "a queue discipline or policer limits it: drops or overlimits grow, no errors",
        "interfaces",
        "sockets",
        silent=("sockets",),
    ),
    "progress.slowed": _e(
        "steps take several times longer than before and go on; factor",
        "watch",
        "job-log",
        silent=("job-log",),
    ),
    "progress.resumed": _e(
        "steps go on after lines that sound alarming; alarms", "job-log", silent=("job-log",)
    ),
    "ib-hca.prefix-matched": _e(
        "NCCL_IB_HCA without = took in devices with longer names; value, taken",
        "nccl-log",
        silent=("nccl-log",),
    ),
    "proxy.waiting-on-wire": _e(
        "NCCL's proxy posted transfers that do not complete", "nccl-log", silent=("nccl-log",)
    ),
    "link-counter.read": _e(
        "an error counter of a port is not zero, and nobody knows since when; counter, value",
        "interfaces",
    ),
    "port-rate.below": _e(
        "a port runs slower than its siblings or than it can; rate, usual, basis",
        "interfaces",
    ),
    "nvlink-errors.read": _e(
        "an error counter of an NVLink is not zero, and nobody knows since when; kind, value",
        "gpu",
    ),
    "nvlink.uneven": _e(
        "some pairs of GPUs of a host have no NVLink and most have; pairs, path",
        "gpu",
        silent=("gpu",),
    ),
    "gpu.ecc-counted": _e(
        "a GPU counts uncorrected memory errors; errors, since volatile (driver load) or aggregate",
        "gpu",
        silent=("gpu",),
    ),
    "shm.mount-small": _e(
        "/dev/shm has 64 MiB or less, as containers have by default; kb",
        "process",
        silent=("process",),
    ),
    "mount.full": _e(
        "a file system is full; mount, percent, what is bytes or inodes",
        "process",
        silent=("process",),
    ),
    "files-limit.small": _e(
        "a process may open 1024 files or fewer; value", "process", silent=("process",)
    ),
    "memory.low": _e(
        "a host has less than a fiftieth of its memory left; available_kb",
        "process",
        silent=("process",),
    ),
    "psi.io-high": _e("io pressure of a host; avg10", "pressure", silent=("pressure",)),
    "gpu.xid": _e("the driver logged an Xid; code", "kernel-log"),
    "init.incomplete": _e(
        "a process began to set up a communicator and never said that it was complete",
        "nccl-log",
    ),
    "rank0.working": _e(
        "the others wait for rank 0, which shows long work of its own: an unfinished bar, or a "
        "section that lets the main process go first; what",
        "job-log",
        silent=("job-log",),
    ),
    "collective.numbers-differ": _e(
        "ranks call the same operation with different running numbers", "job-log", "exception"
    ),
    "stack.call-sites-differ": _e(
        "ranks stand in one kind of collective, called from different code; ranks are the minority",
        "python-stack",
        silent=("python-stack",),
    ),
    "collective.mismatch-reported": _e(
        "torch's DETAIL checks refused a collective; aspects, op", "job-log", "exception"
    ),
}
"""Fact name -> entry. Names are ``noun.participle``; once released they do not change."""

BASE = frozenset(VOCABULARY)
"""Names that stand in this file; all others come from the shapes of the library."""


def derive(name: str, entry: Entry) -> None:
    """Add the fact of a shape; a further shape of it adds its sources.

    A name of this file keeps its meaning and what can deny it, and gains sources that show it.
    """
    have = VOCABULARY.get(name)
    if have is None:
        VOCABULARY[name] = entry
        return
    more = tuple(source for source in entry.seen_by if source not in have.seen_by)
    silent = more if name in BASE else tuple(s for s in entry.silent if s in more)
    VOCABULARY[name] = Entry(
        have.says or entry.says,
        (*have.seen_by, *more),
        (*have.silent, *silent),
        have.fetch or entry.fetch,
    )
