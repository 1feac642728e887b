"""Stand in a job's place: run it, watch nothing, and end as it ends."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import signal
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from fabwatch.watchdog.launch import rundir
from fabwatch.watchdog.launch.agent_link import AgentLink, agent_command
from fabwatch.watchdog.launch.arming import arm
from fabwatch.watchdog.launch.options import LaunchOptions
from fabwatch.watchdog.launch.processes import (
    PYTHON_IGNORES,
    SENT,
    as_script,
    explained,
    in_child,
    inherited_environment,
    kill_and_reap,
    occupy_closed_streams,
    spawn_job,
)
from fabwatch.watchdog.launch.signals import (
    ALL,
    Forwarding,
    Inherited,
    Witness,
    die_of,
    stop_like,
    take_over,
)
from fabwatch.watchdog.launch.voice import Voice

PREPARE_S = 5.0
_LOOK_S = 30.0  # every event raises a signal; this only bounds what a lost one costs
_SAME_BLOW_S = 0.25
_ENOUGH = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT})
"""What tells a job to end, and us to stop waiting."""


def launch(
    argv: Sequence[str], options: LaunchOptions, *, agent: Sequence[str] | None = None
) -> int:
    """Run ``argv`` in our place and return its exit code, or die of the signal that it died of.

    The last thing that a process does: every signal stays blocked, so that what comes late
    cannot change the exit code. 127: no such command, 126: it cannot be run. Where no run
    directory can be made, or inside another watched run, the job replaces this process
    and runs unwatched. ``agent``: the agent's command, for RUN_DIR and FD to be added.
    """
    if not argv:
        raise ValueError("no command to run")
    inherited = take_over()
    voice = Voice(options.quiet)
    occupy_closed_streams()
    environ = inherited_environment()
    outer = environ.get("FABWATCH_RUN_DIR")
    if outer:
        voice.say(
            f"already inside a watched run ({outer}), so this launch is not watched on its own; "
            "unset FABWATCH_RUN_DIR to watch it"
        )
        return _become(argv, environ, inherited, voice)
    run = _Run.prepared(argv, options, environ, voice)
    if run is None:
        return _become(argv, environ, inherited, voice)
    try:
        code = run.job(inherited, agent_command() if agent is None else agent)
    finally:
        run.clean()
    if code < 0:
        die_of(-code)
        return 128 - code  # the first process of a container cannot kill itself
    return code


def _become(
    argv: Sequence[str], environ: Mapping[str, str], inherited: Inherited, voice: Voice
) -> int:
    """Turn into the job: nothing of ours remains. Returns an exit code if that fails."""
    for number in (*PYTHON_IGNORES, signal.SIGINT):
        if number in PYTHON_IGNORES or callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, inherited.mask)
    try:
        _exec(list(argv), environ)
    except OSError as err:
        return _cannot_run(argv[0], environ, err, voice)


def _exec(argv: list[str], environ: Mapping[str, str]) -> NoReturn:
    try:
        os.execvpe(argv[0], argv, dict(environ))
    except OSError as err:
        words = as_script(argv, environ, err)
        if words is None:
            raise
    os.execve(words[0], words, dict(environ))


def _cannot_run(command: str, environ: Mapping[str, str], err: OSError, voice: Voice) -> int:
    """Say why ``command`` did not start; the exit code that a shell would give."""
    found = command if "/" in command else shutil.which(command, path=environ.get("PATH"))
    if err.errno in (errno.ENOENT, errno.ENOTDIR):
        if found and Path(found).exists():
            voice.error(f"{command}: its interpreter (first line of the file) does not exist")
            return 126
        voice.error(f"{command}: command not found")
        return 127
    voice.error(f"{command}: cannot be run: {err.strerror or err}")
    return 126


class _Run:
    """One watched run: its directories, its agent, and its job."""

    def __init__(
        self,
        argv: Sequence[str],
        options: LaunchOptions,
        environ: dict[str, str],
        voice: Voice,
        ready: rundir.Prepared,
        log: int,
        preparer: int,
    ) -> None:
        self.argv = argv
        self.options = options
        self.environ = environ
        self.voice = voice
        self.run_dir = ready.run_dir
        self.sockets = ready.sockets
        self.armed = arm(
            environ,
            ready.run_dir,
            ready.sockets,
            options,
            argv=argv,
            ras_port=ready.ras_port,
            conf=ready.conf,
        ).environ
        self._log = log
        self._children = {preparer}
        self._link: AgentLink | None = None
        self._witness: Witness | None = None
        self._outcome: dict[str, int] = {}
        self._nothing_ran = False

    @classmethod
    def prepared(
        cls, argv: Sequence[str], options: LaunchOptions, environ: dict[str, str], voice: Voice
    ) -> _Run | None:
        """Make the run; None, with a warning, where that cannot be done."""
        stub = os.getpid()
        made: list[Path] = []

        def first() -> bytes:
            try:
                ready, log = rundir.prepare(argv, options, environ, stub)
            except Exception as err:
                return f"!{explained(err)}".encode("utf-8", "replace")
            made.append(ready.run_dir)
            SENT.append(log)
            return ready.to_json()

        def then() -> None:
            if not made:
                return
            rundir.sync(made[0] / rundir.FILE)
            if options.keep is not None:
                rundir.prune(made[0].parent, options.keep, made[0])

        why = f"no answer in {PREPARE_S:g} s"
        try:
            answer, fds, preparer = in_child(first, PREPARE_S, then)
            if answer is not None and not answer.startswith(b"!") and fds:
                ready = rundir.Prepared.from_json(answer)
                return cls(argv, options, environ, voice, ready, fds[0], preparer)
            if answer is not None:
                why = answer[1:].decode("utf-8", "replace")
                kill_and_reap(preparer)
        except (OSError, ValueError, KeyError) as err:
            why = explained(err)
        voice.say(f"{options.out}: cannot hold a run ({why}); the job runs unwatched")
        return None

    def job(self, inherited: Inherited, agent: Sequence[str]) -> int:
        """Run the job from start to end; the exit code, or minus the signal."""
        self._start_agent(agent)
        if inherited.ignores_children:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        early = {int(number) for number in signal.sigpending()}
        try:
            pid = self._spawn(inherited)
        except OSError as err:
            self._nothing_ran = True
            return _cannot_run(self.argv[0], self.environ, err, self.voice)
        self._tell({"job_pid": pid})
        self._witness = Witness(self.environ)
        code = self._wait(pid, Forwarding(pid, early, self._witness))
        self._witness.close()
        self._outcome = {"code": code} if code >= 0 else {"signal": -code}
        self._tell({"job_ended": self._outcome})
        self._grace()
        return code

    def clean(self) -> None:
        """End and remove what is ours; leave the run directory of a job that ran."""
        if self._witness is not None:
            self._witness.close()
        if self._link is not None:
            self._link.end()
        for pid in self._children:
            kill_and_reap(pid)
        os.close(self._log)

        def last() -> bytes:
            shutil.rmtree(self.sockets, ignore_errors=True)
            if self._nothing_ran:
                shutil.rmtree(self.run_dir, ignore_errors=True)
            elif self._outcome:
                rundir.note_end(self.run_dir, self._outcome)
            return b"."

        try:
            answer, _, pid = in_child(last, 2.0)
            if answer is not None:
                kill_and_reap(pid)
        except OSError:
            pass  # no process can be made: the run directory says itself that it is unfinished

    def _start_agent(self, command: Sequence[str]) -> None:
        try:
            self._link = AgentLink(command, str(self.run_dir), self._log, self.environ)
        except (OSError, ValueError, NotImplementedError) as err:
            why = explained(err)
            self.voice.say(f"the agent cannot be started ({why}); the job runs unwatched")
            return
        self._tell({"options": {"notify": self.options.notify}})

    def _spawn(self, inherited: Inherited) -> int:
        try:
            return spawn_job(self.argv, self.armed, inherited.mask, inherited.ignores_children)
        except OSError as err:
            if err.errno != errno.E2BIG:
                raise
        self.voice.say("no room in the environment: the job runs with nothing armed")
        return spawn_job(self.argv, self.environ, inherited.mask, inherited.ignores_children)

    def _tell(self, message: dict[str, object]) -> None:
        if self._link is not None:
            self._link.send(message)

    def _listen(self) -> None:
        """Say what the agent says. Whatever goes wrong with it must not reach the job."""
        if self._link is None:
            return
        try:
            said = self._link.heard()
        except Exception as err:
            self.voice.say(f"the agent's words cannot be read ({err!r})")
            self._link.open = False
            return
        for text in said:
            self.voice.say(text)

    def _wait(self, job: int, forwarding: Forwarding) -> int:
        """Pass on, stop and continue with the job until it ends; its code or minus signal."""
        while True:
            info = signal.sigtimedwait(ALL, _LOOK_S)
            if info is not None and info.si_signo in _ENOUGH and info.si_pid != job:
                self._tell({"told_to_end": {"signal": int(info.si_signo)}})
            if info is not None and forwarding.wanted(info):
                # It may be ending, or have become somebody else's (setuid).
                with contextlib.suppress(OSError):
                    os.kill(job, info.si_signo)
            self._listen()
            for pid, status in self._reap():
                if pid != job:
                    continue
                if not os.WIFSTOPPED(status):
                    return os.waitstatus_to_exitcode(status)
                forwarding.helpers.add(stop_like(os.WSTOPSIG(status), job))

    def _reap(self) -> list[tuple[int, int]]:
        """Every change of a child's state; as the first process of a container also strangers."""
        out: list[tuple[int, int]] = []
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG | os.WUNTRACED)
            except ChildProcessError:
                return out
            if pid == 0:
                return out
            out.append((pid, status))
            if not os.WIFSTOPPED(status):
                self._children.discard(pid)
                if self._link is not None:
                    self._link.lost(pid, status)
                if self._witness is not None:
                    self._witness.lost(pid)

    def _grace(self) -> None:
        """Wait for a capture under way, at most --grace; Ctrl-C ends the wait."""
        link = self._link
        if link is None:
            return
        began = time.monotonic()
        until = began + self.options.grace
        while not link.done and link.open:
            left = until - time.monotonic()
            if left <= 0:
                self.voice.say(
                    f"the capture was not done {self.options.grace:g} s after the job's end "
                    f"(--grace) and is cut short; what there is: {self.run_dir}"
                )
                return
            info = signal.sigtimedwait(ALL, min(left, 1.0))
            self._listen()
            self._reap()
            if info is None:
                continue
            # The Ctrl-C that ended the job may reach us after its end: it was not for the wait.
            if info.si_signo in _ENOUGH and time.monotonic() - began > _SAME_BLOW_S:
                self.voice.say(f"not waiting for the capture; what there is: {self.run_dir}")
                return
            if info.si_signo == signal.SIGTSTP:
                os.kill(os.getpid(), signal.SIGSTOP)
        self._listen()
        if not link.done:
            how = "" if link.ended is None else f" ({_how(link.ended)})"
            self.voice.say(
                f"the agent ended before the job did{how}: what happened after that was not "
                f"watched; see {self.run_dir}/agent.log"
            )


def _how(code: int) -> str:
    return f"exit code {code}" if code >= 0 else f"signal {-code}"
