"""Lines of torch, its launcher, Gloo, the store, CUDA and schedulers worth an event, by kind.

Each pattern has a literal that any matching line holds, so that a line which holds none of them
costs one scan. Named groups become the event's fields.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_PG = (
    r"(?:\[PG ID (?P<pg_id>\d+) PG GUID (?P<pg_guid>[^\s(\]]+)(?:\((?P<pg_desc>[^)]*)\))? "
    r"Rank (?P<pg_rank>\d+)\]|\[PG (?P<pg_id2>\d+) Rank (?P<pg_rank2>\d+)\]"
    r"|\[Rank (?P<pg_rank3>\d+)\])"
)
_WORK = (
    r"Work\w*\((?:SeqNum=(?P<seq>\d+), )?OpType=(?P<op>\w+)"
    r"(?:, NumelIn=(?P<numel_in>\d+), NumelOut=(?P<numel_out>\d+))?"
    r"(?:, Timeout\(ms\)=(?P<timeout_ms>\d+))?\)"
)


@dataclass(frozen=True, slots=True)
class Pattern:
    """One kind of event: what it says, a literal that its lines hold, and how to read it."""

    kind: str
    says: str
    literal: str
    regex: re.Pattern[str]


def _p(kind: str, literal: str, regex: str, says: str) -> Pattern:
    return Pattern(kind, says, literal, re.compile(regex))


PATTERNS: tuple[Pattern, ...] = (
    # ---- NCCL watchdog of torch
    _p("nccl.watchdog-timeout", "Watchdog caught collective operation timeout",
       r"(?:\[Rank (?P<pg_rank>\d+)\]\s+)?Watchdog caught collective operation timeout: " + _WORK
       + r"(?: ran for (?P<ran_ms>\d+) milliseconds)?",
       "a collective timed out on this rank: seq, op, numel_in, numel_out, timeout_ms, ran_ms"),
    _p("nccl.watchdog-timeout", "collective operation timed out",
       r"timeout - collective operation timed out(?:.*?" + _WORK + r")?",
       "the same from the nccl2 backend"),
    _p("nccl.pg-status", "Timeout at NCCL work",
       _PG + r" Timeout at NCCL work: (?P<at>\d+), last enqueued NCCL work: (?P<enqueued>-?\d+), "
       r"last completed NCCL work: (?P<completed>-?\d+)",
       "high-water marks of a group: at, enqueued, started, started_op, completed"),
    _p("nccl.pg-status", "detected by watchdog at work: ",
       _PG + r" Exception \(either an error or timeout\) detected by watchdog at work: "
       r"(?P<at>\d+), last enqueued NCCL work: (?P<enqueued>-?\d+), last completed NCCL work: "
       r"(?P<completed>-?\d+)",
       "the same of torch 2.4 and 2.5"),
    _p("nccl.pg-status", "failure detected by watchdog at work sequence id",
       _PG + r"\s+failure detected by watchdog at work sequence id: (?P<at>\d+) PG status: last "
       r"enqueued work: (?P<enqueued>-?\d+)(?:, last started work: (?P<started>-?\d+)"
       r"(?: \((?P<started_op>\w*)\))?)?, last completed work: (?P<completed>-?\d+)",
       "the same of torch 2.6 and later"),
    _p("nccl.desync", "To our best knowledge, ",
       r"To our best knowledge, (?:the lagging/dead/mismatched ranks that caused the desync are:"
       r"|ranks \[(?P<never>[\d, ]+)\] are the lagging ranks that caused this timeout)",
       "the desync report of torch: never (ranks that joined nothing)"),
    _p("nccl.desync-rank", " collective #",
       r"\[(?P<ranks>[\d, ]+)\] (?:joined but didn't finish collective #(?P<joined>\d+)"
       r"|finished collective #(?P<done>\d+), but didn't join collective #(?P<next>\d+))",
       "one line of the desync report: ranks and joined, or done and next"),
    _p("nccl.stack-missing", "Stack trace of the failed collective not found",
       r"Stack trace of the failed collective not found", "the recorder was off"),
    _p("nccl.teardown", "taking the entire process down",
       r"To avoid data inconsistency, we are taking the entire process down",
       "torch ends this process after a timeout"),
    _p("nccl.watchdog-exit", "watchdog thread terminated with exception",
       r"(?:NCCL|Process group) watchdog thread terminated with exception: (?P<why>.{0,400})",
       "the watchdog thread died: why"),
    _p("nccl.watchdog-exit", "nccl hit async error",
       r"error - nccl hit async error: (?P<why>.{0,400})", "the same from the nccl2 backend"),
    _p("nccl.error", "NCCL error in: ",
       r"NCCL error in: (?P<where>\S+?:\d+), (?P<why>[^,(]{1,120}).*?"
       r"(?:NCCL version (?P<nccl_version>[\d.]+))?$",
       "torch reports an NCCL error: where, why, nccl_version"),
    _p("nccl.error-code", "nccl",
       r"^\s*(?P<code>nccl(?:UnhandledCudaError|SystemError|InternalError|InvalidArgument|"
       r"InvalidUsage|RemoteError|InProgress|Timeout)): (?P<why>.{0,300})",
       "the code of an NCCL error: code, why"),
    _p("heartbeat.stuck", "watchdog got stuck for",
       r"ProcessGroupNCCL's watchdog got stuck for (?P<sec>\d+) ?seconds",
       "torch's watchdog thread did not run: sec"),
    _p("heartbeat.stuck", "Heartbeat monitor timed out",
       r"Heartbeat monitor timed out! Process will be terminated after dumping debug info\."
       r"(?: workMetaList_\.size\(\)=(?P<pending>\d+))?",
       "the same of torch 2.3 and 2.4: pending"),
    _p("heartbeat.stuck", "monitoring thread detects no heartbeat",
       r"monitoring thread detects no heartbeat", "the same of torch 2.2"),
    _p("heartbeat.first", "First PG on this rank that detected no heartbeat",
       r"First PG on this rank that detected no heartbeat of its watchdog", "who saw it first"),
    _p("dump.first", "signal dumping", r"First PG on this rank to signal dumping",
       "this rank asked all ranks for dumps"),
    _p("dump.first", "First watchdog to set the dump signal",
       r"First watchdog to set the dump signal", "the same of torch 2.4"),
    _p("dump.seen", "dump signal",
       r"Observed flight recorder dump signal from another rank via TCPStore"
       r"|First PG on this rank detecting the dump signal through tcpstore",
       "another rank asked for dumps"),
    _p("dump.received", "Received a ",
       r"Received a (?:global )?dump signal (?:due to a collective timeout )?from\s+"
       r"(?:this local rank|rank (?P<src>-?\d+))"
       r"(?:.*?[Ll]ast enqueued NCCL work: (?P<enqueued>-?\d+), last completed NCCL work: "
       r"(?P<completed>-?\d+))?",
       "who asked for dumps (src, none: itself), enqueued and completed of this rank"),
    _p("dump.written", "light ", r"Finished writing Flight Recorder debug info to (?P<path>\S+)"
       r"|Finished flight recorder successfully|Flight Recorder trace successfully dumped",
       "a dump was written: path"),
    _p("dump.terminating", "Terminating the process after attempting to dump debug info",
       r"Terminating the process after attempting to dump debug info, due to (?P<why>[^.]+)",
       "torch ends this process: why"),
    _p("gil.not-acquired", "Could not acquire GIL within",
       r"Could not acquire GIL within (?P<ms>\d+) ms on exit, possible GIL induced hang",
       "somebody holds the GIL: ms"),
    _p("nccl.remote-error", "remote error detected from rank",
       r"remote error detected from rank: (?P<src>\d+)", "another rank reported an error: src"),
    _p("nccl.unique-id", "retrieving ncclUniqueId",
       r"(?:\[(?P<pg_rank>\d+)\] )?is setting up NCCL communicators? and retrieving ncclUniqueIds? "
       r"from (?:\[0\] via c10d key-value store|roots via TCPStore) by key '(?P<key>[^']*)'"
       r"(?:, but store->get\('[^']*'\) got error: (?P<why>.{0,300}))?",
       "a rank waited for another in the set-up of a communicator: key, why"),
    # ---- DETAIL, monitored barrier
    _p("detail.mismatch", "Detected mismatch between collectives on ranks",
       r"Detected mismatch between collectives on ranks\. Rank (?P<a>\d+) is running "
       r"(?:inconsistent )?collective: CollectiveFingerPrint\("
       r"(?P<fa>(?:(?!(?:, but|\.) ?Rank \d).){0,1500}?)\)"
       r"(?:(?:(?:, but|\.) ?Rank (?P<b>\d+) is running (?:inconsistent )?collective: "
       r"CollectiveFingerPrint\((?P<fb>.{0,1500}?)\)(?=\.\s?Collectives|\.?$))|\.?$|(?=\.\s?Coll))"
       r"(?:\.?\s?Collectives differ in the following aspects:\s*(?P<aspects>.{0,400}))?",
       "ranks a and b call different collectives: fa, fb, aspects"),
    _p("monitored-barrier.failed", "failed to pass monitoredBarrier",
       r"\[Rank 0\]: Ranks? (?P<ranks>[\d, ]+) failed to pass monitoredBarrier in (?P<ms>\d+) ms",
       "ranks that did not come: ranks, ms"),
    _p("monitored-barrier.victim", "successfully reached monitoredBarrier",
       r"Rank (?P<pg_rank>\d+) successfully reached monitoredBarrier, but received errors",
       "a rank that came and was let down"),
    # ---- Gloo
    _p("gloo.timeout", "Timed out waiting",
       r"Timed out waiting (?P<ms>\d+)ms for (?P<dir>recv|send) operation to complete",
       "a Gloo operation timed out: ms, dir"),
    _p("gloo.closed", "Connection closed by peer",
       r"Connection closed by peer \[(?P<ip>[^\]]+)\]:(?P<port>\d+)",
       "the peer's process ended: ip, port"),
    _p("gloo.reset", "rror [",
       r"(?P<dir>Read|Write) error \[(?P<ip>[^\]]+)\]:(?P<port>\d+): (?P<why>[A-Za-z ]+)",
       "a Gloo connection broke: ip, port, why"),
    _p("gloo.size-mismatch", "op.preamble.length <= op.nbytes",
       r"op\.preamble\.length <= op\.nbytes\. (?P<got>\d+) vs (?P<want>\d+)",
       "the peer sent another size: got and want, bytes"),
    _p("gloo.connect-failed", "Gloo connectFullMesh failed",
       r"Gloo connectFullMesh failed with (?P<why>.{0,300})", "Gloo could not connect: why"),
    _p("gloo.closed-by-timeout", "Application timeout caused pair closure",
       r"Application timeout caused pair closure", "this side gave up first"),
    # ---- store
    _p("store.timeout", "wait timeout after",
       r"wait timeout after (?P<ms>\d+)ms, keys: (?P<keys>.{1,300})",
       "a key never came: ms, keys"),
    _p("store.timeout", "Socket Timeout", r"Socket Timeout", "the same of old torch"),
    _p("store.closed", "Failed to recv, got 0 bytes",
       r"Failed to recv, got 0 bytes\. Connection was likely closed", "the store's host went away"),
    _p("store.io-error", "failed on SocketImpl",
       r"(?P<function>\w+) failed on SocketImpl\(fd=-?\d+, addr=(?P<addr>[^,]+), "
       r"remote=(?P<remote>[^)]+)\): (?P<why>.{0,200})",
       "talking to the store failed: remote, why"),
    _p("store.connect-retry", "TCP client failed to connect/validate",
       r"TCP client failed to connect/validate to host (?P<host>\S+):(?P<port>\d+) - "
       r"(?P<what>retrying|timed out) \(try=(?P<tries>\d+), timeout=(?P<ms>\d+)ms",
       "the store cannot be reached: host, port, what, tries, ms"),
    _p("store.connect-timeout", "The client socket has timed out",
       r"The client socket has timed out after (?P<after>\S+) while trying to connect to "
       r"\((?P<host>[^,]+), (?P<port>\d+)\)",
       "the store cannot be reached: host, port"),
    _p("store.listen-failed", "The server socket has failed to",
       r"The server socket has failed to (?P<what>listen|bind).*?(?:port: (?P<port>\d+))?"
       r"(?:.*?name: (?P<name>\w+))?",
       "the store's port is taken: port, name"),
    _p("store.dump-check-failed", 'Failed to check the "should dump" flag',
       r'Failed to check the "should dump" flag on TCPStore', "the store is gone"),
    # ---- torchelastic
    _p("elastic.worker-failed", "failed (exitcode:",
       r"failed \(exitcode: (?P<code>-?\d+)\) local_rank: (?P<local_rank>\d+) "
       r"\(pid: (?P<rank_pid>\d+)\) of binary: ?(?P<binary>\S*)",
       "the launcher saw a worker end: code (negative: signal), local_rank, rank_pid"),
    _p("elastic.signal-sent", " signal SIG",
       r"(?:Sending process|Closing process) (?P<rank_pid>\d+) (?:closing|via) signal "
       r"(?P<signal>SIG\w+)",
       "the launcher ends a worker itself: rank_pid, signal"),
    _p("elastic.sigkill-sent", "forcefully exiting via",
       r"Unable to shutdown process (?P<rank_pid>\d+) via (?P<signal>\S+), forcefully exiting via "
       r"(?P<kill>\S+)",
       "a worker did not end when asked: rank_pid"),
    _p("elastic.agent-signal", "death signal, shutting down workers",
       r"Received (?P<signal>\w+) death signal, shutting down workers",
       "the launcher itself got a signal from outside: signal"),
    _p("elastic.agent-signal", "got signal: ",
       r"SignalException: Process (?P<agent_pid>\d+) got signal: (?P<signal>\w+)",
       "the same, as the launcher's last words"),
    _p("elastic.rendezvous-failed", "endezvous",
       r"(?P<error>Rendezvous(?:Timeout|Connection|Closed|State|Graceful\w*)\w*)"
       r"(?:: (?P<why>.{0,200}))?",
       "nodes did not find together: error, why"),
    _p("elastic.restart", "worker group",
       r"(?:Restarting worker group|(?P<left>\d+)/(?P<of>\d+) attempts left; will restart worker "
       r"group)", "the launcher starts all workers anew: left, of"),
    # ---- CUDA
    _p("cuda.out-of-memory", "out of memory",
       r"(?:CUDA|HIP|XPU) (?:error: )?out of memory(?:\. Tried to allocate (?P<size>[\d.]+ ?\w+))?"
       r"|OutOfMemoryError: (?:CUDA|HIP)",
       "device memory is exhausted: size"),
    _p("cuda.sticky-error", " error: ",
       r"(?:CUDA|HIP) error: (?P<error>an illegal memory access was encountered"
       r"|device-side assert triggered|unspecified launch failure|misaligned address"
       r"|an illegal instruction was encountered|invalid program counter|uncorrectable ECC error"
       r"[\w ]*|uncorrectable NVLink error[\w ]*|the launch timed out and was terminated"
       r"|hardware stack error|invalid address space|operation not permitted on an event last"
       r"[\w ]*|CUDA-capable device\(s\) is/are busy or unavailable"
       r"|unknown error|unspecified error)",
       "the CUDA context is lost: error"),
    _p("cuda.error", " error: ", r"(?:CUDA|HIP) error: (?P<error>.{1,200})",
       "another CUDA error: error"),
    _p("cuda.assert", "Assertion `",
       r"(?P<where>\S+:\d+): .*?block: \[(?P<block>[^\]]+)\], thread: \[(?P<thread>[^\]]+)\] "
       r"Assertion `(?P<condition>[^`]{1,200})` failed",
       "a device-side assertion: where, condition"),
    # ---- data loader
    _p("dataloader.worker-killed", "DataLoader worker",
       r"DataLoader worker \(pid(?:\(s\))? (?P<pids>[\d, ]+)\) (?:is killed by signal: "
       r"(?P<signal>[\w ]+)|exited unexpectedly(?: with exit code (?P<code>-?\d+))?)",
       "a data-loader worker ended: pids, signal or code"),
    _p("dataloader.worker-failed", "DataLoader worker process",
       r"Caught (?P<error>\w+) in DataLoader worker process (?P<worker>\d+)",
       "a data-loader worker raised: error, worker"),
    _p("dataloader.shm-exhausted", "shared memory",
       r"insufficient shared memory \(shm\)|Unexpected bus error encountered in worker",
       "shared memory is too small"),
    _p("dataloader.timeout", "DataLoader timed out",
       r"DataLoader timed out after (?P<sec>[\d.]+) seconds", "a batch never came: sec"),
    # ---- memory, storage
    _p("memory.host-exhausted", "MemoryError", r"(?:^|[^\w])MemoryError(?:$|[^\w])",
       "host memory is exhausted"),
    _p("memory.host-exhausted", "allocate memory",
       r"[Cc]an(?:no|')t allocate memory(?!.*locked memory)", "the same from the system"),
    _p("memory.host-exhausted", "bad_alloc", r"std::bad_alloc", "the same in C++"),
    _p("memory.oom-killed", "oom-kill",
       r"Detected (?P<count>\d+) oom-kill event|oom-kill event", "OOM killer"),
    _p("memory.oom-killed", "oom_kill", r"Detected (?P<count>\d+) oom_kill event", "OOM killer"),
    _p("memory.oom-killed", "Out Of Memory", r"Out Of Memory", "OOM killer"),
    _p("memory.oom-killed", "OOMKilled", r"OOMKilled", "the same by Kubernetes"),
    _p("memory.oom-killed", "OUT_OF_MEMORY", r"OUT_OF_MEMORY", "the same by Slurm"),
    _p("memory.oom-killed", "exceed",
       r"exceed(?:ed|s|ing)? (?:the )?(?:request(?:ed)? |step |job )?memory(?: limit)?",
       "the scheduler's memory limit"),
    _p("storage.error", "tale file handle", r"Stale file handle|stale file handle",
       "a network file system lost the file"),
    _p("storage.full", "No space left on device", r"No space left on device", "a disk is full"),
    _p("storage.full", "isk quota exceeded", r"[Dd]isk quota exceeded", "a quota is used up"),
    _p("storage.error", "Input/output error", r"Input/output error", "reading or writing failed"),
    _p("storage.error", "Read-only file system", r"Read-only file system", "cannot be written"),
    # ---- processes and schedulers
    _p("process.fatal-python", "Fatal Python error",
       r"Fatal Python error: (?P<error>.{1,200})", "the interpreter died: error"),
    _p("process.signal-report", "ignal: ",
       r"Signal: (?P<name>[A-Za-z ]+) \((?P<signal>\d+)\)", "a process died of a signal: signal"),
    _p("process.signal-report", "Segmentation fault",
       r"Segmentation fault(?: +\(core dumped\))?", "SIGSEGV"),
    _p("process.signal-report", "Bus error", r"Bus error(?: +\(core dumped\))?", "SIGBUS"),
    _p("process.signal-report", "Killed",
       r"^(?:\S+: line \d+:\s+(?P<rank_pid>\d+) )?Killed(?:\s+(?P<command>.{0,200}))?\s*$",
       "SIGKILL, as a shell reports it: command"),
    _p("process.signal-report", "Killed",
       r"line \d+: +(?P<rank_pid>\d+) Killed\s+(?P<command>.{0,200})", "the same"),
    _p("slurm.cancelled", "CANCELLED AT",
       r"\*\*\* (?P<what>JOB|STEP) (?P<job>[\d.]+) ON (?P<node>\S+) CANCELLED AT (?P<at>\S+)"
       r"(?: DUE TO (?P<why>.+?))? ?\*\*\*", "Slurm ended it: why, node"),
    _p("slurm.task-exit", "srun: error: ",
       r"srun: error: (?P<node>[^:]+): tasks? (?P<tasks>[\d,\-]+): "
       r"(?P<how>Exited with exit code (?P<code>\d+)|[A-Za-z ]+)",
       "tasks ended: node, tasks, how, code"),
    _p("slurm.node-fail", "NODE FAIL", r"(?:DUE TO )?NODE FAIL(?:URE)?(?:.*? ON (?P<node>\S+))?",
       "Slurm lost a node: node"),
    _p("slurm.node-fail", "node failure", r"[Nn]ode failure on (?P<node>\S+)", "the same"),
    _p("scheduler.preempted", "preempt", r"this job is preempted|[Pp]reempted", "preempted"),
    _p("mpi.rank-exited", "mpirun",
       r"mpirun (?:noticed that process rank (?P<mpi_rank>\d+) with PID (?P<rank_pid>\d+) on node "
       r"(?P<node>\S+) exited on signal (?P<signal>\d+)|has exited due to process rank "
       r"(?P<mpi_rank2>\d+) with PID (?P<rank_pid2>\d+) on)",
       "mpirun saw a rank end: mpi_rank, signal, node"),
    _p("ucx.error", "UCX  ", r"UCX +(?P<level>ERROR|FATAL|WARN) +(?P<why>.{1,300})",
       "UCX reports: why"),
    _p("mpich.error", "MPICH ERROR",
       r"MPICH ERROR \[Rank (?P<mpi_rank>\d+)\].*?(?P<why>Abort.{0,200})", "MPICH aborts"),
)  # fmt: skip

EVENT_KINDS: dict[str, str] = {
    **{p.kind: p.says for p in reversed(PATTERNS)},
    "nccl.failed-collective-stack": "where the timed-out collective was called: frames, "
    "innermost first",
    "nccl.last-error": "the last WARN of NCCL as torch repeats it: message",
    "progress.rate": "steps a second as the job prints it, first and at each change by half: "
    "rate, step",
    "progress.last": "the last line of progress: step",
    "elastic.child-failed": "the launcher's own last words; the exits say more",
    "elastic.report": "one item of the launcher's final report: rank, code, root (yes or no)",
}
"""Event kind -> meaning. Names of fields stand after the colon."""

LITERALS: tuple[str, ...] = tuple(dict.fromkeys(p.literal for p in PATTERNS))
