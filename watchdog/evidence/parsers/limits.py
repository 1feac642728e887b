"""Read limits and space: ``ulimit -a``, /proc/PID/limits, df, free and meminfo.

Example::

    max locked memory           (kbytes, -l) 64
    tmpfs              65536 65536         0 100% /dev/shm
"""

from __future__ import annotations

import re

from fabwatch.watchdog.evidence.artefact import LINE_BYTES, Artefact
from fabwatch.watchdog.evidence.measuring import Looks, real, whole
from fabwatch.watchdog.evidence.observations import Parsed

NAME = "limits"
MAKES = ("process",)
PASTED = True

_ULIMIT = re.compile(
    r"^-?\w?:? ?(?P<what>max locked memory|locked-in-memory size|locked memory|stack size|open "
    r"files|"
    r"file descriptors|max user processes|processes)\s+\((?P<unit>[^)]{0,30})\)\s+"
    r"(?P<value>\d{1,18}|unlimited)\s*$"
)
_PROC = re.compile(
    r"^Max (?P<what>locked memory|stack size|open files|processes)\s+(?P<value>\d{1,18}|"
    r"unlimited)\s"
)
_DASH = re.compile(
    r"^(?P<what>locked memory|stack|nofiles|process)\((?P<unit>\w+)\)\s+(?P<value>\d+|unlimited)$"
)
_DF = re.compile(
    r"^(?P<what>\S.{0,200}?)\s+(?P<size>[\d.]{1,20}[KMGTPE]?i?B?)\s+(?P<used>[\d.]{1,20}[KMGTPE]?i?B?)\s+"
    r"(?P<free>[\d.]{1,20}[KMGTPE]?i?B?)\s+(?P<percent>\d{1,3})%\s+(?P<mount>/\S{0,400})\s*$"
)
_DF_HEAD = re.compile(r"^Filesystem\s+(?:Type\s+)?(?P<unit>\S+)\s")
_MEM = re.compile(
    r"^(?P<key>MemTotal|MemAvailable|SwapTotal|SwapFree|Shmem):\s+(?P<kb>\d{1,15}) kB"
)
_FREE_HEAD = re.compile(r"^\s+total\s+used\s+free\s")
_FREE = re.compile(r"^(?P<key>Mem|Swap):\s+(?P<rest>[\d.\sKMGTiB]{5,200})$")
_NAMES = {
    "max locked memory": "memlock", "locked-in-memory size": "memlock", "locked memory": "memlock",
    "stack size": "stack", "stack": "stack", "open files": "files", "file descriptors": "files",
    "nofiles": "files", "max user processes": "processes", "processes": "processes",
    "process": "processes",
}  # fmt: skip
_UNITS = {"K": 1, "M": 1024, "G": 1024**2, "T": 1024**3, "P": 1024**4, "E": 1024**5}


def sniff(head: bytes, name: str) -> int:
    """Lines of these tools."""
    if re.search(rb"^(?:max locked memory|-l: locked|core file size)\s+\(", head, re.M):
        return 90
    if re.search(rb"^Limit\s+Soft Limit\s+Hard Limit", head, re.M):
        return 88
    if re.search(rb"^Filesystem\s+\S.{0,60}\bMounted on", head, re.M):
        return 90
    if re.search(rb"^MemTotal:\s+\d+ kB", head, re.M):
        return 88
    if re.search(rb"^\s+total\s+used\s+free\s[^\n]*\nMem:", head, re.M):
        return 88
    return 0


def parse(artefact: Artefact) -> Parsed:
    """Limits of a process (memlock and stack in KiB), mounts, and the memory of a host."""
    text, _ = artefact.text(16 * 1024 * 1024)
    looks = Looks(artefact.source("process"))
    unit, inodes, columns = 1.0, False, False
    for number, line in enumerate(text.split("\n"), 1):
        line = line[:LINE_BYTES].rstrip()
        if match := _ULIMIT.match(line) or _DASH.match(line):
            _limit(looks, _NAMES[match["what"]], match["value"], match["unit"], number)
        elif match := _PROC.match(line):
            _limit(looks, _NAMES[match["what"]], match["value"], "bytes", number)
        elif match := _DF_HEAD.match(line):
            head = match["unit"]
            inodes = head == "Inodes"
            unit = {"1M-blocks": 1024, "1G-blocks": 1024**2, "1B-blocks": 1 / 1024,
                    "512-blocks": 0.5}.get(head, 1)  # fmt: skip
        elif match := _DF.match(line):
            mount = match["mount"]
            if inodes:
                looks.put("mount", mount, "inodes_percent", whole(match["percent"]), number)
            else:
                looks.put("mount", mount, "percent", whole(match["percent"]), number)
                looks.put("mount", mount, "size_kb", _kib(match["size"], unit), number)
                looks.put("mount", mount, "available_kb", _kib(match["free"], unit), number)
        elif match := _MEM.match(line):
            looks.put("memory", "host", match["key"], whole(match["kb"]), number)
        elif _FREE_HEAD.match(line):
            columns = True
        elif columns and (match := _FREE.match(line)):
            words = match["rest"].split()
            scale = 1024.0 if re.search(r"\bfree .*-\w*m", artefact.asked) else 1.0
            scale = 1024.0**2 if re.search(r"\bfree .*-\w*g", artefact.asked) else scale
            if match["key"] == "Mem" and len(words) >= 6:
                looks.put("memory", "host", "MemTotal", _kib(words[0], scale), number)
                looks.put("memory", "host", "MemAvailable", _kib(words[5], scale), number)
    if not looks:
        return Parsed(errors=(artefact.error("holds no limit", advice="save it again"),))
    return Parsed(looks.out(), (), (looks.source,))


def _limit(looks: Looks, name: str, value: str, unit: str, number: int) -> None:
    if value == "unlimited":
        looks.put("limit", name, "value", value, number)
        return
    amount = whole(value)
    if amount is not None and name in ("memlock", "stack") and "byte" in unit and "kb" not in unit:
        amount //= 1024
    looks.put("limit", name, "value", amount, number)


def _kib(text: str, unit: float) -> int | None:
    """KiB of ``64M`` or of a plain number in ``unit`` KiB."""
    amount = real(text)
    if amount is None:
        return None
    letter = text.strip().rstrip("iB")[-1:]
    scale = _UNITS.get(letter, unit)
    return int(amount * scale)
