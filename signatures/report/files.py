"""Writes verdict.json and summary.md into an incident or a run, whole or not at all."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from fabwatch.signatures.report.summary import summary
from fabwatch.signatures.verdict import Verdict, dumps


def write(verdict: Verdict, folder: Path, place: str = "", now: float | None = None) -> None:
    """Write both files; a reader sees the old or the new one, never half of it. Raises OSError."""
    # The verdict comes last: who sees it finds its summary too.
    _whole(folder / "summary.md", summary(verdict, place or str(folder), now).encode())
    _whole(folder / "verdict.json", dumps(verdict))


def _whole(path: Path, data: bytes) -> None:
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    part = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        part.chmod(0o600)
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
