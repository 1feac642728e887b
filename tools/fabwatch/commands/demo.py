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
@click.option("--out", metavar="DIR", default="fabwatch-runs", show_default=True)
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

    Exit code: 0 the rank that was broken was named, 1 it was not.
    """
    import importlib.util

    if importlib.util.find_spec("torch") is None:
        raise click.ClickException(
            "the demo trains with torch, which is not installed here; get the CPU build:\n"
            "  pip install torch --index-url https://download.pytorch.org/whl/cpu"
        )
    home = Path(out).absolute()
    before = set(home.glob("*")) if home.is_dir() else set()
    say(f"a {RANKS}-rank training job on the CPU; after {after:.0f} s, rank {CULPRIT}")
    say(f"  {FAULTS[fault]}. Nobody tells the watch. It runs as:")
    job = launch(fault, after, home)
    try:
        found = wait(job, home, before, timeout)
    finally:
        end(job)
    raise SystemExit(judge(found, fault))


def say(text: str) -> None:
    """One line of the demo's own."""
    click.echo(f"demo: {text}", err=True)


def launch(fault: str, after: float, home: Path) -> subprocess.Popen[bytes]:
    """Start the job, wrapped."""
    import os
    import shlex
    import subprocess

    words = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}", "-m"]
    words += ["fabwatch.chaos.workloads.train", f"--fault={fault}", f"--culprit={CULPRIT}"]
    words += [f"--after={after:g}"]
    say(f"  fabwatch python {shlex.join(words)}")
    wrapper = [
        sys.executable,
        "-m",
        "fabwatch",
        "--out",
        str(home),
        "--job-name",
        "demo",
        "--quiet",
    ]
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    environ.pop("FABWATCH_RUN_DIR", None)
    return subprocess.Popen(
        [*wrapper, sys.executable, *words], env=environ, stdin=subprocess.DEVNULL
    )


def wait(
    job: subprocess.Popen[bytes], home: Path, before: set[Path], timeout: float
) -> Path | None:
    """The run, once an incident was diagnosed or the job ended by itself; None when too late."""
    import json
    import time

    limit = time.monotonic() + timeout
    while time.monotonic() < limit:
        ended = job.poll() is not None
        for run in set(home.glob("demo-*")) - before:
            for verdict in [*run.glob("incidents/*/verdict.json"), run / "verdict.json"]:
                try:
                    outcome = json.loads(verdict.read_bytes()).get("outcome")
                except (OSError, ValueError):
                    continue
                if outcome == "diagnosed":
                    if not ended:
                        say("diagnosed; ending the job")
                    return run
        if ended:
            return next(iter(set(home.glob("demo-*")) - before), None)
        time.sleep(0.25)
    say(f"no diagnosis within {timeout:.0f} s; ending the job")
    return next(iter(set(home.glob("demo-*")) - before), None)


def end(job: subprocess.Popen[bytes]) -> None:
    """End the job as Ctrl-C would; then the ranks that it left behind, stopped or not."""
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
                if process.status() == psutil.STATUS_STOPPED:
                    process.resume()
    try:
        job.wait(30)
    except subprocess.TimeoutExpired:
        for process in ours:
            with contextlib.suppress(psutil.Error):
                process.kill()
        job.kill()
        job.wait(10)


def judge(run: Path | None, fault: str) -> int:
    """Compare the verdict with what was done; return the exit code."""
    if run is None:
        say("no run directory was made")
        return 1
    from fabwatch.commands._terminal import terminal
    from fabwatch.commands.match import of_run
    from fabwatch.signatures.report.screen import screen

    verdict, place = of_run(run, None)
    how = terminal()
    click.echo()
    click.echo(
        screen(verdict, place, width=how.width, color=how.color, unicode=how.unicode),
        nl=False,
        color=how.color,
    )
    named = verdict.outcome == "diagnosed" and verdict.culprits.ranks == (CULPRIT,)
    click.echo()
    say(f"what was done: rank {CULPRIT} {FAULTS[fault]}")
    say("what was found: " + ("that rank, and no other" if named else "not that; see above"))
    say(f"look again: fabwatch match {run}")
    return 0 if named else 1
