"""How one attempt of a collector ended."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fabwatch.watchdog.evidence.ledger import Status


@dataclass(frozen=True, slots=True)
class Outcome:
    """One future ledger line. ``path`` is absolute, None when nothing was written.

    ``source`` "" means the collector's own. Anything but ok needs a ``reason``.
    """

    status: Status
    path: Path | None = None
    sha256: str = ""
    size: int = 0
    reason: str = ""
    source: str = ""
    expected: bool = False


def absent(reason: str, source: str = "", *, expected: bool = False) -> Outcome:
    """It does not exist here. ``expected``: as it should be, so that the ledger has no gap."""
    return Outcome(Status.ABSENT, reason=reason, source=source, expected=expected)


def failed(reason: str, source: str = "") -> Outcome:
    """It exists and could not be got."""
    return Outcome(Status.FAILED, reason=reason, source=source)


def timed_out(reason: str, source: str = "") -> Outcome:
    """It did not come in time."""
    return Outcome(Status.TIMED_OUT, reason=reason, source=source)


def not_armed(reason: str, source: str = "") -> Outcome:
    """It was never switched on for this job."""
    return Outcome(Status.NOT_ARMED, reason=reason, source=source)
