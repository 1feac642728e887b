"""Leaves out what a host's kernel logged before the job began: it is somebody else's history."""

from __future__ import annotations

from dataclasses import replace

from fabwatch.watchdog.evidence.reading import Reading

CLOCK_SLACK_S = 5.0
"""The kernel's wall-clock times are computed, and drift by a few seconds."""


def only(reading: Reading) -> Reading:
    """``reading`` without kernel events older than the job.

    A kernel log saved by hand comes with no start of a job, and then all of it counts.
    """
    starts = [s.job_started for s in reading.stalls if s.job_started is not None]
    if not starts:
        return reading
    begin = min(starts) - CLOCK_SLACK_S
    events = tuple(
        e
        for e in reading.events
        if e.source.kind != "kernel-log" or e.when is None or e.when >= begin
    )
    return replace(reading, events=events)
