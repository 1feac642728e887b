"""Take what launchers, schedulers and log drivers put before a line off it, and keep what it says.

>>> line = unmix("[default3]:[rank7]: ValueError: no")
>>> line.rank, line.local_rank, line.body
(7, 3, 'ValueError: no')
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime, timezone

_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]{0,4096}(?:\x07|\x1b\\)|[@-Z\\-_])")
_ISO = re.compile(
    r"^\[?(?P<iso>\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?)(?P<zone>Z|[+-]\d\d:?\d\d)?\]?"
    r"(?: (?:stdout|stderr) [FP])?[ \t]"
)
_SYSLOG = re.compile(
    r"^(?:<\d{1,3}>)?[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d (?P<host>[\w.\-]+) "
    r"(?P<ident>[\w./\-]+)(?:\[(?P<pid>\d+)\])?: "
)
_POD = re.compile(r"^\[pod/(?P<pod>[^/\]]{1,253})(?:/[^\]]{1,253})?\] ")
_COMPOSE = re.compile(r"^(?P<pod>[\w.\-]{1,253}) {1,40}\| ")
_RAY = re.compile(
    r"^\((?P<actor>[\w.:\-<>]{1,200}) pid=(?P<pid>\d{1,10})(?:, ip=(?P<ip>[\w.:]+))?\) ?"
)
_MPI = re.compile(r"^\[(?P<job>\d{1,9}),(?P<rank>\d{1,7})\]<std(?:out|err|diag)>: ?")
_SRUN = re.compile(r"^ {0,5}(?P<task>\d{1,7}): ")
_RANK = re.compile(r"^\[rank(?P<rank>\d{1,7})\]: ?")
_RANK_TORCH = re.compile(r"^\[rank(?P<rank>\d{1,7})\]:(?=\[?[IWEF]\d)")
_ROLE = re.compile(r"^\[(?P<role>[A-Za-z_]{1,40}?)(?P<local>\d{1,5})\]:")
_HOST = re.compile(
    r"^(?P<host>[a-z][\w.\-]{0,200}\d[\w.\-]{0,50}): (?=\[|Traceback|  File |\S+:\d+:\d+ \[)"
)
_FIRST = frozenset("[(0123456789<ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz \x1b")


@dataclass(slots=True)
class Line:
    """One line without its prefixes. ``stream`` is the same for lines of one writer.

    ``task`` is srun's task number, ``pid`` Ray's or syslog's, ``when`` epoch seconds (a time
    without a zone counts as UTC).
    """

    body: str
    stream: str = ""
    rank: int | None = None
    local_rank: int | None = None
    task: int | None = None
    pid: int | None = None
    host: str | None = None
    when: float | None = None


def unmix(text: str) -> Line:
    """Take the prefixes off ``text`` (one line without its end)."""
    if "\x1b" in text:
        text = _ANSI.sub("", text)
    line = Line(text)
    if not text or text[0] not in _FIRST:
        return line
    stream: list[str] = []
    for _ in range(8):
        body = line.body
        first = body[:1]
        if first == "[":
            if match := _RANK.match(body):
                line.rank = int(match["rank"])
                stream.append(f"rank{line.rank}")
            elif match := _MPI.match(body):
                line.rank = int(match["rank"])
                stream.append(f"mpi{match['job']},{line.rank}")
            elif match := _POD.match(body):
                line.host = match["pod"]
                stream.append(match["pod"])
            elif match := _ISO.match(body):
                line.when = _epoch(match)
            elif (match := _ROLE.match(body)) and match["role"] != "rank":
                line.local_rank = int(match["local"])
                stream.append(f"{match['role']}{line.local_rank}")
            else:
                break
        elif first == "(":
            match = _RAY.match(body)
            if not match:
                break
            line.pid = int(match["pid"])
            line.host = match["ip"] or line.host
            stream.append(f"pid{line.pid}@{match['ip'] or ''}")
        elif match := _ISO.match(body):
            line.when = _epoch(match)
        elif match := _SRUN.match(body):
            line.task = int(match["task"])
            stream.append(f"task{line.task}")
        elif match := _SYSLOG.match(body):
            line.host = match["host"]
            if match["pid"]:
                line.pid = int(match["pid"][:10])
            stream.append(f"{match['host']}/{match['ident']}{match['pid'] or ''}")
        elif match := _HOST.match(body):
            line.host = match["host"]
            stream.append(match["host"])
        elif match := _COMPOSE.match(body):
            line.host = match["pod"]
            stream.append(match["pod"])
        else:
            break
        line.body = body[match.end() :]
    line.stream = "|".join(stream)
    return line


def _epoch(match: re.Match[str]) -> float | None:
    text = match["iso"].replace(",", ".").replace(" ", "T")
    head, dot, fraction = text.partition(".")
    zone = match["zone"] or "Z"
    zone = "+00:00" if zone == "Z" else (zone if ":" in zone else f"{zone[:3]}:{zone[3:]}")
    try:
        stamp = datetime.fromisoformat(head + zone)
    except ValueError:
        return None
    return stamp.astimezone(timezone.utc).timestamp() + (float(f"0.{fraction}") if dot else 0.0)
