"""The probe of one process: a thread that ticks, and what happens at fork and at exit."""

from __future__ import annotations

import atexit
import json
import os
import sys
import threading
import time
from typing import Any

from . import c10d, control, hook, identity, pageformat, quiet, record

_SMALL_GROUP = 64  # members beyond which an arithmetic series of ranks is written as a range


def _ranks(group: c10d.GroupInfo) -> dict[str, Any]:
    """The group as JSON; ``range`` = [start, stop, step] replaces long regular lists."""
    made: dict[str, Any] = {"name": group.name, "desc": group.desc, "ranks": list(group.ranks)}
    if len(group.ranks) > _SMALL_GROUP:
        step = group.ranks[1] - group.ranks[0]
        stop = group.ranks[0] + step * len(group.ranks)
        if step and tuple(range(group.ranks[0], stop, step)) == group.ranks:
            made["ranks"] = []
            made["range"] = [group.ranks[0], stop, step]
    return made


def groups_json(groups: list[c10d.GroupInfo], room: int) -> str:
    """All groups as JSON text of at most ``room`` bytes; the largest lose their ranks first."""
    made = [_ranks(group) for group in groups]
    text = json.dumps(made)
    for item in sorted(made, key=lambda one: -len(one["ranks"])):
        if len(text) <= room:
            break
        item["size"], item["ranks"] = len(item["ranks"]), []
        text = json.dumps(made)
    while len(text) > room and made:
        made.pop()
        text = json.dumps(made)
    return text


def _word(value: bool) -> str:
    return "true" if value else "false"


