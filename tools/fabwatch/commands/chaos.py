"""`fabwatch chaos list/plan/inject/status/revert`: break something on purpose, and heal it."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from fabwatch.chaos.model import Plan

F = TypeVar("F", bound=Callable[..., Any])
_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "": 1.0}


class Duration(click.ParamType):  # type: ignore[type-arg,unused-ignore]  # generic since 8.2
    """``20s``, ``500ms``, ``2m``; a bare number is seconds."""

    name = "duration"

    def convert(self, value: Any, param: Any, ctx: Any) -> float:
        """Seconds."""
        found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|)", str(value))
        if not found:
            self.fail(f"{value!r} is no duration: write 500ms, 20s or 2m", param, ctx)
        return float(found[1]) * _UNITS[found[2]]


def _target_options(function: F) -> F:
    """Options that say what is hit and how."""
    for option in reversed((
        click.option("--pid", "pids", type=int, multiple=True, help="This process; repeatable."),
        click.option("--job", metavar="PID", type=int, help="The running job: its launcher's pid."),
        click.option("--rank", "ranks", type=int, multiple=True, help="This rank; repeatable."),
        click.option("--pick", type=int, default=0, help="So many ranks by lot (--seed)."),
        click.option("--seed", type=int, default=0, show_default=True, help="Of --pick."),
        click.option("--world", type=int, default=0, help="Ranks of the job, where not seen."),
        click.option("--link", "links", metavar="IFACE[@NETNS]", multiple=True, help="This link."),
        click.option("--folder", default="", help="The directory of a storage fault."),
        click.option(
            "--control", default="", help="The folder by which the job was launched for faults."
        ),
        click.option(
            "-o", "--option", "given", metavar="NAME=VALUE", multiple=True,
            help="An option of the fault; see fabwatch chaos list --long.",
        ),
        click.option("--mechanism", default="", help="This one, not the safest."),
        click.option(
            "--for", "limit_s", type=Duration(), default="60s", show_default=True,
            help="The time limit: healed by then.",
        ),
        click.option("--max-ranks", type=int, default=1, show_default=True, help="Hit at most."),
        click.option("--max-share", type=float, default=0.5, show_default=True,
                     help="Of the job's ranks."),
        click.option("--max-links", type=int, default=1, show_default=True, help="Hit at most."),
        click.option("--allow-irreversible", is_flag=True, help="Also what cannot be undone."),
        click.option("--json", "as_json", is_flag=True, help="JSON instead of text."),
    )):  # fmt: skip
        function = option(function)
    return function


@click.group(name="chaos", short_help="Break a job on purpose, and heal it: list, plan, inject.")
def command() -> None:
    """Break ranks, hosts, storage and links on purpose, and always heal them.

    Nothing is broken unless this host is named: --yes-break HOST, or in fabwatch.toml
    [chaos] allowed-hosts = ["HOST"]. Every fault has a time limit, a journal written before it,
    and a guardian process that heals it when the injector is killed.
    """


def _refused(err: Exception) -> click.ClickException:
    return click.ClickException(str(err))


@command.command(name="list")
@click.option("--long", "long_", is_flag=True, help="Options and mechanisms, too.")
@click.option("--json", "as_json", is_flag=True, help="One JSON list instead of a table.")
def list_(long_: bool, as_json: bool) -> None:
    """List the faults, and which of them this host allows."""
    import json

    from fabwatch.chaos.catalogue import entries

    told = entries()
    if as_json:
        click.echo(json.dumps([one.as_json() for one in told], indent=2))
        return
    width = max(len(one.fault.id) for one in told)
    for one in told:
        way = one.usable[0].name if one.usable else "not here"
        click.echo(f"{one.fault.id:<{width}}  {way:<18}  {one.fault.says}")
        if long_:
            for param in one.fault.params:
                default = "" if param.default is None else f" (default {param.default})"
                click.echo(f"{'':<{width}}    -o {param.name}=...{default}: {param.says}")
            for mechanism in one.fault.ordered():
                why = one.missing[mechanism.name]
                click.echo(
                    f"{'':<{width}}    {mechanism.name} [{mechanism.tier.word}, needs "
                    f"{mechanism.privilege.word}]: {why or mechanism.says}"
                )


def _plan(name: str, options: dict[str, Any]) -> Plan:
    """The plan, or a usage error (unknown names), or a failure (it cannot be done here)."""
    from fabwatch.chaos.faults import find
    from fabwatch.chaos.model import Limits, Refused, Tier
    from fabwatch.chaos.selection import select

    given: dict[str, Any] = {}
    for text in options["given"]:
        key, equals, value = text.partition("=")
        if not equals:
            raise click.UsageError(f"-o {text}: write NAME=VALUE")
        given[key] = value
    try:
        fault = find(name)
        fault.options(given)
        if options["mechanism"]:
            fault.mechanism(options["mechanism"])
    except Refused as err:
        raise click.UsageError(str(err)) from None
    tiers = set(range(1, 8))
    if not options["allow_irreversible"]:
        tiers.discard(Tier.IRREVERSIBLE)
    limits = Limits(
        options["max_ranks"], options["max_share"], options["max_links"], frozenset(tiers)
    )
    words = ("pids", "job", "ranks", "pick", "seed", "links", "folder", "control", "world")
    try:
        target = select(**{word: options[word] for word in words})
        return fault.plan(
            target, given, limit_s=options["limit_s"], mechanism=options["mechanism"], limits=limits
        )
    except Refused as err:
        raise _refused(err) from None


def _tell(plan: Plan) -> None:
    """A plan as text."""
    ranks = ", ".join(map(str, plan.target.all_ranks)) or "-"
    of = f" of {plan.target.world}" if plan.target.world else ""
    click.echo(f"fault      {plan.fault} by {plan.mechanism}")
    click.echo(f"hits       ranks {ranks}{of}; {len(plan.target.victims)} processes, "
               f"{len(plan.target.links)} links")  # fmt: skip
    click.echo(f"heals      {plan.tier.word}; at the latest after {plan.limit_s:g} s")
    click.echo(f"needs      {plan.privilege.word}")
    for title, lines in (
        ("probed", plan.steps.found),
        ("does", plan.steps.does),
        ("undoes", plan.steps.undoes),
        ("not", tuple(f"{r.mechanism}: {r.why}" for r in plan.rejected)),
        ("EXCEEDS", plan.exceeds),
    ):
        for line in lines:
            click.echo(f"{title:<10} {line}")


@command.command(name="plan")
@click.argument("fault")
@_target_options
def plan_(fault: str, as_json: bool, **options: Any) -> None:
    """Say exactly what FAULT would do and undo; touch nothing.

    Exits with 1 when it cannot be done here, or goes beyond a limit.
    """
    import json

    made = _plan(fault, options)
    if as_json:
        click.echo(json.dumps(made.as_json(), indent=2))
    else:
        _tell(made)
    raise SystemExit(1 if made.exceeds else 0)


@command.command(name="inject")
@click.argument("fault")
@click.option(
    "--yes-break", metavar="HOST-PATTERN", multiple=True, help="This host may be broken."
)  # fmt: skip
@_target_options
def inject_(fault: str, yes_break: tuple[str, ...], as_json: bool, **options: Any) -> None:
    """Have FAULT in force until its time limit or Ctrl-C, then heal it.

    Exits with 0 when it took hold and is gone; 1 when it was refused, did not take hold, or could
    not be healed.
    """
    import json
    import signal
    import sys

    from fabwatch.chaos.healing import recover
    from fabwatch.chaos.injection import NotHealed, NothingHappened, injected
    from fabwatch.chaos.journal import Store
    from fabwatch.chaos.model import Refused

    def leave(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, leave)
    try:
        recover(Store.default().ready())  # what was left behind would be in the way of a plan
    except Refused as err:
        raise _refused(err) from None
    made = _plan(fault, options)
    told: dict[str, Any] = {"schema": "fabwatch.chaos.injection/1", "plan": made.as_json()}
    problem = ""
    interrupted = False
    try:
        with injected(made, yes_break=yes_break) as one:
            told["id"] = one.id
            click.echo(
                f"fabwatch: {one.id}: {made.fault} in force ({one.held.says}); heals in "
                f"{made.limit_s:g} s or with Ctrl-C",
                err=True,
            )
            try:
                while not one.wait(0.2):
                    one.measure()
            except KeyboardInterrupt:
                interrupted = True
            one.end("interrupted" if interrupted else "injector: the time limit")
            told["held"] = one.held.as_json()
            told["healed"] = one.healed.as_json() if one.healed else None
        if one.held.known is None:
            problem = f"nobody could see whether it took hold: {one.held.says}"
    except (Refused, NothingHappened, NotHealed, OSError) as err:
        problem = str(err)
    except KeyboardInterrupt:
        problem = "interrupted before it was in force; healed"
    told["problem"] = problem
    if as_json:
        click.echo(json.dumps(told, indent=2))
    if problem:
        click.echo(f"fabwatch: {problem}", err=True)
    elif not as_json:
        click.echo("fabwatch: took hold, and is gone", err=True)
    sys.exit(1 if problem else 0)


@command.command(name="status")
@click.option("--json", "as_json", is_flag=True, help="One JSON list.")
def status_(as_json: bool) -> None:
    """Say what is in force on this host, or was left behind."""
    import json

    from fabwatch.chaos.injection import status
    from fabwatch.chaos.journal import Store

    told = status(Store.default())
    if as_json:
        click.echo(json.dumps(told, indent=2))
        return
    if not told:
        click.echo("nothing is in force")
    for one in told:
        whose = "its injector lives" if one["injector_alive"] else "LEFT BEHIND"
        unsafe = ", HEALING FAILED" if one["unsafe"] else ""
        click.echo(f"{one['id']}  {one['fault']} by {one['mechanism']}: {whose}{unsafe}")
        for line in one["undoes"] if isinstance(one["undoes"], list) else []:
            click.echo(f"    by hand: {line}")


@command.command(name="revert")
@click.argument("names", metavar="[ID]...", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Whatever is in force.")
@click.option("--json", "as_json", is_flag=True, help="One JSON list.")
def revert_(names: tuple[str, ...], everything: bool, as_json: bool) -> None:
    """Heal what is in force, by its id (fabwatch chaos status) or all of it.

    Exits with 1 when something could not be healed.
    """
    import json

    from fabwatch.chaos.injection import revert
    from fabwatch.chaos.journal import Store
    from fabwatch.chaos.model import Refused

    if not names and not everything:
        raise click.UsageError("which one? give its ID, or --all")
    try:
        told = revert(Store.default().ready(), names, everything)
    except Refused as err:
        raise _refused(err) from None
    if as_json:
        click.echo(json.dumps([{"id": i, "seen": seen.as_json()} for i, seen in told], indent=2))
    else:
        for name, seen in told:
            click.echo(f"{name}: {'healed' if seen.known else 'NOT HEALED'}: {seen.says}")
        if not told:
            click.echo("nothing was in force")
    raise SystemExit(0 if all(seen.known for _, seen in told) else 1)
