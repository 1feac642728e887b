"""Carry incidents through: capture, diagnosis, second look, end."""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fabwatch.watchdog.agent.capturing import Captures
from fabwatch.watchdog.agent.exits import ExitLine
from fabwatch.watchdog.agent.hold import LIMIT_S, Holder
from fabwatch.watchdog.agent.incident import (
    Incident,
    Verdict,
    captured_timeout,
    job_of,
    next_folder,
    read_verdict,
)
from fabwatch.watchdog.agent.tasks import Task, Tasks, python
from fabwatch.watchdog.agent.watch import Watch
from fabwatch.watchdog.capture.job import Options
from fabwatch.watchdog.evidence.ledger import Evidence, Ledger, Status
from fabwatch.watchdog.progress.monitor import Stillness

TIER1_S, TIER2_S, HELD_S = 5.0, 20.0, 2.7
DIAGNOSIS_S = 20.0
SECOND_LOOK_S = 4.0
FINAL_S = 2.0
FINAL_HOST_S = 3.0
EXIT_SAY_S = 8.0
CONFIRM_S = 4.0
RESTARTED = "the launcher restarted the workers"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A step: take a snapshot. ``final``: of what outlives the processes only."""

    tier: int
    number: int
    seconds: float
    final: bool = False


@dataclass(frozen=True, slots=True)
class Diagnose:
    """A step: diagnose the incident, unless told otherwise, and with it the run."""

    incident: bool = True
    seconds: float = DIAGNOSIS_S


@dataclass(frozen=True, slots=True)
class Pause:
    """A step: wait until a monotonic time."""

    until: float


Step = Snapshot | Diagnose | Pause
Flow = Generator[Step, Any, None]


class Desk:
    """One incident at a time, worked through by a generator of steps."""

    def __init__(
        self,
        run_dir: Path,
        watch: Watch,
        tasks: Tasks,
        captures: Captures,
        holder: Holder | None,
        log: Any,
        say: Callable[[str], None],
        match: list[str] | None = None,
    ) -> None:
        self.run_dir = run_dir
        self.watch = watch
        self.tasks = tasks
        self.captures = captures
        self.holder = holder
        self.log = log
        self.say = say
        self.match = match or python("-m", "fabwatch", "match")
        self.color = False
        self.job_started: float | None = None  # epoch seconds
        self.columns: int | None = None  # of the terminal that the screen goes to
        self.signatures: str | None = None
        self.current: Incident | None = None
        self.all: list[Incident] = []
        self._dropped: list[Incident] = []
        self.on_diagnosed: Callable[[Incident], None] = lambda _: None
        self.waiters: list[Callable[[Incident], None]] = []
        self._flow: Flow | None = None
        self._tasks: list[Task] = []
        self._pause: float | None = None
        self._saved = 0.0
        self._held: tuple[int, int] | None = None  # request, pid
        self._exit_seen = False  # a rank of this attempt ended while others ran
        self._failure_seen = False  # one ended abnormally
        self._ending = False
        self._kinds: set[str] = set()

    # -------------------------------------------------------------- what sets one off

    @property
    def busy(self) -> bool:
        """Whether steps are under way."""
        return self._flow is not None

    def stalled(self, found: Stillness, now: float) -> None:
        """Progress says that evidence should be frozen."""
        incident = self.current
        if incident is not None and incident.open:
            if not self.busy and found.kind not in self._kinds:
                self._kinds.add(found.kind)
                incident.notes.append(found.why)
                self._start(self._again(incident))
            elif incident.provisional and found.kind == "left":
                self._confirm(incident, found.why)
            return
        self._open(found, now)

    def requested(self, now: float) -> Incident | None:
        """Somebody asked for a capture."""
        incident = self.current
        if incident is not None and incident.open:
            if not self.busy:
                self._start(self._again(incident))
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
        self.hold()
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
                self._start(self._after_exit(incident))
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
                self._start(self._rest(incident))

    def _open(self, found: Stillness, now: float, provisional: bool = False) -> Incident | None:
        offset = time.time() - now
        watch = self.watch
        try:
            folder = next_folder(self.run_dir / "incidents")
        except OSError as err:
            self.log.error("no-incident-folder", error=str(err))
            self.release()
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
        self._start(self._first(incident))
        self._update(incident, now)
        self.log.info("incident", folder=folder.name, trigger=found.trigger, why=found.why)
        return incident

    # -------------------------------------------------------------- holding the launcher

    def hold(self) -> None:
        """Keep the launcher from ending the ranks that are left."""
        launcher = self.watch.launcher
        if self.holder is None or launcher is None or not self.watch.ranks:
            return
        number = self.holder.hold(launcher, LIMIT_S)
        if number:
            self._held = (number, launcher)

    def release(self) -> None:
        """Let the launcher go on."""
        if self._held is not None and self.holder is not None:
            self.log.info("let-go", pid=self._held[1])
            self.holder.release()
            self._held = None

    def hold_answered(self) -> None:
        """Hear from the process that holds; what did not work goes into the ledger."""
        if self.holder is None:
            return
        for answer in self.holder.answers():
            self.log.info("hold", what=answer.what, pid=answer.pid, error=answer.error)
            if answer.what == "refused" and self.current is not None:
                self._ledger(
                    self.current, f"the launcher (pid {answer.pid}) was not held: {answer.reason}"
                )

    def _ledger(self, incident: Incident, reason: str) -> None:
        with contextlib.suppress(OSError):
            Ledger().add(
                Evidence(
                    source="exit",
                    status=Status.PARTIAL,
                    host=self.watch.host,
                    started=time.time(),
                    reason=reason,
                    collector="agent",
                ),
                incident.folder / "ledger.jsonl",
            )

    # -------------------------------------------------------------- flows

    def _first(self, incident: Incident) -> Flow:
        held = self._held is not None
        yield Snapshot(1, 1, HELD_S if held else TIER1_S)
        incident.captured = time.time()
        self.release()
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
        self.release()
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
        elif self.all or self.watch.seen:
            yield Diagnose(incident=False, seconds=left(DIAGNOSIS_S))

    def start_final(self, healthy: bool, until: float) -> None:
        """Drop what is under way and begin with the end."""
        self._ending = True
        self.release()
        incident = self.current
        if incident is not None and incident.open:
            if incident.provisional and healthy:
                self._drop(incident)
            elif healthy and not self._exit_seen:
                incident.resolved, incident.resolved_by = True, "the job ended well"
                self._save(incident)
            else:
                incident.provisional = False
        self._start(self.final(healthy, until))

    # -------------------------------------------------------------- steps

    def _cancel(self) -> None:
        for task in self._tasks:
            self.tasks.cancel(task)
        self._tasks, self._flow, self._pause = [], None, None

    def _start(self, flow: Flow) -> None:
        self._cancel()
        self._flow = flow
        self._advance(None)

    def _advance(self, result: Any) -> None:
        """Go to the next step that takes time."""
        flow = self._flow
        if flow is None:
            return
        self._tasks, self._pause = [], None
        try:
            step = flow.send(result)
        except StopIteration:
            if self._flow is flow:
                self._flow = None
            return
        if self._flow is not flow:
            return
        try:
            self._do(step, flow)
        except OSError as err:
            self.log.error("step-failed", step=repr(step), error=str(err))
            if self.current is not None:
                self._ledger(self.current, f"{type(step).__name__.lower()} not possible: {err}")
            self._pause = time.monotonic()  # on with the next step at the next turn

    def _do(self, step: Step, flow: Flow) -> None:
        incident = self.current
        if isinstance(step, Pause):
            self._pause = step.until
        elif isinstance(step, Diagnose):
            self._diagnose(step, flow)
        elif incident is not None:
            options = Options(skip=_living_only(step.tier == 1) if step.final else ())
            task = self.captures.take(
                incident.folder,
                self.watch.view(options),
                tier=step.tier,
                snapshot=step.number,
                deadline_s=step.seconds,
                now=time.monotonic(),
                done=lambda ok: self._ended(flow, ok),
            )
            self._tasks.append(task)
        else:
            self._pause = time.monotonic()

    def _ended(self, flow: Flow, result: Any) -> None:
        if self._flow is flow:
            self._advance(result)

    def _diagnose(self, step: Diagnose, flow: Flow) -> None:
        """Start the child that reads the evidence once, and writes both verdicts."""
        incident = self.current if step.incident else None
        words = [*self.match, "--write", "--run", str(self.run_dir)]
        if incident is not None:
            words += ["--incident", str(incident.folder)]
        if self.color:
            words.append("--color")
        extra = {"FABWATCH_SIGNATURES": self.signatures} if self.signatures else {}
        if self.columns:
            extra["COLUMNS"] = str(max(self.columns - len("fabwatch: "), 40))

        def done(code: int | None, text: str) -> None:
            if code not in (0, 1, 3):
                self.log.error("diagnosis-failed", code=code, output=text[-2000:])
                self._inherit()
                if incident is not None and read_verdict(incident.folder) != incident.verdict:
                    incident.screen = ""  # it shows what is not thought any more
            elif incident is not None:
                incident.screen = text
            self._ended(flow, code)

        self._tasks.append(
            self.tasks.start("diagnosis", words, step.seconds, done, output=True, extra=extra)
        )

    # -------------------------------------------------------------- verdicts

    def _read(self, incident: Incident) -> Verdict | None:
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
        return verdict

    def _report(self, incident: Incident) -> None:
        """Say it once; again only when the diagnosis has changed its mind."""
        verdict = self._read(incident)
        if verdict is None or not verdict.diagnosed:
            return
        if incident.resolved and incident.resolved_by != RESTARTED:
            return
        before = incident.said
        if before is None:
            self.on_diagnosed(incident)
        if self._exit_seen and time.time() - incident.detected < EXIT_SAY_S:
            return  # the job is ending: said once, at the end, with everything that is known then
        if before is not None and (before.signature, before.ranks) == (
            verdict.signature,
            verdict.ranks,
        ):
            return
        incident.said = verdict
        self.say(incident.screen or f"{verdict.title} (rank {verdict.ranks}): {incident.folder}")

    # -------------------------------------------------------------- time passes

    def tick(self, now: float) -> None:
        """Keep the current incident up to date."""
        if self._pause is not None and now >= self._pause and not self._tasks:
            self._advance(None)
        incident = self.current
        if incident is None or not incident.open or self._ending:
            return
        self._update(incident, now)
        monitor = self.watch.monitor
        if incident.provisional:
            self._provisional(incident, now)
            return
        waited = incident.waited_s
        if self._moved_on(incident, now):
            self._resolve(incident, now, waited)
        elif (
            not self.busy
            and not incident.limit_passed
            and incident.trigger != "request"
            and monitor.ranks
            and waited > incident.limit_s > 0
        ):
            incident.limit_passed = True
            if incident.verdict is None or not incident.verdict.diagnosed:
                self._start(self._again(incident))
        if (
            not self.busy
            and not self._ending
            and incident.said is None
            and incident.verdict is not None
            and incident.verdict.diagnosed
            and time.time() - incident.detected > EXIT_SAY_S
        ):
            incident.said = incident.verdict
            self.say(incident.screen or incident.verdict.title)

    def _provisional(self, incident: Incident, now: float) -> None:
        monitor = self.watch.monitor
        if now - monitor.last_progress < 1.5 and time.time() - incident.detected > CONFIRM_S:
            self._drop(incident)
            self.log.info("left-without-harm", folder=incident.folder.name)

    def _drop(self, incident: Incident) -> None:
        """It was none: what was kept of it goes."""
        self._cancel()
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
            incident.waited_s = self._waited(incident, now)
            incident.longest_wait_s = monitor.longest_wait
            incident.limit_s = monitor.limit(now)
            incident.still_ranks = monitor.still(now) or incident.still_ranks
            incident.moving_ranks = monitor.moving(now)
        if now - self._saved > 2.0:
            self._save(incident)

    def _waited(self, incident: Incident, now: float) -> float:
        monitor = self.watch.monitor
        if incident.kind == "partly":
            since = [t.counted for t in monitor.ranks.values() if t.pending and t.counted]
            return now - min(since) if since else 0.0
        return monitor.waited(now)

    def _moved_on(self, incident: Incident, now: float) -> bool:
        """Whether the job really goes on: for two seconds, after the capture began, nobody gone."""
        if self._exit_seen:
            return False
        monitor = self.watch.monitor
        if incident.trigger == "request":
            return not self.busy
        if incident.kind == "partly":
            return self._waited(incident, now) < 5.0
        since = monitor.last_progress + (time.time() - now) - incident.detected
        stopped = any(t.stopped_since is not None for t in monitor.ranks.values())
        return since > 2.0 and monitor.waited(now) < 2.5 and not stopped and not monitor.left

    def _resolve(self, incident: Incident, now: float, waited: float) -> None:
        incident.resolved, incident.resolved_by = True, "the job moves again"
        length = max(time.time() - incident.last_progress - 2.0, waited)
        monitor = self.watch.monitor
        if incident.trigger != "request":
            monitor.counts.was_resolved(now, length)
            monitor.works.was_resolved(now, length)
            monitor.flapped(incident.kind)
            incident.waited_s = max(incident.waited_s, length)
        self._save(incident)
        self.log.info("resolved", folder=incident.folder.name, waited=round(length, 1))
        if incident.said is not None:
            self.say(f"the job moves again after {length:.0f} s; evidence: {incident.folder}")
        if not self.busy:
            self._start(self._judge_again(incident))

    def restarted(self) -> None:
        """The launcher has started the workers again: what stood is history now."""
        incident = self.current
        if incident is not None and incident.open and self._exit_seen:
            if incident.said is None and incident.verdict is not None:
                incident.said = incident.verdict
                if incident.verdict.diagnosed:
                    self.say(incident.screen or incident.verdict.title)
            self._copy_exits(incident)
            incident.resolved, incident.resolved_by = True, RESTARTED
            self._save(incident)
            if not self.busy and not self._ending:
                self._start(self._judge_again(incident))
        self._exit_seen = self._failure_seen = False

    # -------------------------------------------------------------- files

    def _save(self, incident: Incident) -> None:
        self._saved = time.monotonic()
        try:
            incident.save()
        except OSError as err:
            self.log.error("incident-not-saved", error=str(err))

    def _inherit(self) -> None:
        """The run's own verdict did not come in time: what its incident came to before stands."""
        incident = self.current
        if incident is None:
            return
        for name in ("verdict.json", "summary.md"):
            part = self.run_dir / f".{name}.{os.getpid()}.part"
            try:
                if incident.resolved:  # of what is over, the run must not say that it stands
                    (self.run_dir / name).unlink(missing_ok=True)
                    continue
                shutil.copyfile(incident.folder / name, part)
                part.replace(self.run_dir / name)
            except OSError as err:
                self.log.error("verdict-not-copied", name=name, error=str(err))

    def _copy_exits(self, incident: Incident) -> None:
        target = incident.folder / "exits.jsonl"
        part = target.with_name(f".exits.{os.getpid()}.part")
        try:
            shutil.copyfile(self.run_dir / "exits.jsonl", part)
            part.replace(target)
        except FileNotFoundError:
            return
        except OSError as err:
            self.log.error("exits-not-copied", error=str(err))


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
