"""The agent: wait for whatever comes first, and let the right part deal with it."""

from __future__ import annotations

import contextlib
import os
import resource
import select
import shutil
import signal
import socket
import stat
import tempfile
import time
from pathlib import Path
from typing import Any

from fabwatch.watchdog.agent import manifest, requests
from fabwatch.watchdog.agent.capturing import Captures
from fabwatch.watchdog.agent.channel import Channel, ControlSocket
from fabwatch.watchdog.agent.desk import Desk
from fabwatch.watchdog.agent.exits import VICTIM_WINDOW_S, ExitLine
from fabwatch.watchdog.agent.files import read_json
from fabwatch.watchdog.agent.grip import Grip
from fabwatch.watchdog.agent.hold import Holder
from fabwatch.watchdog.agent.incident import Incident
from fabwatch.watchdog.agent.killing import Killer
from fabwatch.watchdog.agent.options import Options, columns_of, wants_color
from fabwatch.watchdog.agent.peeking import Peeks
from fabwatch.watchdog.agent.tasks import Tasks
from fabwatch.watchdog.agent.watch import Watch, output_files

TICK_S = 0.5
_TOGETHER_S = 0.06
"""Ranks that get SIGTERM within this time were ended by one hand: the user's or the scheduler's."""
_DRAIN_S = 0.5
_FINAL_MARGIN_S = 0.7
_ALONE_GRACE_S = 30.0


