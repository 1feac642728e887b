"""What the name and folders of an artefact tell: rank, host, pid, snapshot, attempt.

Names never decide what an artefact is, only whose it is.
"""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Hint:
    """Who an artefact may be about; None is unsaid. ``local_rank`` is torchelastic's folder."""

    rank: int | None = None
    host: str | None = None
    pid: int | None = None
    snapshot: int | None = None
    attempt: int | None = None
    local_rank: int | None = None


_RANK = re.compile(r"(?:^|[^a-z])rank[_.\-]?(\d{1,7})(?!\d)", re.I)
_RANK_HOST = re.compile(r"rank[_.\-](?P<host>[A-Za-z][\w.\-]*?)[_.](?P<rank>\d{1,7})$")
_HOST_RANK = re.compile(
    r"^(?P<host>[A-Za-z][\w.\-]*?)[_.](?:\d+[_.])?rank[_.\-]?(?P<rank>\d{1,7})(?!\d)", re.I
)
_DUMP = re.compile(r"_dump_(\d{1,7})(?:\.\w+)*$")
_TAIL = re.compile(r"(?:^|[^0-9])(\d{1,7})(?:\.(?:pkl|pickle|json|bin|gz|trace))*$")
_NCCL = re.compile(r"^nccl[._\-](?P<host>.+)[._\-](?P<pid>\d{1,10})\.(?:log|txt|out|err)$", re.I)
_PID = re.compile(r"(?:^|[._\-])pid[._\-]?(\d{1,10})(?!\d)", re.I)
_SNAPSHOT = re.compile(r"^(?:snapshot|snap)[_.\-]?(\d{1,4})$", re.I)
_ATTEMPT = re.compile(r"^attempt[_.\-]?(\d{1,4})$", re.I)
_FOLDER_RANK = re.compile(r"^rank[_.\-]?(\d{1,7})$", re.I)
_NODE = re.compile(r"(?:^|[_.\-])((?:node|host|worker|nid|gpu|ip)[\-]?\d[\w\-]*)", re.I)
_OF_TOOL = re.compile(
    r"^(?P<host>[A-Za-z][\w\-]*\d\w*)[_.\-](?:port[_\-])?(?:counters|perfquery|mlxlink|ibstat|"
    r"ethtool|lspci|dmesg|journal|kern|nvidia[_\-]smi|iplink|sysfs|ras|df|free|top|ps)$"
)
_TIME = re.compile(r"[\dTZ:+\-]+$")
_PREFIXES = {
    "nccl_trace", "comm_lib_trace", "fr_trace", "torchcomms", "pyspy", "pyspy_native", "py_spy",
    "proc", "stack", "stacks", "exception", "env", "libraries", "pg_status", "gdb", "faulthandler",
    "log", "stdout", "stderr", "trace", "dump", "train", "torchrun", "vllm", "out", "err", "native",
    "nccl", "debug", "rank", "global", "pyspy_dump", "limits", "maps", "environ", "ulimit", "pip",
    "ps",
}  # fmt: skip
_KNOWN_WORDS = {
    "dmesg", "kern", "kernel", "journal", "journalctl", "messages", "syslog", "ras", "ncclras",
    "iplink", "ip", "link", "netstat", "snmp", "ss", "nvidia", "smi", "nvidia-smi", "ip_link",
    "meminfo", "pressure", "versions", "txt", "log", "out", "err", "json", "gz", "text", "terse",
    "json.log", "a", "b", "before", "after", "old", "new", "mid", "full", "all", "1", "2", "3",
}  # fmt: skip


def hint_of(path: str) -> Hint:
    """Read rank, host and so on from a label such as ``ranks/3/snapshot-2/pyspy_rank_3.txt``.

    >>> hint_of("ranks/3/snapshot-2/pyspy_rank_3.txt")
    Hint(rank=3, host=None, pid=None, snapshot=2, attempt=None, local_rank=None)
    >>> hint_of("nccl.node-07.4711.log").host
    'node-07'
    """
    parts = [part for part in re.split(r"[/!]", path) if part]
    name = parts[-1] if parts else ""
    folders = parts[:-1]
    rank = _rank_of(name)
    host = pid = snapshot = attempt = local_rank = None
    for index, folder in enumerate(folders):
        after = folders[index + 1] if index + 1 < len(folders) else ""
        if match := _SNAPSHOT.match(folder):
            snapshot = int(match[1])
        elif match := _ATTEMPT.match(folder):
            attempt = int(match[1])
            if after.isdigit() and len(after) < 8:
                local_rank = int(after)
        elif match := _FOLDER_RANK.match(folder):
            rank = int(match[1]) if rank is None else rank
        elif folder == "ranks" and after.isdigit() and len(after) < 8:
            rank = int(after) if rank is None else rank
        elif folder == "hosts" and after:
            host = after
    if match := _NCCL.match(name):
        host, pid = match["host"], int(match["pid"])
    elif (match := _RANK_HOST.search(name)) or (
        (match := _HOST_RANK.match(name)) and match["host"].lower() not in _PREFIXES
    ):
        host = host or match["host"]
    elif match := _PID.search(name):
        pid = int(match[1])
    if host is None and rank is None:
        host = _host_token(name)
    return Hint(rank, host, pid, snapshot, attempt, local_rank)


def trailing_rank(name: str) -> int | None:
    """The number at the end of ``name`` (a dump prefix plus rank): only for flight recorders."""
    match = _DUMP.search(name) or _TAIL.search(name)
    return int(match[1]) if match else None


def _rank_of(name: str) -> int | None:
    if match := _RANK_HOST.search(name):
        return int(match["rank"])
    if match := _RANK.search(name):
        return int(match[1])
    if match := _DUMP.search(name):
        return int(match[1])
    return None


def _host_token(name: str) -> str | None:
    if match := _OF_TOOL.match(name.rsplit(".", 1)[0]):
        return match["host"]
    if match := _NODE.search(name.rsplit(".", 1)[0]):
        return match[1]
    words = [word for word in re.split(r"[._]", name) if word]
    if not words or words[0].lower() not in _KNOWN_WORDS:
        return None
    odd = [word for word in words if word.lower() not in _KNOWN_WORDS and not _TIME.match(word)]
    return odd[0] if len(odd) == 1 else None
