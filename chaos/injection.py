"""Inject a planned fault, hold it, heal it: on every way out, and at the time limit.

Order: allowed here? nothing else in force? journal on disk; guardian up; only then the fault;
then the measurement that it took hold. The time limit is enforced by a thread here and by the
guardian; a guardian that is killed is replaced, and when that fails the fault is healed at once.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fabwatch.chaos import allowed, journal
from fabwatch.chaos.faults import find
from fabwatch.chaos.healing import heal, recover
from fabwatch.chaos.model import Json, Mechanism, Plan, Refused, Seen, Values, unknown
from fabwatch.watchdog import procfs

GUARDIAN_START_S = 30.0
GUARDIAN_LATER_S = 1.0
"""The guardian's deadline comes so long after the injector's own."""

GUARDIANS = 3
"""So many are started for one fault before it is given up."""


class NothingHappened(RuntimeError):
    """The fault was injected and measurably did not take hold: the run proves nothing."""


class NotHealed(RuntimeError):
    """The fault may still be in force; the journal stays open."""


@dataclass
class Injection:
    """A fault in force. ``held``: what was measured last; ``healed``: set when it is over."""

    plan: Plan
    path: Path
    mechanism: Mechanism
    state: Values
    started: float
    until: float
    held: Seen = field(default_factory=lambda: unknown("not measured"))
    healed: Seen | None = None
    guardian: subprocess.Popen[bytes] | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _over: threading.Event = field(default_factory=threading.Event)
    _pipe: int = -1

    @property
    def id(self) -> str:
        """Of the journal."""
        return self.path.stem

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until it is over (healed for any reason); False after ``seconds``."""
        return self._over.wait(seconds)

    def measure(self) -> Seen:
        """Look again whether it took hold; once seen, it stays so."""
        if self.held.known is not True and self.healed is None:
            self.held = self.mechanism.took_hold(self.state)
        return self.held

    def end(self, by: str) -> Seen:
        """Heal now; idempotent, from any thread."""
        with self._lock:
            if self.healed is None:
                if self.held.known is not True and not self._over.is_set():
                    with contextlib.suppress(OSError, Refused):
                        self.held = self.mechanism.took_hold(self.state)
                self.healed = heal(self.path, by)
                self._over.set()
        return self.healed


@contextlib.contextmanager
def injected(
    plan: Plan,
    *,
    yes_break: Sequence[str] = (),
    store: journal.Store | None = None,
    beside: Sequence[str] = (),
) -> Iterator[Injection]:
    """Have ``plan`` in force for the block, and healed after it, whatever ends it.

    ``yes_break``: host patterns (see :mod:`fabwatch.chaos.allowed`). ``beside``: ids of faults
    of the same experiment that may be in force. Raises :class:`Refused` before anything is
    touched, :class:`NothingHappened` when it did not take hold, :class:`NotHealed` when it could
    not be undone.
    """
    store = (store or journal.Store.default()).ready()
    try:
        allowed.check(yes_break)
        if plan.exceeds:
            raise Refused("the blast radius is too large: " + "; ".join(plan.exceeds))
        with store.locked():
            recover(store)
            others = [r.id for r in store.open_records() if r.id not in beside]
            if others:
                raise Refused(
                    f"in force already: {', '.join(others)}; see fabwatch chaos status, and "
                    "fabwatch chaos revert --all"
                )
            injection = _intend(plan, store)
    except Refused as err:
        store.audit("refused", {"plan": plan.as_json(), "why": str(err)})
        raise
    _begin(injection, store)
    try:
        yield injection
    finally:
        with _signals_wait():
            seen = injection.end("injector")
            _release(injection)
            store.audit(
                "healed" if seen.known else "not healed",
                {"id": injection.id, "held": injection.held.as_json(), "seen": seen.as_json()},
            )
            with contextlib.suppress(FileNotFoundError):
                record = journal.read(injection.path)
                if not record.open:
                    store.put_away(record)
        if not seen.known:
            raise NotHealed(
                f"{plan.fault} may still be in force: {seen.says}. Try: fabwatch chaos revert "
                f"{injection.id}; by hand: {'; '.join(plan.steps.undoes)}"
            )
    if injection.held.known is False:
        raise NothingHappened(f"{plan.fault} did not take hold: {injection.held.says}")


def _intend(plan: Plan, store: journal.Store) -> Injection:
    """Put the intent on disk."""
    name = f"f-{int(time.time() * 1000):x}-{uuid.uuid4().hex[:6]}"
    path = store.path(name)
    now = time.monotonic()
    me = procfs.stat(os.getpid())
    state = plan.steps.state.plus(
        {"id": name, "limit_s": plan.limit_s, "until_ns": int((now + plan.limit_s) * 1e9)}
    )
    mechanism = find(plan.fault).mechanism(plan.mechanism)
    until = now + plan.limit_s
    injection = Injection(plan, path, mechanism, state, now, until)
    journal.create(path, {
        "id": name, "fault": plan.fault, "mechanism": plan.mechanism, "limit_s": plan.limit_s,
        "target": plan.target.as_json(), "options": plan.options.plain(), "state": state.plain(),
        "undoes": list(plan.steps.undoes),
        "injector": {"pid": os.getpid(), "start_ticks": me.start_ticks if me else 0},
    })  # fmt: skip
    store.audit("injecting", {"id": name, "plan": plan.as_json()})
    return injection


