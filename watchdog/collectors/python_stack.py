"""Python stacks of each rank without stopping it: py-spy dump --nonblocking."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from fabwatch.watchdog.capture import commands
from fabwatch.watchdog.capture.collector import Collector, Target
from fabwatch.watchdog.capture.outcome import Outcome, absent, failed, timed_out

KEPT_LOCALS = frozenset(("src", "dst", "group_src", "group_dst", "peer", "tag"))
"""Locals that name a partner; every other local may hold anything and is dropped."""

COMMAND_CAP = 4096

_LOCAL = re.compile(rb"^            ([A-Za-z_]\w*): (.*)$")
_SCALAR = re.compile(rb"(?:-?\d{1,20}|None|True|False)$")
_BLOCK = (b"        Arguments:", b"        Locals:")
MISSING = "py-spy is neither beside the interpreter nor in PATH: pip install py-spy"


def collect(target: Target, out: Path) -> Iterator[Outcome]:
    """Up to three tries, the last without locals: reading a running process can fail."""
    spy = commands.program("py-spy")
    if spy is None:
        yield absent(MISSING)
        return
    base = [spy, "dump", "--nonblocking", "--pid", str(target.pid)]
    ran = None
    for extra in (["--locals"], ["--locals"], []):
        ran = commands.run([*base, *extra], timeout=target.left(), cap=16 << 20)
        if ran.code == 0 or ran.code is None or not target.alive():
            break
    assert ran is not None
    if ran.code is None:
        yield timed_out(ran.why("py-spy"))
    elif ran.code != 0:
        yield failed(ran.why("py-spy"))
    else:
        path = out / target.named("pyspy_rank_N.txt")
        yield target.save(path, without_locals(ran.out), cap=2 << 20, partial=ran.clipped)


def without_locals(dump: bytes) -> bytes:
    """The dump with frames and headers, and of locals only the scalars that name a partner."""
    kept: list[bytes] = []
    heading: bytes | None = None
    # A command line may hold line feeds, and lines in it that look like frames.
    command, version, rest = dump.partition(b"\nPython v")
    if version and command.startswith(b"Process "):
        kept.append(command.replace(b"\n", b" ")[:COMMAND_CAP])
        dump = version[1:] + rest
    for line in dump.split(b"\n"):
        if line.rstrip() in _BLOCK:
            heading = line.rstrip()
            continue
        if line.startswith(b"         "):  # deeper than a frame: a local, or the rest of one
            found = _LOCAL.match(line)
            if found and found[1].decode() in KEPT_LOCALS and _SCALAR.match(found[2]):
                if heading is not None:
                    kept.append(heading)
                    heading = None
                kept.append(line)
            continue
        heading = None
        kept.append(line)
    return b"\n".join(kept)


COLLECTOR = Collector(
    name="python-stack",
    scope="rank",
    tier=1,
    source="python-stack",
    needs=("py-spy",),
    deadline_s=3.0,
    first=True,
    collect=collect,
)
