"""Carry incidents through: capture, diagnosis, second look, end."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fabwatch.watchdog.agent import course
from fabwatch.watchdog.agent.capturing import Captures
from fabwatch.watchdog.agent.diagnosis import Diagnoses
from fabwatch.watchdog.agent.exits import VICTIM_WINDOW_S, ExitLine
from fabwatch.watchdog.agent.grip import Grip
from fabwatch.watchdog.agent.incident import (
    ENDED_WELL,
    RESTARTED,
    Incident,
    captured_timeout,
    job_of,
    next_folder,
    read_verdict,
)
from fabwatch.watchdog.agent.steps import (
    DIAGNOSIS_S,
    Diagnose,
    Flow,
    Pause,
    Snapshot,
    Step,
    Steps,
)
from fabwatch.watchdog.agent.tasks import Task, Tasks
from fabwatch.watchdog.agent.telling import Teller
from fabwatch.watchdog.agent.watch import Watch
from fabwatch.watchdog.capture.job import Options
from fabwatch.watchdog.progress.monitor import Stillness

TIER1_S, TIER2_S, HELD_S = 5.0, 20.0, 2.7
SECOND_LOOK_S = 4.0
FINAL_S = 2.0
FINAL_HOST_S = 3.0
CONFIRM_S = 4.0


class Desk:
    """One incident at a time, worked through by a generator of steps."""

    def __init__(
        self,
        run_dir: Path,
        watch: Watch,
        tasks: Tasks,
        captures: Captures,
        grip: Grip,
        log: Any,
        say: Callable[[str], None],
    ) -> None:
        self.run_dir = run_dir
        self.watch = watch
        self.captures = captures
        self.grip = grip
        self.log = log
        self.diagnoses = Diagnoses(run_dir, tasks, log)
        self.teller = Teller(say)
        self.steps = Steps(tasks, self._begin, self._failed)
        self.job_started: float | None = None  # epoch seconds
        self.current: Incident | None = None
        self.all: list[Incident] = []
        self._dropped: list[Incident] = []
        self.waiters: list[Callable[[Incident], None]] = []
        self._saved = 0.0
        self._exit_seen = False  # a rank of this attempt ended while others ran
        self._failure_seen = False  # one ended abnormally
        self._ending = False
        self._kinds: set[str] = set()

    # -------------------------------------------------------------- what sets one off

    @property
    def busy(self) -> bool:
        """Whether steps are under way."""
        return self.steps.busy

    def stalled(self, found: Stillness, now: float) -> None:
        """Progress says that evidence should be frozen."""
        incident = self.current
        if incident is not None and incident.open:
            if not self.busy and found.kind not in self._kinds:
                self._kinds.add(found.kind)
                incident.notes.append(found.why)
                self.steps.start(self._again(incident))
            elif incident.provisional and found.kind == "left":
                self._confirm(incident, found.why)
            return
        self._open(found, now)

    def told_to_end(self) -> None:
        """The launcher got a signal: what ends from now on does not explain what stood before."""
        incident = self.current
        if incident is not None and incident.open and incident.told_to_end is None:
            incident.told_to_end = time.time()
            self._save(incident)

    def requested(self, now: float) -> Incident | None:
        """Somebody asked for a capture."""
        incident = self.current
        if incident is not None and incident.open:
            if not self.busy:
                self.steps.start(self._again(incident))
            return incident
        monitor = self.watch.monitor
        return self._open(
            Stillness(
                "request", "request", "asked for", monitor.last_progress, monitor.still(now),
                monitor.moving(now), monitor.phase,
            ),
            now,
        )  # fmt: skip

    def failed(self, line: ExitLine, now: float) -> None:
        """A rank ended abnormally. Only the first one of an attempt sets something off."""
        if self._failure_seen:
            return
        self._failure_seen = self._exit_seen = True
        self.grip.hold()
        incident = self.current
        what = f"signal {line.signal}" if line.signal is not None else f"code {line.code}"
        why = f"rank {line.rank} (pid {line.pid}) ended with {what}"
        if incident is not None and incident.open:
            incident.notes.append(why)
            if incident.trigger == "request":
                incident.trigger = "exit"
            capturing = self.busy and incident.captured is None
            incident.provisional = False
            if not capturing:  # else what is being captured now is what we want; then the rest
                self.steps.start(self._after_exit(incident))
            return
        monitor = self.watch.monitor
        self._open(
            Stillness(
                "exit", "exit", why, monitor.last_progress, monitor.still(now),
                monitor.moving(now), monitor.phase,
            ),
            now,
        )  # fmt: skip

    def job_failed(self, why: str, now: float) -> None:
        """The launcher failed although no rank was seen to."""
        monitor = self.watch.monitor
        self._open(Stillness("exit", "launcher", why, monitor.last_progress, (), (), "start"), now)

    def left(self, line: ExitLine, now: float) -> None:
        """A rank ended with code 0 while others run: perhaps the normal end, perhaps not."""
        if self.current is not None and self.current.open:
            return
        monitor = self.watch.monitor
        self._open(
            Stillness(
                "exit", "left", f"rank {line.rank} ended with code 0 while others run",
                monitor.last_progress, monitor.still(now), monitor.moving(now), monitor.phase,
            ),
            now,
            provisional=True,
        )  # fmt: skip

    def _confirm(self, incident: Incident, why: str) -> None:
        if incident.provisional:
            incident.provisional = False
            incident.notes.append(why)
            self._exit_seen = True
            if not self.busy:
                self.steps.start(self._rest(incident))

    def _open(self, found: Stillness, now: float, provisional: bool = False) -> Incident | None:
        offset = time.time() - now
        watch = self.watch
        try:
            folder = next_folder(self.run_dir / "incidents")
        except OSError as err:
            self.log.error("no-incident-folder", error=str(err))
            self.grip.release()
            return None
        incident = Incident(
            folder=folder,
            trigger=found.trigger,
            kind=found.kind,
            why=found.why,
            phase=found.phase,
            last_progress=found.last_progress + offset,
            detected=time.time(),
            still_ranks=found.still,
            moving_ranks=found.moving,
            job=job_of(watch.world_size, watch.host, watch.of_attempt(), self.job_started),
            provisional=provisional,
        )
        if not watch.has_pages():
            incident.unseen = ("no progress page for every rank: judged by CPU time and I/O only",)
        self.current = incident
        self.all.append(incident)
        self._kinds = {found.kind}
        self._exit_seen = found.trigger == "exit" or self._failure_seen
        self.steps.start(self._first(incident))
        self._update(incident, now)
        self.log.info("incident", folder=folder.name, trigger=found.trigger, why=found.why)
        return incident

    def hold_answered(self) -> None:
        """What could not be held goes into the ledger."""
        for answer in self.grip.refusals():
            if self.current is not None:
                why = f"the launcher (pid {answer.pid}) was not held: {answer.reason}"
                self.current.gap(self.watch.host, why)

    # -------------------------------------------------------------- flows

    def _first(self, incident: Incident) -> Flow:
        held = self.grip.held is not None
        yield Snapshot(1, 1, HELD_S if held else TIER1_S)
        incident.captured = time.time()
        self.grip.release()
        timeout = captured_timeout(incident.folder)
        if timeout is not None:
            self.watch.monitor.timeout = timeout
        self._save(incident)
        for waiter in self.waiters:
            waiter(incident)
        self.waiters.clear()
        if not incident.provisional:
            yield from self._rest(incident)

    def _rest(self, incident: Incident) -> Flow:
        looked = time.monotonic()
        yield Diagnose()
        self._report(incident)
        yield Snapshot(2, 1, TIER2_S)
        incident.deep = True
        yield Pause(looked + SECOND_LOOK_S)
        if self.watch.ranks:
            yield Snapshot(1, 2, TIER1_S)
        yield Diagnose()
        self._report(incident)

    def _again(self, incident: Incident) -> Flow:
        """Look once more: something else was found, or the limit has passed."""
        yield Snapshot(1, 2, TIER1_S)
        for waiter in self.waiters:
            waiter(incident)
        self.waiters.clear()
        yield Diagnose()
        self._report(incident)

    def _after_exit(self, incident: Incident) -> Flow:
        """A rank ended during an incident that stands already."""
        first = incident.captured is None
        yield Snapshot(1, 1 if first else 2, HELD_S)
        if first:
            incident.captured = time.time()
        self.grip.release()
        yield Diagnose()
        self._report(incident)

    def _judge_again(self, incident: Incident) -> Flow:
        yield Diagnose()
        self._report(incident)

    def final(self, healthy: bool, until: float) -> Flow:
        """Everything that is done once the job has ended. ``until``: monotonic seconds."""

        def left(most: float) -> float:
            return max(min(most, until - time.monotonic()), 0.2)

        incident = self.current
        if incident is not None and incident.open:
            rest_only = incident.captured is not None and not self.watch.ranks
            yield Snapshot(1, 1, left(FINAL_S), final=rest_only)
            incident.captured = incident.captured or time.time()
            if not incident.deep:
                # The kernel log and the like outlive the ranks, and may say who killed them.
                yield Snapshot(2, 1, left(FINAL_HOST_S), final=True)
            self._save(incident)
            self._copy_exits(incident)
            yield Diagnose(seconds=left(DIAGNOSIS_S))
            self._read(incident)
        elif incident is not None and incident.resolved_by == ENDED_WELL:
            yield Diagnose(seconds=left(DIAGNOSIS_S))  # what was thought of it holds no more
            self._read(incident)
        elif self.all or self.watch.seen:
            yield Diagnose(incident=False, seconds=left(DIAGNOSIS_S))

    def start_final(self, healthy: bool, how: str, until: float) -> None:
        """Drop what is under way and begin with the end. ``how``: the job's, in words."""
        self._ending = True
        self.grip.release()
        incident = self.current
        if incident is not None and incident.open:
            if incident.provisional and healthy:
                self._drop(incident)
            elif healthy and not self._exit_seen:
                incident.resolved, incident.resolved_by = True, ENDED_WELL
                self._save(incident)
                self.teller.ended_well(incident)
            else:
                incident.provisional, incident.ended = False, "" if healthy else how
        self.steps.start(self.final(healthy, until))

    # -------------------------------------------------------------- steps

    def _begin(self, step: Snapshot | Diagnose, done: Callable[[], None]) -> Task | None:
        incident = self.current
        if isinstance(step, Diagnose):
            return self.diagnoses.start(incident if step.incident else None, step.seconds, done)
        if incident is None:
            return None
        options = Options(skip=_living_only(step.tier == 1) if step.final else ())
        return self.captures.take(
            incident.folder,
            self.watch.view(options),
            tier=step.tier,
            snapshot=step.number,
            deadline_s=step.seconds,
            now=time.monotonic(),
            done=lambda _ok: done(),
        )

    def _failed(self, step: Step, err: OSError) -> None:
        self.log.error("step-failed", step=repr(step), error=str(err))
        if self.current is not None:
            what = type(step).__name__.lower()
            self.current.gap(self.watch.host, f"{what} not possible: {err}")

    def _read(self, incident: Incident) -> None:
        verdict = read_verdict(incident.folder)
        if verdict is not None:
            incident.verdict = verdict
            incident.diagnosed_at = incident.diagnosed_at or time.time()
            if verdict.timeout_s is not None:
                self.watch.monitor.timeout = verdict.timeout_s
            self.log.info(
                "verdict", folder=incident.folder.name, outcome=verdict.outcome,
                signature=verdict.signature, ranks=list(verdict.ranks),
            )  # fmt: skip
        self._save(incident)

    def _report(self, incident: Incident) -> None:
        self._read(incident)
        if self.watch.seen and not self.watch.ranks and not self._failure_seen:
            return  # nobody is left, and nobody failed: how the job ends decides what it was
        self.teller.report(incident, self._exit_seen)

    def _save(self, incident: Incident) -> None:
        self._saved = time.monotonic()
        try:
            incident.save()
        except OSError as err:
            self.log.error("incident-not-saved", error=str(err))

    def _copy_exits(self, incident: Incident) -> None:
        try:
            incident.copy_exits(self.run_dir)
        except OSError as err:
            self.log.error("exits-not-copied", error=str(err))

    # -------------------------------------------------------------- time passes

    def tick(self, now: float) -> None:
        """Keep the current incident up to date."""
        self.steps.tick(now)
        incident = self.current
        if incident is None or not incident.open or self._ending:
            return
        self._update(incident, now)
        if incident.provisional:
            self._provisional(incident, now)
            return
        if self._moved_on(incident, now):
            self._resolve(incident, now)
        elif not self.busy and course.limit_passed(incident, self.watch.monitor):
            incident.limit_passed = True
            if incident.verdict is None or not incident.verdict.diagnosed:
                self.steps.start(self._again(incident))
        if not self.busy:
            self.teller.belated(incident)

    def _provisional(self, incident: Incident, now: float) -> None:
        monitor = self.watch.monitor
        if now - monitor.last_progress < 1.5 and time.time() - incident.detected > CONFIRM_S:
            self._drop(incident)
            self.log.info("left-without-harm", folder=incident.folder.name)

    def _drop(self, incident: Incident) -> None:
        """It was none: what was kept of it goes."""
        self.steps.cancel()
        incident.drop()
        self.all.remove(incident)
        self._dropped.append(incident)
        self.current = None

    def sweep(self) -> None:
        """Remove what killed collectors still wrote for incidents that were none."""
        for incident in self._dropped:
            incident.drop()

    def _update(self, incident: Incident, now: float) -> None:
        monitor = self.watch.monitor
        if monitor.ranks and (not self._exit_seen or not incident.limit_s):
            course.follow(incident, monitor, now)
        if now - self._saved > 2.0:
            self._save(incident)

    def _moved_on(self, incident: Incident, now: float) -> bool:
        if self._exit_seen:
            return False
        told = incident.told_to_end
        if told is not None and time.time() - told < VICTIM_WINDOW_S:
            return False  # counters of ranks that unwind move too
        if incident.trigger == "request":
            return not self.busy
        return course.moved_on(incident, self.watch.monitor, now)

    def _resolve(self, incident: Incident, now: float) -> None:
        length = course.resolve(incident, self.watch.monitor, now)
        self._save(incident)
        self.log.info("resolved", folder=incident.folder.name, waited=round(length, 1))
        self.teller.goes_on(incident, length)
        if not self.busy:
            self.steps.start(self._judge_again(incident))

    def restarted(self) -> None:
        """The launcher has started the workers again: what stood is history now."""
        incident = self.current
        if incident is not None and incident.open and self._exit_seen:
            self.teller.belated(incident, at_once=True)
            self._copy_exits(incident)
            incident.resolved, incident.resolved_by = True, RESTARTED
            self._save(incident)
            if not self.busy and not self._ending:
                self.steps.start(self._judge_again(incident))
        self._exit_seen = self._failure_seen = False


def _living_only(hosts_too: bool) -> tuple[str, ...]:
    """Collectors that have nothing to gather once the processes are gone, or did it before.

    ``hosts_too``: those of the host have run already.
    """
    from fabwatch.watchdog.capture.collector import collectors

    return tuple(
        c.name
        for c in collectors()
        if (c.scope == "host" and hosts_too) or (c.scope == "rank" and c.living)
    )
