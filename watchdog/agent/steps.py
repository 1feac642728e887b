"""Work through a flow step by step; a new flow takes the place of the one under way."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from dataclasses import dataclass

from fabwatch.watchdog.agent.tasks import Task, Tasks

DIAGNOSIS_S = 20.0


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
Flow = Generator[Step, None, None]
Begin = Callable[[Snapshot | Diagnose, Callable[[], None]], Task | None]
"""Start a step and call back at its end; None where there is nothing to do. Raises OSError."""


class Steps:
    """The flow under way, if any, and the children that work for it."""

    def __init__(self, tasks: Tasks, begin: Begin, failed: Callable[[Step, OSError], None]) -> None:
        """``failed`` hears of a step that could not be started; the flow goes on all the same."""
        self.tasks = tasks
        self.begin = begin
        self.failed = failed
        self._flow: Flow | None = None
        self._task: Task | None = None
        self._pause: float | None = None

    @property
    def busy(self) -> bool:
        """Whether steps are under way."""
        return self._flow is not None

    def start(self, flow: Flow) -> None:
        """Drop what is under way and begin with ``flow``."""
        self.cancel()
        self._flow = flow
        self._advance()

    def cancel(self) -> None:
        """Drop what is under way."""
        if self._task is not None:
            self.tasks.cancel(self._task)
        self._task, self._flow, self._pause = None, None, None

    def tick(self, now: float) -> None:
        """Go on after a pause."""
        if self._pause is not None and now >= self._pause and self._task is None:
            self._advance()

    def _advance(self) -> None:
        """Go to the next step that takes time."""
        flow = self._flow
        if flow is None:
            return
        self._task, self._pause = None, None
        try:
            step = next(flow)
        except StopIteration:
            if self._flow is flow:
                self._flow = None
            return
        if self._flow is not flow:
            return  # what it did on its way has started another
        try:
            if isinstance(step, Pause):
                self._pause = step.until
                return
            self._task = self.begin(step, lambda: self._ended(flow))
        except OSError as err:
            self.failed(step, err)
        if self._task is None:
            self._pause = time.monotonic()  # on with the next step at the next turn

    def _ended(self, flow: Flow) -> None:
        if self._flow is flow:
            self._advance()
