"""Answer `fabwatch capture` and `fabwatch top`: what they may ask, and what they get."""

from __future__ import annotations

from typing import Any

from fabwatch.watchdog.agent.channel import Channel
from fabwatch.watchdog.agent.desk import Desk
from fabwatch.watchdog.agent.incident import Incident
from fabwatch.watchdog.progress.monitor import summary


def answer(desk: Desk, job: str, client: Channel, message: dict[str, Any], now: float) -> None:
    """Answer one message now, or, of a capture, when it has been taken."""
    what = message.get("do")
    if what == "status":
        client.send(_status(desk, job, now))
    elif what == "capture":
        _capture(desk, client, now)
    else:
        client.send({"ok": False, "error": f"do must be capture or status, not {what!r}"})


def _capture(desk: Desk, client: Channel, now: float) -> None:
    incident = desk.requested(now)
    if incident is None:
        client.send({"ok": False, "error": "no incident directory can be made"})
        return

    def taken(done: Incident) -> None:
        client.send({"ok": True, "incident": str(done.folder)})

    if incident.captured is not None and not desk.busy:
        taken(incident)
    else:
        desk.waiters.append(taken)


def _status(desk: Desk, job: str, now: float) -> dict[str, Any]:
    watch, current = desk.watch, desk.current
    monitor = watch.monitor
    return {
        "ok": True,
        "job": job,
        "run_dir": str(desk.run_dir),
        "world_size": watch.world_size,
        "ranks": summary(monitor.ranks, now),
        "phase": monitor.phase,
        "waited_s": round(monitor.waited(now), 2) if monitor.ranks else 0.0,
        "longest_wait_s": round(monitor.longest_wait, 2),
        "attempt": watch.attempt,
        "incident": str(current.folder) if current is not None and current.open else None,
    }
