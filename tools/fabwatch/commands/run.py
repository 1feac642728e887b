"""`fabwatch run -- LAUNCHER ARGS...`: wrap a launch, and what `fabwatch LAUNCHER` means."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import click

F = TypeVar("F", bound=Callable[..., Any])

# Values are checked by fabwatch.watchdog.launch.options, which also reads the variables and the
# configuration file: here None means that the command line did not say.
_OPTIONS = (
    click.option("--out", metavar="DIR", help="Where runs go.  [default: ./fabwatch-runs]"),
    click.option(
        "--stall-after",
        metavar="SECONDS|auto",
        help="How long nothing may move before evidence is frozen; auto learns the job's rhythm."
        "  [default: auto]",
    ),
    click.option(
        "--on-stall",
        metavar="report|kill",
        help="After a failure was diagnosed: leave the job alone, or end it.  [default: report]",
    ),
    click.option(
        "--grace",
        metavar="SECONDS",
        help="How long to wait for a capture under way when the job has ended.  [default: 10]",
    ),
    click.option(
        "--no-probe",
        is_flag=True,
        default=None,
        help="Put nothing inside the ranks: less is seen, stacks and logs only.",
    ),
    click.option(
        "--timing",
        is_flag=True,
        default=None,
        help="Let the flight recorder record when operations start on the device.",
    ),
    click.option("--quiet", is_flag=True, default=None, help="No lines of fabwatch's own."),
    click.option("--notify", metavar="CMD", help="A shell command to run on each incident."),
    click.option(
        "--signatures",
        metavar="DIR",
        multiple=True,
        callback=lambda _ctx, _param, value: os.pathsep.join(value) or None,
        help="Signatures of your own, to try beside fabwatch's. May be given several times.",
    ),
    click.option("--keep", metavar="N", help="Keep the newest N runs.  [default: all]"),
    click.option("--job-name", metavar="NAME", help="Name of the run.  [default: the script]"),
)


def wrapper_options(function: F) -> F:
    """Add the options of the wrapper."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


def given(ctx: click.Context) -> dict[str, Any]:
    """Options of this command, and for those not given here, of `fabwatch` itself; None: unsaid."""
    outer = ctx.parent.params if ctx.parent is not None else {}
    names = [p.name for p in ctx.command.params if isinstance(p, click.Option) and p.name]
    return {
        name: outer.get(name) if ctx.params.get(name) is None else ctx.params[name]
        for name in names
    }


@click.command(
    name="run",
    context_settings={"allow_interspersed_args": False, "ignore_unknown_options": False},
    short_help="Wrap a launch (the word may be left out).",
)
@wrapper_options
@click.argument("words", metavar="LAUNCHER ARGS...", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def command(ctx: click.Context, /, words: tuple[str, ...], **_options: object) -> None:
    """Wrap a launch: the job runs as without fabwatch, and is watched.

    Ends as the job ends: with its exit code, or by the same signal. 127: no such launcher.
    """
    argv = list(words)
    if not argv:
        raise click.UsageError("nothing to launch; for example: fabwatch run -- torchrun train.py")
    refuse_missing(argv[0])
    try:
        from fabwatch.watchdog.launch.options import OptionsError, options_from
        from fabwatch.watchdog.launch.stub import launch
    except ImportError as err:
        unwatched(argv, err)
    try:
        options = options_from(given(ctx), os.environ)
    except OptionsError as err:
        raise click.UsageError("; ".join(err.problems)) from err
    raise SystemExit(launch(argv, options))


def refuse_missing(word: str, environ: Mapping[str, str] = os.environ) -> None:
    """End with 127 (no such program) or 126 (not executable), as a shell would."""
    if shutil.which(word, path=environ.get("PATH")):
        return
    there = os.path.exists(word) and os.sep in word  # noqa: PTH110 - pathlib costs time here
    problem = "is not executable" if there else "is no command of fabwatch and no program in PATH"
    click.echo(f"fabwatch: {word}: {problem}; see fabwatch --help", err=True)
    raise SystemExit(126 if there else 127)


def unwatched(argv: list[str], err: Exception) -> None:
    """Run the job without us: a broken installation must not cost a launch. Never returns."""
    click.echo(f"fabwatch: cannot watch ({err}); the job runs unwatched", err=True)
    sys.stdout.flush()
    sys.stderr.flush()
    os.execvp(argv[0], argv)
