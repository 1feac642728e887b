"""Read torch.distributed's state from sys.modules: groups, own rank, recorder status.

No process group is ever held across a bytecode: if the job destroys a group while this thread
holds the last reference, its destructor would run here. Hence the maps over dictionaries,
which run inside one call of the interpreter.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from operator import attrgetter, methodcaller
from typing import Any, NamedTuple

from . import hook

Status = dict[str, dict[str, int]]


class Default(NamedTuple):
    """The default group as this process sees it."""

    rank: int
    world_size: int


class GroupInfo(NamedTuple):
    """One process group; ``ranks`` are global ranks in group order."""

    name: str
    desc: str
    ranks: tuple[int, ...]


def _loading(name: str) -> bool:
    spec = getattr(sys.modules.get(name), "__spec__", None)
    return bool(getattr(spec, "_initializing", False))


def ready() -> bool:
    """Whether torch.distributed is imported to the end (another thread may still be at it)."""
    return hook.TARGET in sys.modules and not _loading("torch") and not _loading(hook.TARGET)


def _world() -> Any:
    return getattr(sys.modules.get(hook.TARGET), "_world", None)


def native() -> Any:
    """The module of the C++ bindings, or None."""
    return sys.modules.get("torch._C._distributed_c10d")


def default_id() -> int:
    """A number that changes with the default group; 0 while there is none."""
    world = _world()
    if world is None:
        return 0
    if "_default_pg" in getattr(world, "__dict__", ()):
        found = id(world._default_pg)
        return 0 if found == id(None) else found
    return 0 if world.default_pg is None else id(world.default_pg)


def key() -> tuple[Any, ...]:
    """A cheap value that changes when the set of groups does."""
    world = _world()
    return (default_id(), *world.pg_names.values()) if world is not None else ()


def _by_id(groups: dict[Any, Any], values: Any) -> dict[int, Any]:
    return dict(zip(map(id, groups), values))  # noqa: B905


def default() -> Default | None:
    """Rank and size of the default group; None while there is none."""
    world, wanted = _world(), default_id()
    if not wanted:
        return None
    groups = world.pg_names
    rank = _by_id(groups, map(methodcaller("rank"), groups)).get(wanted)
    size = _by_id(groups, map(methodcaller("size"), groups)).get(wanted)
    return Default(rank, size) if rank is not None and size is not None else None


def groups() -> list[GroupInfo]:
    """All groups that this process is a member of."""
    world = _world()
    if world is None:
        return []
    known = world.pg_names
    names = _by_id(known, known.values())
    try:
        descs = _by_id(known, map(attrgetter("group_desc"), known))
    except AttributeError:  # torch before 2.4
        descs = {}
    members = _by_id(world.pg_group_ranks, world.pg_group_ranks.values())
    result = []
    for ident, name in names.items():
        places = members.get(ident) or {}
        ranks = tuple(sorted(places, key=places.__getitem__))
        result.append(GroupInfo(str(name), str(descs.get(ident) or ""), ranks))
    return result


def uses(backend: str) -> bool:
    """Whether some group has ``backend``; True when torch does not say."""
    configs = getattr(_world(), "pg_backend_config", None)
    if not configs:
        return True
    return any(backend in str(config) for config in list(configs.values()))


class Recorder:
    """The status part of one flight recorder, asked at most so often that it stays cheap.

    Some versions may ignore the request for the status alone and render every record; then the
    next question waits until its cost is a thousandth of the time.
    """

    def __init__(self, name: str, function: str) -> None:
        self.name = name
        self.function = function
        self.not_before = 0.0
        self.last_bytes = b""
        self.last: Status = {}
        self.broken = ""

    def status(self) -> Status:
        """``{"gloo:0": {"enqueued", "started", "completed"}}``; empty if there is no recorder."""
        call: Callable[..., Any] | None = getattr(native(), self.function, None)
        if call is None or self.broken:
            return {}
        before = time.monotonic()
        if before < self.not_before:
            return self.last
        try:
            data = call(False, False)
            if data != self.last_bytes:
                self.last = self._read(data)
                self.last_bytes = data if len(data) <= 65536 else b""
        except Exception as error:
            self.broken = f"{self.function}: {error!r}"
            hook.problem(self.broken)
            return {}
        took = time.monotonic() - before
        self.not_before = before + took * 1000 if took > 0.001 else 0.0
        return self.last

    def _read(self, data: Any) -> Status:
        text = data.decode("utf-8", "replace") if isinstance(data, bytes) else str(data)
        found = json.loads(text).get("pg_status") or {}
        return {
            f"{self.name}:{group}": {
                short: int(marks.get(f"last_{short}_collective", -1))
                for short in ("enqueued", "started", "completed")
            }
            for group, marks in found.items()
        }
