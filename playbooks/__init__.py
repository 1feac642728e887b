"""Playbooks: Markdown for people, one per family of failures.

``names()`` lists them, ``read(name)`` gives one, ``section(text, signature)`` the part of it that
is about one signature.
"""

from __future__ import annotations

import re
from pathlib import Path

HOME = Path(__file__).parent


def names() -> tuple[str, ...]:
    """The names of all playbooks, sorted."""
    return tuple(sorted(path.stem for path in HOME.glob("*.md")))


def read(name: str) -> str:
    """The Markdown of one playbook. Raises KeyError, naming those that exist, for any other."""
    if name not in names():
        raise KeyError(f"no playbook {name!r}; there are {', '.join(names())}")
    return (HOME / f"{name}.md").read_text(encoding="utf-8")


def title(text: str) -> str:
    """The first heading."""
    return next((line[2:].strip() for line in text.splitlines() if line.startswith("# ")), "")


def section(text: str, signature: str) -> str:
    """The section ``## signature`` with its heading, "" if the playbook has none."""
    parts = re.split(r"^(?=## )", text, flags=re.MULTILINE)
    heading = f"## {signature}"
    return next((part for part in parts if part.splitlines()[0].strip() == heading), "")