def _begin(injection: Injection, store: journal.Store) -> None:
    """Guardian, fault, measurement; heals and raises when any of them fails."""
    plan, path, mechanism = injection.plan, injection.path, injection.mechanism

    def note(more: Mapping[str, Json]) -> None:
        journal.append(path, "note", {"state": dict(more)})
        injection.state = injection.state.plus(more)

    try:
        injection.guardian = _guard(injection)
        threading.Thread(target=_watch, args=(injection,), name="chaos-limit", daemon=True).start()
        with journal.locked(path, 5.0):
            mechanism.inject(injection.state, note)
        if injection.healed is not None or not journal.read(path).open:
            # Healed (limit, guardian) while we were still at it: what came after must go too.
            mechanism.revert(injection.state)
            raise Refused(f"{plan.fault}: the time limit passed while it was being injected")
        journal.append(path, "injected")
        injection.held = mechanism.took_hold(injection.state)
        journal.append(path, "held", {"seen": injection.held.as_json()})
        if injection.held.known is False and not getattr(mechanism, "later", False):
            raise NothingHappened(f"{plan.fault} did not take hold: {injection.held.says}")
    except BaseException as err:
        with _signals_wait():
            seen = injection.end("injector")
            _release(injection)
            store.audit("failed", {"id": injection.id, "why": str(err), "seen": seen.as_json()})
        if not seen.known:
            raise NotHealed(f"{plan.fault} may still be in force: {seen.says}") from err
        store.put_away(journal.read(path))
        raise


def _guard(injection: Injection) -> subprocess.Popen[bytes]:
    """A guardian that is ready; :class:`Refused` when there cannot be one."""
    theirs, mine = os.pipe2(os.O_CLOEXEC)
    me = os.pidfd_open(os.getpid())
    later = max(0.0, injection.until - time.monotonic()) + GUARDIAN_LATER_S
    words = [sys.executable, "-m", "fabwatch.chaos.guardian", str(injection.path)]
    try:
        child = subprocess.Popen(
            [*words, str(me), str(theirs), f"{later:.3f}"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            pass_fds=(me, theirs),
            start_new_session=True,
            env={k: v for k, v in os.environ.items() if not k.startswith("LD_")},
        )
    finally:
        os.close(me)
        os.close(theirs)
    if injection._pipe >= 0:
        os.close(injection._pipe)
    injection._pipe = mine
    assert child.stdout is not None
    ready, _, _ = select.select([child.stdout], [], [], GUARDIAN_START_S)
    answer = os.read(child.stdout.fileno(), 1) if ready else b""
    child.stdout.close()
    if answer != b".":
        child.kill()
        child.wait()
        raise Refused("the guardian did not start: nothing was injected")
    return child


def _watch(injection: Injection) -> None:
    """The injector's own clock, and the guardian's guardian."""
    started = 1
    while not injection.wait(min(0.1, max(0.0, injection.until - time.monotonic()))):
        if time.monotonic() >= injection.until:
            injection.end("injector: the time limit")
            return
        guardian = injection.guardian
        if guardian is None or guardian.poll() is None:
            continue
        if not journal.read(injection.path).open:
            injection.end("guardian")
            return
        try:
            if started >= GUARDIANS:
                raise Refused(f"{started} guardians died")
            started += 1
            injection.guardian = _guard(injection)
        except (OSError, Refused) as err:
            injection.end(f"injector: no guardian: {err}")
            return


def _release(injection: Injection) -> None:
    """Let the guardian go; it ends when it finds the journal closed."""
    injection._over.set()
    if injection._pipe >= 0:
        os.close(injection._pipe)
        injection._pipe = -1
    if injection.guardian is not None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            injection.guardian.wait(timeout=5 if injection.healed else 0)


@contextlib.contextmanager
def _signals_wait() -> Iterator[None]:
    """Keep Ctrl-C and friends from breaking off the healing."""
    held = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, held)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def status(store: journal.Store) -> list[dict[str, Json]]:
    """What is in force: for `fabwatch chaos status`."""
    told: list[dict[str, Json]] = []
    for record in store.open_records():
        intent = record.intent or Values()
        told.append({
            "id": record.id, "fault": intent.get("fault"), "mechanism": intent.get("mechanism"),
            "target": intent.get("target"), "since": intent.get("at"),
            "limit_s": intent.get("limit_s"), "injector_alive": record.owner_alive(),
            "unsafe": record.unsafe, "undoes": intent.get("undoes"), "torn": record.torn,
        })  # fmt: skip
    return told


def revert(store: journal.Store, names: Sequence[str], everything: bool) -> list[tuple[str, Seen]]:
    """Heal by hand. ``names``: ids; :class:`Refused` for an unknown one."""
    if everything:
        return [(record.id, seen) for record, seen in recover(store, everything=True)]
    told = []
    for name in names:
        path = store.path(name)
        if "/" in name or not path.exists():
            if (store.folder / "closed" / f"{name}.jsonl").exists() and "/" not in name:
                told.append((name, heal(store.folder / "closed" / f"{name}.jsonl", "revert")))
                continue
            raise Refused(f"no fault {name!r}; see fabwatch chaos status")
        seen = heal(path, "revert")
        store.audit("healed", {"id": name, "seen": seen.as_json()})
        told.append((name, seen))
    return told


__all__ = ["Injection", "NotHealed", "NothingHappened", "injected", "revert", "status"]
