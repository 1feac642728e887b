"""Read which libraries are there: pip and conda lists, ldd, /proc/PID/maps, lists of mapped files.

Example::

    nvidia-nccl-cu12          2.21.5
    7f00-7f10 r-xp 00000000 08:01 1234   /opt/venv/nvidia/nccl/lib/libnccl.so.2
"""

from __future__ import annotations

import re

from fabwatch.watchdog.evidence.artefact import LINE_BYTES, Artefact
from fabwatch.watchdog.evidence.measuring import Looks
from fabwatch.watchdog.evidence.observations import JobShape, Observation, Parsed

NAME = "libraries"
MAKES = ("libraries",)
PASTED = True

_PACKAGE = re.compile(
    r"^(?P<name>torch|nvidia-nccl-cu\d{2}|nvidia-cuda-runtime-cu\d{2}|deepspeed|vllm|ray|"
    r"transformers|"
    r"pytorch|nccl|accelerate|torchvision|triton|py-spy|transformer[-_]engine|megatron[-_]core)"
    r"(?:==|\s{1,60}|=)(?P<version>\d[\w.+\-]{0,60})"
)
_MAPPED = re.compile(
    r"(?:^|\s)(?P<path>/[^\s()]{1,1000}/(?P<lib>lib(?:nccl(?!-net|_net|-tuner)|nccl-net|"
    r"torch_cuda|cuda|cudart|"
    r"fabric|ucp|rccl)[\w\-]*)\.so[\w.]*)(?:\t(?P<version>\S+))?"
)
_VERSION = re.compile(r"\.so\.(?P<version>\d+\.\d+\.\d+)$")
_SNIFF = re.compile(
    rb"^Package\s+Version\s*\n-{3,}|^# packages in environment at |"
    rb"^[0-9a-f]{6,16}-[0-9a-f]{6,16} [r-][w-][x-][ps] |^\s+lib\w[\w.\-]+ => /|"
    rb"^(?:[A-Za-z][\w.\-]+==\d[^\n]*\n){3}",
    re.M,
)


def sniff(head: bytes, name: str) -> int:
    """The headings of pip and conda, pinned names, or the lines of ldd and maps."""
    if _SNIFF.search(head):
        return 86
    lines = [line for line in head[:32768].split(b"\n") if line.strip()]
    paths = sum(1 for line in lines if re.match(rb"/\S+/lib[\w\-.+]+\.so\S*(?:\t\S.*)?$", line))
    return 86 if paths >= 2 and paths * 10 >= len(lines) * 8 else 0


def parse(artefact: Artefact) -> Parsed:
    """Versions as a JobShape, and a ``library`` look for NCCL's wheels and mapped files."""
    text, _ = artefact.text(64 * 1024 * 1024)
    source = artefact.source("libraries")
    looks = Looks(source)
    versions: dict[str, str] = {}
    seen: set[tuple[str, str]] = set()
    for number, line in enumerate(text.split("\n"), 1):
        line = line[:LINE_BYTES].rstrip()
        if match := _PACKAGE.match(line):
            name, version = match["name"], match["version"]
            short = "nccl" if name.startswith("nvidia-nccl-") else name
            short = {"pytorch": "torch"}.get(short, short)
            versions.setdefault(short, version.split("+")[0])
            if (name, version) not in seen and name.startswith("nvidia-nccl-"):
                looks.put("library", "nccl-wheel", name, version, number)
            seen.add((name, version))
            continue
        for match in _MAPPED.finditer(line):
            name, path = match["lib"], match["path"]
            if (name, path) in seen or len(seen) > 10_000:
                continue
            seen.add((name, path))
            found = _VERSION.search(path)
            version = match["version"] or (found["version"] if found else "")
            if name in ("libnccl", "librccl") and version:
                versions.setdefault("nccl", version)
            looks.put("library", name, path, version, number)
    made: list[Observation] = list(looks.out())
    if versions:
        made.append(JobShape(source, None, (), tuple(sorted(versions.items()))))
    return Parsed(tuple(made), (), (source,))
