"""Read the log of a job, whatever launcher, scheduler or log driver wrote and mixed it.

Example::

    [rank0]:[E1130 19:45:16.925309884 ProcessGroupNCCL.cpp:689] [Rank 0] Watchdog caught collective
    operation timeout: WorkNCCL(SeqNum=21, OpType=ALLREDUCE, ... Timeout(ms)=14000) ran for ...
"""

from __future__ import annotations

import re

from fabwatch.watchdog.evidence.artefact import Artefact, looks_binary
from fabwatch.watchdog.evidence.log_scan import ANY, scan
from fabwatch.watchdog.evidence.observations import Parsed

NAME = "job-log"
MAKES = ("job-log", "nccl-log", "exit", "python-stack")

_NAME = re.compile(
    r"(?:^|[._\-/])(?:log|logs|out|err|stdout|stderr|stdin|console|train|torchrun|slurm)"
    r"(?:[._\-\d]|$)",
    re.I,
)
_LINES = re.compile(
    rb"^(?:\x1b\[[\d;]*m)?(?:\[(?:rank|default)\d+\]:|\[\d+,\d+\]<std|\([\w.:]+ pid=\d+|"
    rb"\s{0,4}\d+: |"
    rb"\[?\d{4}-\d\d-\d\d[T ]\d\d:\d\d|\[?[IWEF]\d{3,4} \d\d:\d\d)",
    re.M,
)
_STRONG = re.compile(
    rb"ProcessGroup|NCCL (?:INFO|WARN)|Traceback \(most recent|exitcode|torch[./]distributed|"
    rb"Watchdog caught|CUDA (?:error|out of memory)|srun: error|slurmstepd|DataLoader worker|"
    rb"gloo/transport|TCPStore|RuntimeError|\bit/s\b|s/it\b|monitoredBarrier|Fatal Python error|"
    rb"^Killed$|CANCELLED AT|ACTIVE OPS|UCX  (?:ERROR|WARN|FATAL)|MPICH ERROR|NET/OFI",
    re.M,
)
_NCCL = re.compile(
    rb":\d+:\d+ (?:\[-?\d+\] )?(?:\S+:\d+ )?(?:\([^)]*\) )?NCCL (?:INFO|WARN|TRACE|CALL)"
)


def sniff(head: bytes, name: str) -> int:
    """Text with lines of a job; a text that is merely called a log comes last."""
    if looks_binary(head):
        return 0
    start = head.lstrip()[:1]
    if start in (b"{", b"[") and name.endswith((".json", ".jsonl")):
        return 0
    if name.endswith((".md", ".py", ".yaml", ".yml", ".toml", ".html", ".sh", ".c", ".h")):
        return 0
    if _STRONG.search(head):
        return 50
    if _LINES.search(head) or (ANY.search(head) and _NAME.search(name)):
        return 20
    return 5 if _NAME.search(name) else 0


def parse(artefact: Artefact) -> Parsed:
    """Events, exceptions, exits, stacks and the shape of the job."""
    kind = "job-log"
    head = artefact.head()
    lines = [line for line in head.split(b"\n") if line.strip()]
    ours = sum(1 for line in lines if _NCCL.search(line))
    if lines and ours * 2 >= len(lines):
        kind = "nccl-log"
    found = scan(artefact, kind)
    looked = [artefact.source(kind)]
    if kind == "job-log" and any(e.source.kind == "nccl-log" for e in found.events):
        looked.append(artefact.source("nccl-log"))
    if found.items:
        looked.append(artefact.source("exit"))
    return Parsed(found.observations(), tuple(found.problems), tuple(looked))
