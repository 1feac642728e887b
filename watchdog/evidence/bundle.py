"""The layout of our own runs and incidents on disk: what is one, and what belongs to it."""

from __future__ import annotations

from pathlib import Path

import msgspec

OURS = frozenset({"verdict.json", "summary.md", "agent.log", "launch.json", "report.html"})
"""Files of a run or incident that are conclusions or our own chatter, never evidence."""

LEFTOVERS = frozenset({".err", ".part"})
"""Endings of our own notes and half-written files: what a probe answered too late, for example."""

RUN_PARTS = ("exits.jsonl", "manifest.json", "exceptions", "fr", "nccl")
"""What of a run also speaks about its newest incident."""


def is_incident(path: Path) -> bool:
    """True for a directory that holds one capture (also while it is being written)."""
    try:
        return (path / "incident.json").is_file() or (
            (path / "ledger.jsonl").is_file() and (path / "ranks").is_dir()
        )
    except OSError:
        return False


def is_run(path: Path) -> bool:
    """True for a run directory."""
    try:
        return (path / "incidents").is_dir() or (
            (path / "launch.json").is_file() and (path / "manifest.json").is_file()
        )
    except OSError:
        return False


def incidents_of(path: Path) -> list[Path]:
    """Incidents of a run, oldest first; the path itself if it is one; else none."""
    if is_incident(path):
        return [path]
    try:
        found = [p for p in (path / "incidents").iterdir() if p.is_dir() and is_incident(p)]
    except OSError:
        return []
    return sorted(found, key=lambda p: (len(p.name), p.name))


def run_of(incident: Path) -> Path | None:
    """The run that an incident lies in, if it still lies there."""
    try:
        run = incident.resolve().parent.parent
    except OSError:
        return None
    return run if incident.resolve().parent.name == "incidents" and is_run(run) else None


def current(incidents: list[Path]) -> Path | None:
    """The newest incident that is not resolved, else the newest."""
    for path in reversed(incidents):
        if not resolved(path):
            return path
    return incidents[-1] if incidents else None


def resolved(incident: Path) -> bool:
    """Whether the incident ended by itself: the job moved again, or began anew."""
    try:
        value = msgspec.json.decode((incident / "incident.json").read_bytes()[: 1 << 20])
    except (OSError, msgspec.DecodeError, RecursionError):
        return False
    return isinstance(value, dict) and value.get("resolved") is True
