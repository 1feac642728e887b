"""The final report of torchelastic: which rank ended how, and which it saw first.

Example::

    Root Cause (first observed failure):
    [0]:
      time      : 2026-11-30_19:52:40
      host      : localhost
      rank      : 1 (local_rank: 1)
      exitcode  : -9 (pid: 1381)
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import datetime, timezone

_ITEM = re.compile(r"^\[\d{1,6}\]:\s*$")
_FIELD = re.compile(r"^\s+(?P<key>time|host|rank|exitcode|error_file|traceback)\s*: (?P<value>.*)$")
_RANK = re.compile(r"^(?P<rank>\d{1,9})(?: \(local_rank: (?P<local>\d{1,9})\))?")
_CODE = re.compile(r"^(?P<code>-?\d{1,9})(?: \(pid: (?P<pid>\d{1,10})\))?")


@dataclass(slots=True)
class Item:
    """One worker of the report. ``code`` is negative for a signal. ``when`` epoch seconds."""

    line: int
    root: bool
    fields: dict[str, str] = field(default_factory=dict)

    @property
    def rank(self) -> int | None:
        """The global rank."""
        match = _RANK.match(self.fields.get("rank", ""))
        return int(match["rank"]) if match else None

    @property
    def local_rank(self) -> int | None:
        """The rank on its node."""
        match = _RANK.match(self.fields.get("rank", ""))
        return int(match["local"]) if match and match["local"] else None

    @property
    def code(self) -> int | None:
        """Exit code, or minus the signal."""
        match = _CODE.match(self.fields.get("exitcode", ""))
        return int(match["code"]) if match else None

    @property
    def pid(self) -> int | None:
        """The process id."""
        match = _CODE.match(self.fields.get("exitcode", ""))
        return int(match["pid"]) if match and match["pid"] else None

    @property
    def when(self) -> float | None:
        """Time of the failure; the node's clock taken as UTC."""
        try:
            stamp = datetime.strptime(self.fields.get("time", "").strip(), "%Y-%m-%d_%H:%M:%S")
        except ValueError:
            return None
        return stamp.replace(tzinfo=timezone.utc).timestamp()


class Report:
    """Feed it lines (without prefixes) of one stream; ``items`` are complete after ``finish``."""

    def __init__(self) -> None:
        self.items: list[Item] = []
        self._section = ""
        self._left = 0
        self._last = 0

    @property
    def open(self) -> bool:
        """True inside a report."""
        return bool(self._section)

    def expire(self, number: int) -> None:
        """Close a report whose writer has not gone on for many lines of others."""
        if self._section and number - self._last > 2000:
            self._section = ""

    def feed(self, body: str, number: int) -> bool:
        """True if the line belonged to a report."""
        text = body.strip()
        if text == "Failures:":
            self._section, self._left, self._last = "failures", 4_000, number
            return True
        if text.startswith("Root Cause (first observed failure)"):
            self._section, self._left, self._last = "root", 200, number
            return True
        if not self._section:
            return False
        self._left -= 1
        self._last = number
        if self._left < 0 or text.startswith("====="):
            self._section = ""
            return text.startswith("=====")
        if _ITEM.match(body):
            if len(self.items) < 200_000:
                self.items.append(Item(number, self._section == "root"))
            return True
        if match := _FIELD.match(body):
            if self.items:
                self.items[-1].fields.setdefault(match["key"], match["value"][:1000])
            return True
        return text.startswith("---") or text == "<NO_OTHER_FAILURES>"