class Page:
    """The page file: written by its path's descriptor, never mapped.

    A mapped page would kill the rank by SIGBUS when the disk is full or the file cut short, and
    would block with the GIL held when storage hangs.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self.held: control.Descriptor | None = None
        self.sequence = 0
        self.failed = 0

    def write(self, tick: int, payload: bytes) -> None:
        """Publish one page; a failure is noted once and tried again at the next tick."""
        try:
            if self.held is None or not self.held.ours():
                flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
                fd = os.open(self.path, flags, 0o600)
                os.ftruncate(fd, pageformat.SIZE)
                self.held = control.Descriptor(fd)
            self.sequence += 2
            raw = pageformat.Raw(self.sequence, time.monotonic_ns(), time.time_ns(), tick, payload)
            os.pwrite(self.held.fd, pageformat.pack(raw), 0)
        except Exception as error:
            self.failed += 1
            if self.failed == 1:
                hook.problem(f"page: {error!r}")

    def close(self) -> None:
        """Give up the descriptor (after a fork)."""
        if self.held is not None:
            self.held.close()
        self.held = None


class Probe:
    """Everything that fabwatch does in one process."""

    def __init__(self, finder: hook.WaitForTorch | None) -> None:
        self.pid = os.getpid()
        self.run_dir = os.environ["FABWATCH_RUN_DIR"]
        self.sockets = os.environ["FABWATCH_SOCKETS"]
        self.finder = finder
        self.claim = identity.claim(os.environ)
        self.claims = self.claim is not None and identity.may_claim(self.claim)
        self.owners: list[int] | None = None
        self.nested = False
        self.ready = False
        self.nccl = False
        self.proved = False  # a default group was seen: no longer a claim of the environment
        self.world_size = 0
        self.is_rank = self.claims
        self.rank = self.claim.rank if self.claim is not None else -1
        self.page = Page(os.path.join(self.run_dir, "live", f"{self.pid}.page"))
        self.control = control.Control(os.path.join(self.sockets, f"p{self.pid}.sock"))
        self.recorders = (
            c10d.Recorder("gloo", "_dump_fr_trace_json"),
            c10d.Recorder("nccl", "_dump_nccl_trace_json"),
        )
        self.torch_lock = threading.Lock()  # held around calls into torch; taken for good at exit
        self.dead = False  # a fork: not ours any more
        self.exiting = False
        self.closing: dict[str, Any] | None = None  # exception record to write
        self.wrote_exception = False
        self.closed = threading.Event()
        self.server: str | None = None
        self.main = threading.main_thread()
        self.started = time.monotonic()
        self.tick = 0
        self.cost_ns = 0
        self.key: tuple[Any, ...] = ()
        self.head = ""
        self.status: dict[str, dict[str, int]] = {}

    # -------------------------------------------------------------- the thread

    def run(self) -> None:
        """Tick until the interpreter goes away. Nothing escapes from here."""
        try:
            quiet.block_signals()
        except Exception as error:
            hook.problem(f"signals: {error!r}")
        due = time.monotonic() + 0.1
        while not self.dead:
            try:
                left = due - time.monotonic()
                while left > 0 and not self.dead and not self._leaving():
                    self._wait(left)
                    left = due - time.monotonic()
                leaving = self.exiting
                began = time.thread_time_ns()
                try:
                    self._tick()
                finally:
                    self.cost_ns = time.thread_time_ns() - began
                    if leaving:
                        self.closed.set()
            except Exception as error:
                hook.problem(f"tick: {error!r}")
            due = max(due + pageformat.TICK_S, time.monotonic() + pageformat.TICK_S / 2)

    def _leaving(self) -> bool:
        return self.exiting and not self.closed.is_set()

    def _wait(self, seconds: float) -> None:
        if self.control.descriptor is None:
            time.sleep(min(seconds, 0.05 if self.exiting else 1.0))
            return
        datagram = self.control.wait(seconds)
        if datagram is not None:
            reason = control.answer(datagram, (self.run_dir, self.sockets), self.torch_lock)
            if reason:
                hook.problem(f"control: {reason}")

    def _tick(self) -> None:
        self.tick += 1
        if self.finder is not None and self.finder.remove():
            self.finder = None
        if not self.ready:
            self.ready = c10d.ready()
            if not self.ready:
                return
        if not self.exiting:
            self._look()
        if not self.is_rank:
            return
        if self.server is None and not self.exiting:
            self._open()
        if self.closing is not None or hasattr(sys, "last_value"):
            self._exception()
        self._publish()

    def _look(self) -> None:
        """Read torch's state; decide whether this process is a rank."""
        if not self.torch_lock.acquire(timeout=0.5):
            return
        try:
            key = c10d.key() if c10d.default_id() else ()
            if key != self.key or not self.head:
                if key and not self._become_rank():
                    return
                self._rebuild()
                self.key = key
                self.nccl = bool(key) and c10d.uses("nccl")
            if key:
                self.status = self.recorders[0].status()
                if self.nccl:
                    self.status = {**self.status, **self.recorders[1].status()}
        finally:
            self.torch_lock.release()
        if self.claims and not self.proved and not self.exiting:
            # A launcher is known by what it imports after torch: do not claim too early.
            launcher = identity.is_launcher()
            self.is_rank = not launcher and time.monotonic() - self.started >= 0.9
            if launcher:
                self._withdraw()

    def _become_rank(self) -> bool:
        """A default group is initialised: the proof, unless an ancestor is the rank."""
        found = c10d.default()
        if found is None or self.nested:
            return False
        if self.owners is None and not self.claims:
            self.owners = identity.owners(self.claim.variable if self.claim else "RANK")
        for pid in self.owners or ():
            if _proved(os.path.join(self.run_dir, "live", f"{pid}.page")):
                self.nested, self.is_rank = True, False
                hook.problem(f"a group inside rank process {pid}: no rank of this job")
                return False
        self.rank, self.world_size = found
        if not self.proved:
            self.proved = self.is_rank = True
            self._watch_worker()
        return True

    def _watch_worker(self) -> None:
        """Ask multiprocessing, if it started us, to tell of the exception that ends us."""
        util: Any = sys.modules.get("multiprocessing.util")
        if util is not None and identity.is_worker_process():
            util.Finalize(None, _at_worker_exit, args=(self,), exitpriority=1 << 30)

    def _withdraw(self) -> None:
        self.claims = self.is_rank = False
        self.page.close()
        for path in (self.page.path, self.control.path):
            try:
                os.unlink(path)
            except OSError:
                pass
        self.control.close()

    def _open(self) -> None:
        """Once this is a rank: the control socket and torch's server."""
        self.control.open()
        path = os.path.join(self.sockets, f"w{self.pid}.sock")
        if not self.torch_lock.acquire(timeout=0.5):
            return
        try:
            reason = quiet.serve(path)
        finally:
            self.torch_lock.release()
        self.server = "" if reason else path
        if reason:
            hook.problem(f"worker server: {reason}")
        self._rebuild()

    def _rebuild(self) -> None:
        """The part of the payload that changes only when the set of groups does."""
        groups = c10d.groups() if c10d.default_id() else []
        environ = os.environ
        claim = identity.claim(environ)  # anew: scripts set these variables too
        world = claim.world_size if claim is not None else None
        fixed: dict[str, Any] = {
            "pid": self.pid,
            "rank": self.rank,
            "world_size": self.world_size if self.proved else world,
            "local_rank": claim.local_rank if claim is not None else None,
            "attempt": int(environ.get("TORCHELASTIC_RESTART_COUNT") or 0),
            "torch": str(getattr(sys.modules.get("torch"), "__version__", "")),
            "python": ".".join(map(str, sys.version_info[:3])),
            "initialised": bool(groups),
            "rank_from": "group" if self.proved else "environment",
            "server": self.server or "",
            "control": self.control.path if self.control.descriptor is not None else "",
            "tick_s": pageformat.TICK_S,
        }
        text = json.dumps(fixed)
        self.head = text[:-1] + ', "groups": ' + groups_json(groups, pageformat.ROOM - 8192)

    def _publish(self) -> None:
        if not self.head:
            return
        text = (
            f'{self.head}, "status": {json.dumps(self.status)}, "exiting": {_word(self.exiting)}, '
            f'"main_alive": {_word(self.main.is_alive())}, "cost_us": {self.cost_ns // 1000}}}'
        )
        self.page.write(self.tick, text.encode())

    def _exception(self) -> None:
        """Write the exception that ended the main thread, also if its exit hangs afterwards."""
        if self.wrote_exception:
            return
        made = self.closing
        if made is None:
            error = record.uncaught()
            made = record.describe(error, self.rank) if error is not None else None
        if made is not None:
            self.wrote_exception = True
            record.write(self.run_dir, made)

    # -------------------------------------------------------------- exit and fork

    def leave(self, error: BaseException | None) -> None:
        """The process ends: let the thread write the last page; wait for it but briefly."""
        if self.dead or os.getpid() != self.pid or self.exiting:
            return
        if self.claims and not self.proved:
            self.is_rank = not identity.is_launcher()
        if self.is_rank and error is not None and not self.wrote_exception:
            self.closing = record.describe(error, self.rank)
        self.exiting = True
        # For good: a thread that came back from torch while the interpreter goes away would
        # unwind through C++ and abort the process.
        self.torch_lock.acquire(timeout=1.0)
        if not self.is_rank:
            return
        if self.control.descriptor is not None:
            control.wake(self.control.path)
        self.closed.wait(0.5)

    def forked(self) -> bool:
        """In a child: let go of the parent's files. True if the child may have a probe anew."""
        self.dead = True
        self.page.close()
        self.control.close()
        return not self.is_rank and not self.claims and not self.nested


