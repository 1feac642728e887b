"""Turns a fact that nobody could look for into a sentence: what is missing and how to get it."""

from __future__ import annotations

from collections.abc import Iterable

from fabwatch.watchdog.evidence.facts import EVERYONE, Facts
from fabwatch.watchdog.evidence.vocabulary import VOCABULARY

HOW: dict[str, str] = {
    "flight-recorder": "flight-recorder dumps of ALL ranks (the worker's /handler/fr_trace_json or "
    "dump_nccl_trace_json, or write a byte to the pipe of TORCH_NCCL_DEBUG_INFO_PIPE_FILE)",
    "flight-recorder-frames": "a flight-recorder pickle with frames",
    "pg-status": "the probe's page (wrap the launch with fabwatch, without --no-probe)",
    "python-stack": "py-spy dump --nonblocking --pid PID, twice, 10 s apart",
    "native-stack": "py-spy dump --native --pid PID (or gdb: thread apply all bt)",
    "process": "cat /proc/PID/status /proc/PID/wchan /proc/PID/io /proc/PID/cgroup, twice, 10 s "
    "apart",
    "exit": "exit code or signal of every rank (wrap the launch, or the launcher's log)",
    "exception": "the rank's traceback (its stderr, or torchelastic's error.json)",
    "job-log": "the job's whole log, from before the first error, of every node",
    "nccl-log": "NCCL_DEBUG=INFO NCCL_DEBUG_FILE=nccl.%h.%p.log on all ranks",
    "ras": "ncclras -v, twice, 10 s apart (or: echo verbose status | nc localhost 28028)",
    "gpu": "nvidia-smi --query-gpu=index,utilization.gpu,power.draw --format=csv, twice",
    "kernel-log": "dmesg -T (or journalctl -k) of the host, from before the failure",
    "cgroup": "memory.events and memory.peak of the rank's cgroup",
    "interfaces": "ip -s -d link (and ibstat) on both hosts, twice, 10 s apart",
    "sockets": "ss -tinpm on both hosts, twice, 10 s apart",
    "pressure": "cat /proc/pressure/io /proc/pressure/memory /proc/pressure/cpu",
    "environment": "environment of the ranks (/proc/PID/environ, secrets masked)",
    "libraries": "libraries that the ranks have mapped (/proc/PID/maps)",
    "other-text": "the output of the command that shows it",
    "watch": "a capture by fabwatch that waited long enough, or two dumps minutes apart",
}
"""Source -> what a person does to get it."""


def ask(name: str, facts: Facts, ranks: Iterable[int] = ()) -> str:
    """``process.stopped (state T ...): fetch cat /proc/PID/status ... of rank 3``.

    "" when every source that can show the fact has been read: then there is nothing to fetch.
    """
    entry = VOCABULARY[name]
    wanted = set(ranks)
    order = (*entry.denied_by, *(s for s in entry.seen_by if s not in entry.denied_by))
    source = next((s for s in order if not _read(s, facts, wanted)), "")
    if not source:
        return ""
    who = f" of {ranks_text(wanted)}" if wanted and source not in _JOB_WIDE else ""
    return f"{name} ({entry.says}): fetch {entry.fetch or HOW[source]}{who}"


_JOB_WIDE = frozenset({"job-log", "flight-recorder", "ras", "watch", "nccl-log"})


def _read(source: str, facts: Facts, ranks: set[int]) -> bool:
    read = facts.looked.get(source, set())
    return EVERYONE in read or (bool(read) and ranks <= read)


def ranks_text(ranks: Iterable[int], most: int = 8) -> str:
    """``rank 3``, ``ranks 1-4, 9``; at most ``most`` stretches are printed, the rest counted."""
    numbers = sorted(set(ranks))
    stretches: list[tuple[int, int]] = []
    for number in numbers:
        if stretches and number == stretches[-1][1] + 1:
            stretches[-1] = (stretches[-1][0], number)
        else:
            stretches.append((number, number))
    texts = [str(a) if a == b else f"{a}-{b}" for a, b in stretches[:most]]
    rest = sum(b - a + 1 for a, b in stretches[most:])
    more = f" and {rest} more" if rest else ""
    return f"rank{'s' if len(numbers) != 1 else ''} {', '.join(texts)}{more}"
