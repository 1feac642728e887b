"""One trial: run the wrapped job through the command line, break it, read the verdict, judge."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fabwatch.chaos.drills import cgroups
from fabwatch.chaos.drills.cells import Cell

FROZEN_WITHIN_S = 10.0
"""Evidence must be on disk so soon after the last progress."""

THAW_AFTER_S = 20.0
"""A frozen rank is let go so long after its peers' time-out."""


@dataclass
class Outcome:
    """What came of one trial. ``wrong`` lists every expectation that did not hold."""

    cell: str
    culprit: int | None
    expected: list[int]
    named: list[int] = field(default_factory=list)
    outcome: str = ""
    symptom: str = ""
    fabric: str = ""
    first: str = ""
    grade: str = ""
    frozen_s: float | None = None
    exit_code: int | None = None
    alarms: int = 0
    run: str = ""
    wrong: list[str] = field(default_factory=list)

    @property
    def right(self) -> bool:
        """Whether everything was as expected."""
        return not self.wrong

    def as_json(self) -> dict[str, Any]:
        """For a results file."""
        return {**asdict(self), "right": self.right}


@dataclass(frozen=True)
class Setting:
    """Where a trial runs: how many ranks, over which backend, and when the fault strikes."""

    world: int = 4
    backend: str = "gloo"
    after: float = 30.0
    timeout: float = 40.0


def command(cell: Cell, culprit: int | None, out: Path, state: Path, setting: Setting) -> list[str]:
    """The command line of the wrapped job."""
    job = ["-m", "fabwatch.chaos.workloads.train", "--state-dir", str(state), *cell.options]
    if cell.control:
        job += ["--seconds", str(cell.seconds)]
    else:
        job += ["--fault", cell.name, "--culprit", str(culprit), "--after", str(setting.after)]
        job += ["--timeout", str(setting.timeout)]
    job += ["--backend", setting.backend]
    wrap = [sys.executable, "-m", "fabwatch", "--out", str(out), "--grace", "30"]
    return [*wrap, "torchrun", "--standalone", "--nproc-per-node", str(setting.world), *job]


def _read(path: Path) -> dict[str, Any]:
    with contextlib.suppress(OSError, ValueError):
        value = json.loads(path.read_text())
        if isinstance(value, dict):
            return value
    return {}


def _strike_from_outside(
    cell: Cell,
    culprit: int,
    state: Path,
    stack: contextlib.ExitStack,
    until: float,
    thaw_after: float,
) -> None:
    """Faults that need a cgroup: wait for the moment, then strike."""

    def wait_for(name: str) -> str:
        while time.monotonic() < until:
            with contextlib.suppress(OSError):
                return (state / name).read_text()
            time.sleep(0.05)
        raise TimeoutError(f"the job never wrote {state / name}")

    for controller in cell.needs:
        path, v2 = stack.enter_context(cgroups.cgroup(controller))
        pid = int(wait_for(f"rank-{culprit}.pid"))
        if controller == "memory":
            cgroups.limit_memory(path, v2, 256 << 20)
            cgroups.move(path, pid)
        else:
            cgroups.move(path, pid)
            wait_for("fault.at")
            cgroups.freeze(path, v2)
            # A frozen process cannot even be killed in a version 1 freezer: without this the bare
            # job would never end either.
            thaw = threading.Timer(thaw_after, cgroups.thaw, (path, v2))
            thaw.daemon = True
            thaw.start()
            stack.callback(thaw.cancel)