def _proved(path: str) -> bool:
    """Whether the page at ``path`` belongs to a process that has initialised a group."""
    try:
        with open(path, "rb") as file:
            raw = pageformat.unpack(file.read(pageformat.SIZE))
        return raw is not None and json.loads(raw.payload).get("rank_from") == "group"
    except (OSError, ValueError):
        return False


_probe: Probe | None = None


def _at_exit() -> None:
    """Registered with atexit."""
    try:
        if _probe is not None:
            _probe.leave(record.uncaught())
    except Exception as error:
        hook.problem(f"exit: {error!r}")


def _at_worker_exit(probe: Probe) -> None:
    """Registered with multiprocessing in a worker that is a rank; runs while it unwinds."""
    try:
        probe.leave(record.in_flight())
    except Exception as error:
        hook.problem(f"worker exit: {error!r}")


def _after_fork_in_child() -> None:
    global _probe
    try:
        before, _probe = _probe, None
        if before is not None and before.forked():
            _begin(None)
    except Exception as error:
        hook.problem(f"fork: {error!r}")


def _begin(finder: hook.WaitForTorch | None) -> None:
    global _probe
    _probe = Probe(finder)
    threading.Thread(target=_probe.run, name="fabwatch-probe", daemon=True).start()


def _drop_old_names() -> None:
    """Take back armed names that this torch merely warns about (2.11 and later).

    Only the rank knows its torch, and nothing has read the variables yet. What the user set is
    not in FABWATCH_OLD_NAMES.
    """
    try:
        version = str(sys.modules["torch.version"].__version__).split(".")
        if (int(version[0]), int(version[1])) >= (2, 11):
            for name in os.environ.get("FABWATCH_OLD_NAMES", "").split(","):
                os.environ.pop(name, None)
    except Exception as error:
        hook.problem(f"old names stay: {error!r}")


def start(finder: hook.WaitForTorch | None) -> None:
    """Begin in this process: torch.distributed has just been imported."""
    _drop_old_names()
    _begin(finder)
    atexit.register(_at_exit)
    os.register_at_fork(after_in_child=_after_fork_in_child)
