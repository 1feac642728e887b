"""Heal one journalled fault, from whatever process: injector, guardian, recovery, by hand."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

from fabwatch.chaos import journal
from fabwatch.chaos.faults import find
from fabwatch.chaos.model import Refused, Seen, no, yes

ATTEMPTS = 3
LOCK_S = 5.0


def heal(path: Path, by: str, lock_s: float = LOCK_S) -> Seen:
    """Undo the fault and measure that it is gone; yes when it was undone before.

    Never raises for a reason of the fault: a failure is journalled as ``unsafe`` and returned.
    When another healer holds the journal for longer than ``lock_s`` it is taken for stuck: undoing
    twice does no harm.
    """
    try:
        with journal.locked(path, lock_s):
            record = journal.read(path)
            if not record.open:
                return yes("was undone before")
            return _heal(record, by)
    except FileNotFoundError:
        return yes("was undone before")


def _heal(record: journal.Record, by: str) -> Seen:
    path, intent = record.path, record.intent
    assert intent is not None
    seen = no("not tried")
    for attempt in range(ATTEMPTS):
        try:
            mechanism = find(intent.text("fault")).mechanism(intent.text("mechanism"))
            if record.other_boot() and not mechanism.outlives_boot:
                seen = yes("the host was booted since")
            else:
                with contextlib.suppress(OSError):  # a full disk must not keep us from healing
                    journal.append(path, "reverting", {"by": by})
                mechanism.revert(record.state)
                seen = mechanism.reverted(record.state)
        except (Refused, OSError, RuntimeError) as err:
            seen = no(f"{type(err).__name__}: {err}")
        if seen.known:
            journal.append(path, "reverted", {"by": by, "seen": seen.as_json()})
            return seen
        if attempt + 1 < ATTEMPTS:
            time.sleep(0.2)
    journal.append(path, "unsafe", {"by": by, "seen": seen.as_json()})
    return seen


def recover(store: journal.Store, everything: bool = False) -> list[tuple[journal.Record, Seen]]:
    """Heal what dead injectors left behind (``everything``: what living ones hold, too).

    Closed journals are put away. Returns what was healed, with what was seen.
    """
    healed = []
    for record in store.records():
        if not record.open:
            if record.intent is not None or not _being_written(record):
                store.put_away(record)
            continue
        if record.owner_alive() and not everything:
            continue
        seen = heal(record.path, "revert" if everything else "recovery")
        store.audit("healed", {"id": record.id, "seen": seen.as_json()})
        healed.append((record, seen))
        if seen.known:
            store.put_away(record)
    return healed


def _being_written(record: journal.Record) -> bool:
    """Whether a file without an intent is so young that somebody may be writing it."""
    with contextlib.suppress(OSError):
        return time.time() - record.path.stat().st_mtime < 5.0
    return False
