"""The command `fabwatch`: finds the subcommand, or takes the words as a launch."""

from __future__ import annotations

import errno
import importlib
import os
import sys

import click

import fabwatch
from fabwatch import commands
from fabwatch.commands.run import command as run
from fabwatch.commands.run import wrapper_options

LATER = frozenset({"attach", "baseline", "diff", "doctor", "drill", "report"})
"""Words that will be commands: not launched by accident, so that no script changes its meaning."""


class FirstWordLaunches(click.Group):
    """A group whose first word starts the launch unless it names a command.

    What follows that word belongs to the launcher, options included.
    """

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The modules of fabwatch.commands."""
        names = (name for folder in commands.__path__ for name in os.listdir(folder))  # noqa: PTH208
        return sorted(n[:-3] for n in names if n.endswith(".py") and not n.startswith("_"))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the module of that name; None if there is none."""
        if cmd_name not in self.list_commands(ctx):
            return None
        module = importlib.import_module(f"fabwatch.commands.{cmd_name}")
        found: click.Command = module.command
        return found

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command, or `run` with every word kept."""
        word = args[0]
        if word in LATER:
            raise click.UsageError(
                f"the command {word!r} is not in this version ({fabwatch.__version__}). "
                f"To launch a program of that name: fabwatch run -- {word} ...",
                ctx,
            )
        if self.get_command(ctx, word) is None:
            return run.name, run, ["--", *args]
        return super().resolve_command(ctx, args)

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Say both ways to call it."""
        formatter.write_usage(ctx.command_path, "[OPTIONS] LAUNCHER ARGS...")
        formatter.write_usage(ctx.command_path, "COMMAND ...")


@click.group(
    cls=FirstWordLaunches,
    name="fabwatch",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(fabwatch.__version__, message="fabwatch %(version)s")
@wrapper_options
def cli(**_options: object) -> None:
    """Say why a distributed PyTorch job hung.

    Put fabwatch in front of any launch: torchrun, srun, mpirun, accelerate, deepspeed, python or
    a script. The job runs as without it. If it hangs, slows down or dies, the evidence is frozen
    in a run directory, and a screen says which rank, where, why, and what to do.

    \b
        fabwatch torchrun --nproc-per-node 8 train.py
        fabwatch match fabwatch-runs/train-20260101T030000Z

    Options stand before the launcher; each is also a variable (FABWATCH_OUT, ...) and a key of
    fabwatch.toml or of [tool.fabwatch] in pyproject.toml.
    """  # noqa: D301 - click reads the backspace


def main() -> None:
    """Run the command line; never show a traceback unless FABWATCH_DEBUG is set."""
    try:
        cli(prog_name="fabwatch")
    except Exception as err:
        if os.environ.get("FABWATCH_DEBUG"):
            raise
        at = err.__traceback__
        while at is not None and at.tb_next is not None:
            at = at.tb_next
        place = f"{at.tb_frame.f_code.co_filename}:{at.tb_lineno}" if at else "?"
        if isinstance(err, OSError) and err.errno == errno.ENOSPC:
            told = f"fabwatch: cannot write: {err.strerror}; free space, or write elsewhere"
        else:
            told = (
                f"fabwatch: internal error at {place}: {type(err).__name__}: {err}\n"
                "fabwatch: this is a bug; FABWATCH_DEBUG=1 shows where it comes from"
            )
        click.echo(told, err=True)
        raise SystemExit(2 if sys.argv[1:2] == ["match"] else 1) from None
