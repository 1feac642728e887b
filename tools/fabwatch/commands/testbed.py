"""`fabwatch testbed`: several hosts on one machine, and a job across them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

if TYPE_CHECKING:
    from fabwatch.chaos.testbed import Spec


class RunsByDefault(click.Group):
    """A group whose words are a job to run unless the first names a subcommand."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The subcommand, or `run` with every word kept."""
        if args[0] not in self.commands:
            return "run", self.commands["run"], ["--", *args]
        return super().resolve_command(ctx, args)

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Say both ways to call it."""
        formatter.write_usage(ctx.command_path, "[OPTIONS] -- TORCHRUN-ARGS...")
        formatter.write_usage(ctx.command_path, "[OPTIONS] COMMAND ...")


@click.group(
    cls=RunsByDefault,
    name="testbed",
    short_help="Several hosts on one machine, and a job across them.",
)
@click.option("--hosts", type=click.IntRange(1, 64), default=2, show_default=True, help="How many.")
@click.option(
    "--nproc", type=click.IntRange(1), default=1, show_default=True, help="Ranks on each host."
)
@click.option(
    "--rails",
    type=click.IntRange(1, 8),
    default=1,
    show_default=True,
    help="Interfaces of each host, each in a network of its own.",
)
@click.option(
    "--gpus",
    default="auto",
    show_default=True,
    metavar="auto|none|LIST",
    help="Which GPUs are shared out among the hosts.",
)
@click.option("--rootless", is_flag=True, help="Use a user namespace even as root.")
@click.option("--watch", is_flag=True, help="Put fabwatch in front of the launcher on every host.")
@click.option(
    "--out",
    metavar="DIR",
    default="fabwatch-runs",
    show_default=True,
    help="With --watch: runs go to DIR/HOST.",
)
@click.option(
    "--name", default="bed", show_default=True, help="Of the test bed, for up, exec and down."
)
@click.pass_context
def command(ctx: click.Context, /, **options: Any) -> None:
    """Make network namespaces joined by veth pairs, and run a job across them with torchrun.

    \b
        fabwatch testbed --hosts 2 --nproc 2 -- train.py --epochs 1
        fabwatch testbed --hosts 2 --nproc 2 --watch -- train.py

    Each host has a name, addresses, interfaces and a share of the GPUs of its own, and NCCL and
    Gloo take them for different machines. What follows -- goes to torchrun, whose exit code is
    returned. All hosts are gone when the job ends, or when this command is killed.

    Works without root where user namespaces are allowed. RDMA devices are not divided: NCCL gets
    NCCL_IB_DISABLE=1 unless that is set, so that its traffic takes the veth pairs.
    """  # noqa: D301 - click reads the backspace
    ctx.obj = options


def spec(options: dict[str, Any], seconds: float = 0.0) -> Spec:
    """The options as a test bed."""
    from fabwatch.chaos.testbed import Spec
    from fabwatch.chaos.testbed.spec import visible_gpus

    said = options["gpus"]
    gpus = visible_gpus() if said == "auto" else tuple(g for g in said.split(",") if g)
    try:
        return Spec(
            name=options["name"],
            hosts=options["hosts"],
            rails=options["rails"],
            gpus=() if said == "none" else gpus,
            seconds=seconds,
        )
    except ValueError as err:
        raise click.UsageError(str(err)) from None


def fail(err: Exception) -> NoReturn:
    """End with the reason."""
    raise click.ClickException(str(err)) from None


@command.command(name="run", short_help="Run a job across the hosts (the default).")
@click.argument("arguments", nargs=-1, required=True, type=click.UNPROCESSED)
@click.pass_obj
def run(options: dict[str, Any], arguments: tuple[str, ...]) -> None:
    """Run torchrun with these arguments on every host; all is gone afterwards."""
    import signal

    from fabwatch.chaos.testbed import BedError, open_bed
    from fabwatch.chaos.testbed.launch import start_across, torchrun, wait_across

    out = Path(options["out"]).absolute() if options["watch"] else None

    def leave(number: int, _frame: object) -> None:
        raise SystemExit(128 + number)

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, leave)
    try:
        with open_bed(spec(options), rootless=options["rootless"]) as bed:
            commands = [
                torchrun(bed, host.index, options["nproc"], arguments, out) for host in bed.hosts
            ]
            code = wait_across(start_across(bed, commands))
    except BedError as err:
        fail(err)
    except KeyboardInterrupt:
        code = 130
    sys.exit(code)


@command.command(name="up", short_help="Make a test bed that stands until it is taken down.")
@click.option(
    "--for",
    "seconds",
    type=click.FloatRange(min=0),
    default=28800.0,
    show_default=True,
    metavar="SECONDS",
    help="It ends by itself after so long; 0: never.",
)
@click.pass_obj
def up(options: dict[str, Any], seconds: float) -> None:
    """Make the hosts and leave them standing; `exec` runs commands on them, `down` ends them."""
    from fabwatch.chaos.testbed import BedError, registry
    from fabwatch.chaos.testbed.control import start

    try:
        if any(bed.spec.name == options["name"] for bed in registry.standing()):
            raise BedError(f"a test bed {options['name']!r} stands already: fabwatch testbed down")
        bed, _process = start(spec(options, seconds), options["rootless"], detached=True)
        registry.save(bed)
    except BedError as err:
        fail(err)
    click.echo(describe(bed))


@command.command(name="exec", short_help="Run a command on a host of a standing test bed.")
@click.argument("host")
@click.argument("words", nargs=-1, required=True, type=click.UNPROCESSED)
@click.pass_obj
def execute(options: dict[str, Any], host: str, words: tuple[str, ...]) -> None:
    """Run a command on HOST (host0, host1, ..., or switch: where the bridges are)."""
    import os

    from fabwatch.chaos.testbed import BedError, registry

    try:
        bed = registry.find(options["name"])
        line, environment = bed.argv(host, words), bed.environment(host, os.environ)
    except (BedError, KeyError) as err:
        fail(BedError(err.args[0]))
    os.execve(line[0], line, environment)


@command.command(name="status", short_help="Which test beds stand.")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
def status(as_json: bool) -> None:
    """List the test beds that `up` made and that still stand."""
    import json

    from fabwatch.chaos.testbed import BedError, registry

    try:
        beds = registry.standing()
    except BedError as err:
        fail(err)
    if as_json:
        click.echo(json.dumps([bed.as_json() for bed in beds], indent=2))
    elif not beds:
        click.echo("no test bed stands")
    for bed in () if as_json else beds:
        click.echo(describe(bed))


@command.command(name="down", short_help="End a test bed and everything on it.")
@click.option("--all", "every", is_flag=True, help="All of them.")
@click.pass_obj
def down(options: dict[str, Any], every: bool) -> None:
    """End the test bed, its namespaces and every process on its hosts."""
    from fabwatch.chaos.testbed import BedError, registry

    try:
        beds = registry.standing() if every else [registry.find(options["name"])]
        for bed in beds:
            if not bed.end():
                raise BedError(f"process {bed.init} of test bed {bed.spec.name!r} does not end")
            click.echo(f"test bed {bed.spec.name} is gone")
        registry.standing()
    except BedError as err:
        fail(err)


def describe(bed: Any) -> str:
    """A few lines for a person."""
    lines = [f"test bed {bed.spec.name}: process {bed.init}, {bed.spec.hosts} hosts"]
    for host in bed.hosts:
        links = " ".join(f"{i}={a}" for i, a in zip(host.interfaces, host.addresses, strict=True))
        gpus = f" gpus={','.join(host.gpus)}" if host.gpus else ""
        lines.append(f"  {host.name} {links}{gpus}")
    return "\n".join(lines)