def run(cell: Cell, culprit: int | None, folder: Path, setting: Setting | None = None) -> Outcome:
    """Run one trial in ``folder`` (made). Ends within the cell's time plus four minutes.

    Raises RuntimeError if this host cannot make the cgroups that the cell needs.
    """
    setting = setting or Setting()
    folder = folder.absolute()
    out, state = folder / "runs", folder / "state"
    out.mkdir(parents=True)
    state.mkdir()
    environ = {k: v for k, v in os.environ.items() if not k.startswith(("FABWATCH_", "TORCH"))}
    environ["PYTHONUNBUFFERED"] = "1"
    environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environ.get('PATH', '')}"
    deadline = time.monotonic() + setting.after + cell.seconds + 240
    result = Outcome(cell.name, culprit, list(cell.blame(culprit or 0, setting.world)))
    with (
        contextlib.ExitStack() as stack,
        (folder / "stdout").open("wb") as stdout,
        (folder / "stderr").open("wb") as stderr,
    ):
        job = subprocess.Popen(
            command(cell, culprit, out, state, setting),
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            env=environ,
            cwd=folder,
            start_new_session=True,
        )
        try:
            if culprit is not None:
                _strike_from_outside(
                    cell, culprit, state, stack, deadline, setting.timeout + THAW_AFTER_S
                )
            job.wait(timeout=max(1.0, deadline - time.monotonic()))
        except (subprocess.TimeoutExpired, TimeoutError) as err:
            result.wrong.append(f"the job did not end: {err}")
        finally:
            if job.poll() is None:
                # the session is ours (start_new_session), so its group holds only this job
                os.killpg(job.pid, signal.SIGKILL)
                job.wait(timeout=30)
    result.exit_code = job.returncode
    _judge(cell, result, folder)
    return result


def _judge(cell: Cell, result: Outcome, folder: Path) -> None:
    """Compare what the run says with what was done."""
    wrong = result.wrong
    runs = sorted((folder / "runs").iterdir())
    if len(runs) != 1:
        wrong.append(f"{len(runs)} run directories instead of one")
        return
    result.run = str(runs[0])
    verdict = _read(runs[0] / "verdict.json")
    if not verdict:
        wrong.append("the run has no verdict.json")
    signatures = verdict.get("signatures") or [{}]
    result.outcome = verdict.get("outcome", "")
    result.symptom = verdict.get("symptom", "")
    result.fabric = verdict.get("fabric", "")
    result.named = sorted(verdict.get("culprits", {}).get("ranks", []))
    result.first = signatures[0].get("id", "")
    result.grade = signatures[0].get("grade", "")
    incidents = sorted((runs[0] / "incidents").glob("[0-9]*"))
    if result.exit_code != cell.exit_code:
        wrong.append(f"exit code {result.exit_code} instead of {cell.exit_code}")
    expected_out = "train: begin\n" + ("train: end\n" if cell.control else "")
    if (folder / "stdout").read_text(errors="replace") != expected_out:
        wrong.append("standard output differs from the bare job's")
    diagnosed = [i for i in incidents if _read(i / "verdict.json").get("outcome") == "diagnosed"]
    if cell.control:
        result.alarms = len(diagnosed)
        if diagnosed or result.outcome == "diagnosed":
            wrong.append("a healthy job was diagnosed")
        return
    if cell.undecidable and result.outcome == "cannot-tell" and not result.named:
        result.expected = []
    elif result.outcome != "diagnosed":
        wrong.append(f"outcome {result.outcome or 'missing'}")
    if result.named != result.expected:
        wrong.append(f"named {result.named} instead of {result.expected}")
    if result.first not in cell.accept:
        wrong.append(f"first signature {result.first or 'none'}")
    if result.fabric == "convicted":
        wrong.append("the fabric was convicted")
    if result.symptom not in cell.symptom:
        wrong.append(f"symptom {result.symptom or 'none'}")
    result.frozen_s = _frozen_after(incidents, folder / "state" / "fault.at", cell)
    if result.frozen_s is None:
        wrong.append("no evidence was frozen")
    elif result.frozen_s > FROZEN_WITHIN_S:
        wrong.append(f"evidence frozen after {result.frozen_s:.1f} s")


def _frozen_after(incidents: list[Path], fault_at: Path, cell: Cell) -> float | None:
    """Seconds from the last progress to the end of the first capture's first tier.

    The last progress is what the watch itself noted; the moment of the fault is the check on it:
    a watch that believed in progress after the fault does not get to start its clock later,
    except where the fault takes time to bite (memory).
    """
    for incident in incidents:
        facts = _read(incident / "incident.json")
        captured = facts.get("captured")
        if not isinstance(captured, int | float):
            continue
        struck = None
        with contextlib.suppress(OSError, ValueError):
            struck = float(fault_at.read_text())
        if struck is not None and captured < struck:
            continue  # an earlier wait of the job
        progress = facts.get("last_progress")
        if cell.name == "oom" or struck is None:
            return float(captured) - float(progress or captured)
        return float(captured) - struck
    return None
