"""`fabwatch demo`: a real 4-rank job that breaks, watched and explained within a minute."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    import subprocess

RANKS = 4
CULPRIT = 2
LOG = "demo.log"
FAULTS = {
    "sigstop": "is stopped, as by kill -STOP",
    "gil": "holds the GIL in a regular expression that never ends",
    "exception": "raises an exception",
    "sigkill": "is killed by SIGKILL",
}
"""Fault of the workload -> what it does to the culprit; those that a minute suffices for."""


@click.command(name="demo", short_help="A 4-rank CPU job that breaks, watched and explained.")
@click.option(
    "--fault",
    type=click.Choice(list(FAULTS)),
    default="sigstop",
    show_default=True,
    help="What breaks.",
)
@click.option(
    "--after",
    type=click.FloatRange(min=1),
    default=10.0,
    show_default=True,
    metavar="SECONDS",
    help="How long the job trains before it breaks.",
)
@click.option(
    "--out", metavar="DIR", default="fabwatch-runs", show_default=True, help="Where the run goes."
)
@click.option(
    "--timeout",
    type=click.FloatRange(min=10),
    default=120.0,
    show_default=True,
    metavar="SECONDS",
    help="Give up after so long.",
)
def command(fault: str, after: float, out: str, timeout: float) -> None:
    """Start a 4-rank training job on the CPU, break one rank, and show what fabwatch says.

    Exit code: 0 the rank that was broken was named, and no other; 1 it was not.
    """
    import importlib.util

    if importlib.util.find_spec("torch") is None:
        raise click.ClickException(
            "the demo trains with torch, which is not installed here; get the CPU build:\n"
            "  pip install torch --index-url https://download.pytorch.org/whl/cpu"
        )
    home = Path(out).absolute()
    home.mkdir(parents=True, exist_ok=True)
    say(f"a {RANKS}-rank training job on the CPU; after {after:.0f} s, rank {CULPRIT}")
    say(f"  {FAULTS[fault]}. Nobody tells the watch. It runs as:")
    job = launch(fault, after, home)
    try:
        named = judge(wait(job, home, timeout), home, fault)
    finally:
        end(job)
    raise SystemExit(0 if named else 1)


def say(text: str) -> None:
    """One line of the demo's own."""
    click.echo(f"demo: {text}", err=True)


def launch(fault: str, after: float, home: Path) -> subprocess.Popen[bytes]:
    """Start the job, wrapped; what it prints goes to a log of its own."""
    import os
    import shlex
    import subprocess

    words = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}", "-m"]
    words += ["fabwatch.chaos.workloads.train", f"--fault={fault}", f"--culprit={CULPRIT}"]
    words += [f"--after={after:g}"]
    say(f"  fabwatch python {shlex.join(words)}")
    wrapper = [sys.executable, "-m", "fabwatch", "--quiet", "--out", str(home), "--job-name=demo"]
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    environ.pop("FABWATCH_RUN_DIR", None)
    with (home / LOG).open("wb") as log:
        return subprocess.Popen(
            [*wrapper, sys.executable, *words],
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
        )


def wait(job: subprocess.Popen[bytes], home: Path, timeout: float) -> Path | None:
    """The incident that was diagnosed, or the run of a job that ended without; None: too late."""
    import json
    import time

    limit = time.monotonic() + timeout
    while time.monotonic() < limit:
        ended = job.poll() is not None
        run = run_of(job, home)
        for verdict in sorted(run.glob("incidents/*/verdict.json")) if run else ():
            try:
                if json.loads(verdict.read_bytes()).get("outcome") == "diagnosed":
                    return verdict.parent
            except (OSError, ValueError):
                continue  # pruned, or somebody else's file: the next look tells
        if ended:
            return run
        time.sleep(0.25)
    return None


def run_of(job: subprocess.Popen[bytes], home: Path) -> Path | None:
    """The run directory of this job, by the stub's process id."""
    import json

    for file in home.glob("demo-*/launch.json"):
        try:
            if json.loads(file.read_bytes()).get("stub_pid") == job.pid:
                return file.parent
        except (OSError, ValueError):
            continue
    return None


def end(job: subprocess.Popen[bytes]) -> None:
    """End the job: its ranks too, stopped or not, so that the launcher need not wait for them."""
    import contextlib
    import signal
    import subprocess

    import psutil

    try:
        ours = psutil.Process(job.pid).children(recursive=True)
    except psutil.Error:
        ours = []
    if job.poll() is None:
        job.send_signal(signal.SIGINT)
    for process in ours:
        with contextlib.suppress(psutil.Error):
            if "RANK" in process.environ():
                process.kill()
    try:
        job.wait(30)
    except subprocess.TimeoutExpired:
        for process in ours:
            with contextlib.suppress(psutil.Error):
                process.kill()
        job.kill()
        job.wait(10)


def judge(found: Path | None, home: Path, fault: str) -> bool:
    """Show the verdict beside what was done; True when the broken rank, and no other, was named."""
    if found is None:
        say(f"no diagnosis in time; the job's own log: {home / LOG}")
        return False
    from fabwatch.commands._terminal import terminal
    from fabwatch.signatures.diagnose import diagnose
    from fabwatch.signatures.report.screen import screen
    from fabwatch.watchdog.evidence.reading import read

    verdict = diagnose(read([found]))
    how = terminal()
    text = screen(verdict, str(found), width=how.width, color=how.color, unicode=how.unicode)
    click.echo()
    click.echo(text, color=how.color)
    named = verdict.outcome == "diagnosed" and verdict.culprits.ranks == (CULPRIT,)
    say(f"what was done: rank {CULPRIT} {FAULTS[fault]}")
    say("what was found: " + ("that rank, and no other" if named else "not that; see above"))
    say(f"look again: fabwatch match {found}; the job's own log: {home / LOG}")
    return named
