"""The completeness ledger: every rank x source, and how the attempt ended."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import msgspec


class Status(str, Enum):
    """How an attempt to get evidence ended."""

    OK = "ok"
    PARTIAL = "partial"
    FAILED = "failed"
    TIMED_OUT = "timed-out"
    NOT_ARMED = "not-armed"
    ABSENT = "absent"


class Evidence(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One ledger line. ``path`` is relative to the incident; ``took`` is seconds.

    ``rank`` None and ``host`` set: evidence of a host. ``perturbs`` says what taking it cost the
    job, if anything.
    """

    source: str
    status: Status
    rank: int | None = None
    host: str = ""
    pid: int | None = None
    path: str = ""
    sha256: str = ""
    size: int = 0
    started: float = 0.0
    took: float = 0.0
    snapshot: int = 1
    reason: str = ""
    collector: str = ""
    expected: bool = False  # absent, and that is the answer: nothing of it is missing

    def gap(self) -> str:
        """``rank 1: flight-recorder: no answer in 3 s``."""
        who = f"rank {self.rank}" if self.rank is not None else (self.host or "run")
        return f"{who}: {self.source}: {self.reason or self.status.value}"


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Evidence).decode


class Ledger:
    """Ledger lines in memory, and as JSON lines on disk (append-only, readable half-written)."""

    def __init__(self, lines: Iterable[Evidence] = ()) -> None:
        self.lines: list[Evidence] = list(lines)

    def __iter__(self) -> Iterator[Evidence]:
        return iter(self.lines)

    def add(self, line: Evidence, file: Path | None = None) -> None:
        """Remember ``line`` and append it to ``file`` in one write."""
        self.lines.append(line)
        if file is not None:
            with file.open("ab", buffering=0) as out:
                out.write(_encode(line) + b"\n")

    @classmethod
    def read(cls, file: Path) -> tuple[Ledger, list[str]]:
        """Lines that can be read, and one located complaint for each that cannot."""
        ledger, bad = cls(), []
        for number, raw in enumerate(file.read_bytes().splitlines(), 1):
            if not raw.strip():
                continue
            try:
                ledger.lines.append(_decode(raw))
            except msgspec.MsgspecError as err:
                bad.append(f"{file}:{number}: {err}")
        return ledger, bad

    def counts(self) -> dict[str, int]:
        """Status value -> number of lines, all statuses present."""
        out = {status.value: 0 for status in Status}
        for line in self.lines:
            out[line.status.value] += 1
        return out

    def gaps(self) -> list[str]:
        """One text for each source that was not got whole, newest attempt of each only.

        What was looked for and rightly is not there (a rank that raised nothing) is no gap.
        """
        last: dict[tuple[Any, ...], Evidence] = {}
        for line in self.lines:
            last[(line.rank, line.host, line.source, line.snapshot)] = line
        return [
            line.gap()
            for line in last.values()
            if line.status is not Status.OK and not line.expected
        ]
