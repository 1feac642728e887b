"""Parsers: one file for each kind of raw artefact, found by listing this folder."""

from __future__ import annotations

import importlib
import pkgutil
from functools import lru_cache
from typing import cast

from fabwatch.watchdog.evidence.artefact import Parser


@lru_cache(maxsize=1)
def all_parsers() -> tuple[Parser, ...]:
    """Every module of this folder that has NAME, MAKES, sniff and parse, by name."""
    found = []
    for info in pkgutil.iter_modules(__path__):
        if not info.name.startswith("_"):
            module = importlib.import_module(f"{__name__}.{info.name}")
            found.append(cast(Parser, module))
    return tuple(found)