class Agent:
    """One run. :meth:`run` returns when the job and everything about it is over."""

    def __init__(self, run_dir: Path, line: socket.socket, holder: Holder | None, log: Any) -> None:
        self.run_dir = run_dir
        self.log = log
        self.options = Options(read_json(run_dir / "launch.json"), run_dir)
        self.started = manifest.clocks()
        self.stub = Channel(line)
        self.tasks = Tasks()
        self.captures = Captures(self.tasks)
        self.watch = Watch(
            run_dir, self.options.run_id, self.options.sockets, self.options.stall_after
        )
        self.watch.logs = output_files(self.options.stub_pid)
        self.grip = Grip(holder, self.watch, log)
        self.desk = Desk(run_dir, self.watch, self.tasks, self.captures, self.grip, log, self._say)
        self.desk.job_started = self.options.started
        self.desk.teller.on_diagnosed = self._diagnosed
        diagnoses = self.desk.diagnoses
        diagnoses.columns = columns_of(self.options.stub_pid)
        diagnoses.color = diagnoses.columns is not None and wants_color()
        diagnoses.signatures = self.options.signatures
        self.killer = Killer(self.watch, log, self._say)
        self.peeks = Peeks(self.options.sockets, self.tasks, log)
        self.control: ControlSocket | None = None
        self.clients: list[Channel] = []
        self.ending = False  # the job is over; the final flow runs
        self.finished = False
        self.stopping = False  # the user or the scheduler ended the job
        self._told_until: float | None = None  # the launcher was told to end; what ends till then
        self.outcome: dict[str, Any] | None = None
        self._terms: tuple[float, list[ExitLine]] | None = None
        self._manifest_due = True
        self._manifest_at = 0.0
        self._next_tick = 0.0
        self._ended_at: float | None = None
        self._final_until = 0.0
        self._attempt = 0
        self._warm_at: float | None = None
        self._interrupted = False
        self._told_full = False

    # -------------------------------------------------------------- the loop

    def run(self) -> None:
        """Watch until the end."""
        self._listen()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._interrupt)
        try:
            while not self.finished and not self._interrupted:
                self._turn()
        finally:
            self._close()

    def _interrupt(self, _number: int, _frame: object) -> None:
        self._interrupted = True

    def _listen(self) -> None:
        if not self.options.sockets:
            return
        try:
            self.control = ControlSocket(Path(self.options.sockets) / "agent.sock")
        except OSError as err:
            self.log.error("no-control-socket", error=str(err))

    def _turn(self) -> None:
        now = time.monotonic()
        poll = select.poll()
        sources = self._sources(poll)
        wake = min(
            t
            for t in (
                self._next_tick,
                self.tasks.next_deadline() or now + 10,
                self._terms[0] if self._terms else now + 10,
                self.watch.next_scan if self.watch.root is not None else now + 10,
            )
        )
        ready = poll.poll(max(0.0, min(wake - now, 1.0)) * 1000)
        now = time.monotonic()
        ended = [fd for fd, _ in ready if fd in self.watch.exits.watched]
        if ended:
            self._ended(ended, now)
        for fd, event in ready:
            if fd in self.tasks.running:
                self.tasks.ended(fd)
            elif fd in sources:
                self._serve(sources[fd], event, now)
        self.tasks.expire(now)
        if self._terms is not None and now >= self._terms[0]:
            self._together(now)
        if self.watch.root is not None and now >= self.watch.next_scan and not self.ending:
            self._scan(now)
        if now >= self._next_tick:
            self._next_tick = now + TICK_S
            self._tick(now)

    def _sources(self, poll: select.poll) -> dict[int, Any]:
        found: dict[int, Any] = {}
        for fd in (*self.watch.exits.watched, *self.tasks.running):
            poll.register(fd, select.POLLIN)
        holders = [self.grip.holder] if self.grip.holder is not None else []
        controls = [self.control] if self.control is not None else []
        channels = [c for c in (self.stub, *self.clients) if c.open]
        everyone: list[Any] = [*holders, *controls, *channels]
        for one in everyone:
            writes = isinstance(one, Channel) and one.waiting
            poll.register(one.fileno(), select.POLLIN | (select.POLLOUT if writes else 0))
            found[one.fileno()] = one
        return found

    def _serve(self, one: Any, event: int, now: float) -> None:
        if isinstance(one, Holder):
            self.desk.hold_answered()
            if event & (select.POLLHUP | select.POLLERR):
                self.grip.renew()
        elif isinstance(one, ControlSocket):
            client = one.accept()
            if client is not None and len(self.clients) < 16:
                self.clients.append(client)
            elif client is not None:
                client.close()
        elif isinstance(one, Channel):
            if event & select.POLLOUT:
                one.flush()
            if event & (select.POLLIN | select.POLLHUP | select.POLLERR):
                for message in one.receive():
                    if one is self.stub:
                        self._from_stub(message, now)
                    else:
                        requests.answer(self.desk, self.options.job, one, message, now)
            self.clients = [c for c in self.clients if c.open]

    # -------------------------------------------------------------- messages

    def _from_stub(self, message: dict[str, Any], now: float) -> None:
        pid = message.get("job_pid")
        if isinstance(pid, int) and pid > 1:
            self.watch.begin(pid, now)
            self._warm_at = now
            self.log.info("job", pid=pid)
        options = message.get("options")
        if isinstance(options, dict) and isinstance(options.get("notify"), str):
            self.options.notify = options["notify"]
        told = message.get("told_to_end")
        if isinstance(told, dict) and self._told_until is None:
            self.log.info("told-to-end", signal=told.get("signal"))
            self._told_until = now + VICTIM_WINDOW_S
            self.watch.exits.launcher_ends()
            self.desk.told_to_end()
        ended = message.get("job_ended")
        if isinstance(ended, dict):
            self.outcome = ended
            self.log.info("job-ended", **{k: v for k, v in ended.items() if k != "event"})

    def _say(self, text: str) -> None:
        self.log.info("say", text=text)
        self.stub.send({"say": text})

    # -------------------------------------------------------------- ranks

    def _scan(self, now: float, *, deep: bool = False) -> None:
        new, gone = self.watch.scan(now, deep=deep)
        for fd in gone:
            self.watch.exits.forget(fd)
        if self.watch.exits.full and not self._told_full:
            self._told_full = True
            limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
            self._say(
                f"the hard limit of open files ({limit}) is too low to watch every rank of this "
                "host: raise it (`ulimit -Hn 4096`, or LimitNOFILE=) and launch again"
            )
        if new or gone:
            self._manifest_due = True
            ranks = self.watch.ranks.values()
            self.log.info("ranks", ranks=sorted((r.rank, r.pid, r.attempt, r.how) for r in ranks))
        if self.watch.attempt > self._attempt:
            self._attempt = self.watch.attempt
            self.desk.restarted()

    def _ended(self, fds: list[int], now: float) -> None:
        """Some ranks have ended: the first thing is to keep the others from being ended."""
        lines = self.watch.take_exits(fds, now)
        for line in lines:
            if line.abnormal and not line.ours and not self.ending:
                self._failed(line, now)
        clean = [line for line in lines if line.clean]
        if clean and self.watch.ranks and not self.ending:
            others_run_on = self.watch.has_pages() and not self.watch.others_exiting()
            if others_run_on and self._terms is None and not self._told(now):
                self.desk.left(clean[0], now)
        for line in lines:
            self.log.info(
                "exit", rank=line.rank, pid=line.pid, code=line.code, signal=line.signal,
                order=line.order, ours=line.ours, how=line.how, oom_killed=line.oom_killed,
            )  # fmt: skip
            if line.code is None and line.signal is None and self.watch.ranks and not self.ending:
                self._failed(line, now)

    def _told(self, now: float) -> bool:
        """Whether what ends now does so because the launcher was told to; a job may live on."""
        return self._told_until is not None and now < self._told_until

    def _failed(self, line: ExitLine, now: float) -> None:
        if line.signal == signal.SIGINT or self.stopping or self._told(now):
            self.stopping = True
            return
        if line.signal == signal.SIGTERM:
            if self._terms is None:
                self._terms = (now + _TOGETHER_S, [])
                self.grip.hold()
            self._terms[1].append(line)
            return
        self._terms = None
        self.desk.failed(line, now)

    def _together(self, now: float) -> None:
        """Decide whether a SIGTERM hit one rank, or ended the job as a whole."""
        if self._terms is None:
            return
        lines, self._terms = self._terms[1], None
        hit = {
            one.rank
            for one in self.watch.exits.ended
            if one.signal == signal.SIGTERM and one.attempt == self.watch.attempt
        }
        alone = len(hit) == 1 and len(self.watch.ranks) > 0
        if alone and self.watch.root_lives():
            self.desk.failed(lines[0], now)
        else:
            self.stopping = True
            self.grip.release()

    # -------------------------------------------------------------- time passes

    def _tick(self, now: float) -> None:
        if self._warm_at is not None and now >= self._warm_at and not self.ending:
            with contextlib.suppress(OSError):
                self.captures.warm_up()
            self._warm_at = now + 2.0
        if not self.ending:
            self.watch.observe(now)
            found = None if self._terms else self.watch.monitor.judge(now)
            if found is not None and (found.kind != "left" or not self._told(now)):
                self.desk.stalled(found, now)
            self.peeks.tick(self.watch.monitor, now)
        self.desk.tick(now)
        if self._manifest_due or now - self._manifest_at > 60:
            self._write_manifest(now)
        self.killer.tick(now)
        self._maybe_end(now)

    def _write_manifest(self, now: float) -> None:
        self._manifest_at, self._manifest_due = now, False
        try:
            manifest.write(
                self.run_dir, manifest.manifest(self.watch, self.options.job, self.started)
            )
        except OSError as err:
            self.log.error("manifest-not-written", error=str(err))

    def _diagnosed(self, incident: Incident) -> None:
        """A failure was found for the first time in this incident."""
        if self.options.notify:
            with contextlib.suppress(OSError):
                self.tasks.start(
                    "notify", ["/bin/sh", "-c", self.options.notify], 30.0,
                    extra={"FABWATCH_INCIDENT": str(incident.folder)},
                )  # fmt: skip
        if self.options.kill and incident.trigger != "request":
            self.killer.wait_for(incident, time.monotonic() + self.options.grace)

    # -------------------------------------------------------------- the end

    def _maybe_end(self, now: float) -> None:
        if self.ending:
            if not self.desk.busy or now > self._final_until:
                self._finish()
            return
        over = self.outcome is not None
        if not over and not self.stub.open:
            # The stub is gone. The job may run on without it, or may never have begun.
            over = not self.watch.root_lives() and not self.watch.living()
        if not over:
            self._ended_at = None
            return
        if self._ended_at is None:
            self._ended_at = now
            self.watch.exits.launcher_ends()
            self._next_tick = now + 0.05
        if self.watch.ranks and now - self._ended_at < _DRAIN_S:
            self._next_tick = now + 0.05
            return
        self._begin_end(now)

    def _begin_end(self, now: float) -> None:
        if self.watch.ranks:
            left = ", ".join(f"{r.rank} (pid {r.pid})" for r in self.watch.ranks.values())
            self._say(f"the launcher has ended, but these ranks run on: {left}")
        elif self._still_runs() and not self.stub.open:
            return
        self.ending = True
        grace = self.options.grace if self.stub.open else _ALONE_GRACE_S
        self._final_until = (self._ended_at or now) + max(grace - _FINAL_MARGIN_S, 0.5)
        healthy = self._healthy()
        if not healthy and not self.stopping and self._nothing_said() and self.watch.seen:
            self._late_incident(now)
        self._write_manifest(now)
        self.desk.start_final(healthy, self._how(), self._final_until)

    def _still_runs(self) -> bool:
        return bool(self.watch.living())

    def _healthy(self) -> bool:
        """Whether the job ended well, as far as exit codes tell."""
        if self.outcome is not None and (self.outcome.get("code") or self.outcome.get("signal")):
            return False
        return not any(
            line.abnormal and line.attempt == self.watch.attempt for line in self.watch.exits.ended
        )

    def _how(self) -> str:
        """How the job ended, as far as anybody knows."""
        outcome = self.outcome or {}
        if outcome.get("signal"):
            return f"signal {outcome['signal']}"
        return f"code {outcome['code']}" if "code" in outcome else "unseen"

    def _nothing_said(self) -> bool:
        """Whether no incident tells of this failure."""
        return not any(incident.open for incident in self.desk.all)

    def _late_incident(self, now: float) -> None:
        """The job failed and no rank was seen to: whatever there is, is kept now."""
        lines = [x for x in self.watch.exits.ended if x.abnormal]
        if lines:
            self.desk.failed(lines[0], now)
        elif self.outcome is not None:
            self.desk.job_failed(f"the launcher ended with {self._how()}", now)

    def _finish(self) -> None:
        incident = self.desk.current
        if incident is not None and incident in self.desk.all and incident.open:
            self.desk.teller.last(incident)
        self._send_done()
        self.finished = True

    def _send_done(self) -> None:
        self.stub.send({"done": True})
        until = time.monotonic() + 0.5
        while self.stub.waiting and time.monotonic() < until:
            self.stub.flush()
            time.sleep(0.005)

    def _close(self) -> None:
        """Leave nothing behind: no process, no socket."""
        self.captures.close()
        self.tasks.end_all()
        self.desk.sweep()
        self.grip.close()
        if self.control is not None:
            self.control.close()
        for client in self.clients:
            client.close()
        self.watch.close()
        if not self.watch.ranks:
            _remove_sockets(self.options.sockets)
        self.log.info("end")
        self.stub.close()


def _remove_sockets(path: str) -> None:
    """Remove the directory of sockets, if it is a private one of ours."""
    if not path or not Path(path).name.startswith("fabwatch-"):
        return
    try:
        found = os.lstat(path)
    except OSError:
        return
    private = stat.S_ISDIR(found.st_mode) and not found.st_mode & 0o077
    if private and found.st_uid == os.geteuid() and Path(path) != Path(tempfile.gettempdir()):
        shutil.rmtree(path, ignore_errors=True)
