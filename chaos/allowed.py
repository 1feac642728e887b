"""Where faults may be injected at all: nowhere, until somebody names this host."""

from __future__ import annotations

import fnmatch
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fabwatch.chaos.model import Refused

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

TOO_WIDE = frozenset("*?[]!-. ")
"""A pattern of nothing else names no host."""


def host_names() -> list[str]:
    """What this host is called."""
    name = socket.gethostname()
    return list(dict.fromkeys([name, name.partition(".")[0]]))


def check(patterns: Sequence[str], folder: Path | None = None) -> str:
    """The pattern that allows it; :class:`Refused` when none does.

    ``patterns``: of ``--yes-break``. ``folder``: where fabwatch.toml ([chaos] allowed-hosts) or
    pyproject.toml ([tool.fabwatch.chaos] allowed-hosts) may name hosts.
    """
    names = host_names()
    every = [*patterns, *_configured(folder or Path.cwd())]
    for pattern in every:
        if not pattern.strip() or set(pattern) <= TOO_WIDE:
            raise Refused(f"the host pattern {pattern!r} names no host: write (part of) its name")
        if any(fnmatch.fnmatchcase(name, pattern) for name in names):
            return pattern
    told = f"; {', '.join(every)} do not match" if every else ""
    raise Refused(
        f"nobody said that {names[0]} may be broken{told}. If it may: --yes-break {names[0]}, "
        f'or in fabwatch.toml: [chaos] allowed-hosts = ["{names[0]}"]'
    )


def _configured(folder: Path) -> list[str]:
    """Patterns of the configuration file; :class:`Refused` when it cannot be read."""
    for name, keys in (("fabwatch.toml", ()), ("pyproject.toml", ("tool", "fabwatch"))):
        path = folder / name
        try:
            text = path.read_text(encoding="utf-8")
            table: Any = tomllib.loads(text)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as err:
            if keys:
                continue  # somebody else's file
            raise Refused(f"{path}: cannot be read: {err}") from None
        for key in (*keys, "chaos"):
            table = table.get(key, {}) if isinstance(table, dict) else {}
        hosts = table.get("allowed-hosts", []) if isinstance(table, dict) else []
        if not isinstance(hosts, list) or not all(isinstance(h, str) for h in hosts):
            raise Refused(f"{path}: [chaos] allowed-hosts: a list of host patterns is needed")
        if hosts:
            return hosts
    return []
