"""Follow the waiting that an incident is about: how long, beyond which limit, or over."""

from __future__ import annotations

import time

from fabwatch.watchdog.agent.incident import Incident
from fabwatch.watchdog.progress.monitor import Monitor


def follow(incident: Incident, monitor: Monitor, now: float) -> None:
    """Take over what the monitor sees now. ``now``: monotonic seconds, here and below."""
    incident.waited_s = waited(incident, monitor, now)
    incident.longest_wait_s = monitor.longest_wait
    incident.limit_s = monitor.limit(now)
    incident.still_ranks = monitor.still(now) or incident.still_ranks
    incident.moving_ranks = monitor.moving(now)


def waited(incident: Incident, monitor: Monitor, now: float) -> float:
    """Seconds of waiting that count for this incident."""
    if incident.kind == "partly":
        since = [t.counted for t in monitor.ranks.values() if t.pending and t.counted]
        return now - min(since) if since else 0.0
    return monitor.waited(now)


def moved_on(incident: Incident, monitor: Monitor, now: float) -> bool:
    """Whether the job really goes on: for two seconds, after the capture began, nobody gone."""
    if incident.kind == "partly":
        return waited(incident, monitor, now) < 5.0
    since = monitor.last_progress + (time.time() - now) - incident.detected
    stopped = any(t.stopped_since is not None for t in monitor.ranks.values())
    return since > 2.0 and monitor.waited(now) < 2.5 and not stopped and not monitor.left


def resolve(incident: Incident, monitor: Monitor, now: float) -> float:
    """The job moves again; the monitor learns from it. Returns how long it stood, seconds."""
    incident.resolved, incident.resolved_by = True, "the job moves again"
    length = max(time.time() - incident.last_progress - 2.0, incident.waited_s)
    if incident.trigger != "request":
        monitor.counts.was_resolved(now, length)
        monitor.works.was_resolved(now, length)
        monitor.flapped(incident.kind)
        incident.waited_s = length
    return length


def limit_passed(incident: Incident, monitor: Monitor) -> bool:
    """Whether the wait has become a failure just now, by its length alone."""
    return (
        not incident.limit_passed
        and incident.trigger != "request"
        and bool(monitor.ranks)
        and incident.waited_s > incident.limit_s > 0
    )
