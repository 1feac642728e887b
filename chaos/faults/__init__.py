"""The faults, one file each, found by listing this folder."""

from __future__ import annotations

import functools
import importlib
import pkgutil

from fabwatch.chaos.model import Fault, Refused


@functools.cache
def load() -> dict[str, Fault]:
    """Fault id -> fault, sorted by id. A module may hold ``FAULT`` or ``FAULTS``."""
    found: dict[str, Fault] = {}
    for info in sorted(pkgutil.iter_modules(__path__), key=lambda one: one.name):
        if info.name.startswith("_"):
            continue
        module = importlib.import_module(f"{__name__}.{info.name}")
        single = getattr(module, "FAULT", None)
        several: tuple[Fault, ...] = getattr(module, "FAULTS", ())
        for fault in (*((single,) if single is not None else ()), *several):
            if fault.id in found:
                raise RuntimeError(f"{module.__file__}: the fault {fault.id} exists already")
            found[fault.id] = fault
    return dict(sorted(found.items()))


def find(name: str) -> Fault:
    """The fault with that id; :class:`Refused` names the nearest ones."""
    faults = load()
    if name not in faults:
        import difflib

        near = difflib.get_close_matches(name, faults, 3, 0.4)
        hint = f"; near it: {', '.join(near)}" if near else "; see fabwatch chaos list"
        raise Refused(f"no fault {name!r}{hint}")
    return faults[name]
