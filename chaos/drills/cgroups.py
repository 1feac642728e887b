"""Cgroups that a drill makes for itself: a freezer, a memory limit; v1 and v2."""

from __future__ import annotations

import contextlib
import os
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")


def _parent(controller: str) -> tuple[Path, bool] | None:
    """The folder in which a cgroup with ``controller`` can be made, and whether it is v2."""
    v1 = ROOT / controller
    if v1.is_dir() and os.access(v1, os.W_OK):
        return v1, False
    for v2 in (ROOT, ROOT / "unified"):
        if not (v2 / "cgroup.controllers").is_file() or not os.access(v2, os.W_OK):
            continue
        has = (v2 / "cgroup.subtree_control").read_text().split()
        if controller == "freezer" or controller in has:
            return v2, True
    return None


def available(controller: str) -> bool:
    """Whether a cgroup with ``controller`` (freezer, memory) can be made here."""
    return _parent(controller) is not None


@contextlib.contextmanager
def cgroup(controller: str) -> Iterator[tuple[Path, bool]]:
    """A cgroup of our own; whoever is left in it is thawed and moved out at the end."""
    found = _parent(controller)
    if found is None:
        raise RuntimeError(f"no {controller} cgroup can be made below {ROOT}")
    parent, v2 = found
    path = parent / f"fabwatch-drill-{uuid.uuid4().hex[:8]}"
    path.mkdir()
    try:
        yield path, v2
    finally:
        if controller == "freezer":
            thaw(path, v2)
        for _ in range(50):
            for pid in (path / "cgroup.procs").read_text().split():
                with contextlib.suppress(OSError):
                    (parent / "cgroup.procs").write_text(pid)
            with contextlib.suppress(OSError):
                path.rmdir()
                break
            time.sleep(0.1)


def move(path: Path, pid: int) -> None:
    """Put one process into the cgroup."""
    (path / "cgroup.procs").write_text(str(pid))


def freeze(path: Path, v2: bool) -> None:
    """Freeze all processes of the cgroup."""
    (path / ("cgroup.freeze" if v2 else "freezer.state")).write_text("1" if v2 else "FROZEN")


def thaw(path: Path, v2: bool) -> None:
    """Undo :func:`freeze`."""
    (path / ("cgroup.freeze" if v2 else "freezer.state")).write_text("0" if v2 else "THAWED")


def limit_memory(path: Path, v2: bool, limit: int) -> None:
    """Set the limit in bytes."""
    (path / ("memory.max" if v2 else "memory.limit_in_bytes")).write_text(str(limit))
