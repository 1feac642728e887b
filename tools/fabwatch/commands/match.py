"""`fabwatch match PATH...`: diagnose runs, incidents, directories, logs, standard input."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fabwatch.signatures.model import Library
    from fabwatch.signatures.verdict import Verdict


def _joined(_ctx: click.Context, _param: click.Parameter, value: tuple[str, ...]) -> str | None:
    return os.pathsep.join(value) or None


signature_folders = click.option(
    "--signatures",
    "folder",
    metavar="DIR",
    type=click.Path(),
    multiple=True,
    callback=_joined,
    envvar="FABWATCH_SIGNATURES",
    help="Signatures of your own, to try beside fabwatch's. May be given several times.",
)


@click.command(name="match", short_help="Diagnose runs, directories, logs; - is standard input.")
@click.argument("paths", metavar="PATH...", nargs=-1)
@click.option("--json", "as_json", is_flag=True, help="Print verdict.json instead of the screen.")
@click.option("--brief", is_flag=True, help="Print one line instead of the screen.")
@click.option(
    "--top",
    type=click.IntRange(min=1),
    metavar="N",
    help="How many signatures to name.  [default: all in JSON]",
)
@signature_folders
@click.option(
    "--role",
    type=click.Choice(["training", "fabric", "admin"]),
    help="Add what the verdict asks of you: training engineer, fabric engineer or cluster admin.",
)
@click.option("--write", is_flag=True, hidden=True)
@click.option("--incident", metavar="DIR", hidden=True)
@click.option("--run", "run_dir", metavar="DIR", hidden=True)
@click.option("--color", "colored", is_flag=True, hidden=True, help="Where it goes is a terminal.")
def command(
    paths: tuple[str, ...],
    as_json: bool,
    brief: bool,
    top: int | None,
    folder: str | None,
    role: str | None,
    write: bool,
    incident: str | None,
    run_dir: str | None,
    colored: bool,
) -> None:
    """Diagnose what is in PATH: a run, an incident, any directory, an archive, a log, or `-`.

    \b
        fabwatch match fabwatch-runs/train-20260101T030000Z
        fabwatch match node1.log node2.log stacks/
        kubectl logs POD | fabwatch match -

    Flight-recorder dumps, py-spy stacks, job and NCCL logs, dmesg and nvidia-smi output are known
    by what they hold, whoever saved them. Of a run, the newest incident that did not resolve
    itself is diagnosed. Nothing that is read is ever executed.

    Exit code: 0 a failure was diagnosed, 1 nothing wrong was found, 2 usage error or nothing
    readable, 3 something is wrong and the evidence cannot tell what.
    """  # noqa: D301 - click reads the backspace
    if as_json and brief:
        raise click.UsageError("--json or --brief, not both")
    if write:
        if paths or (incident is None and run_dir is None):
            raise click.UsageError("--write goes with --incident DIR, --run DIR or both, no PATH")
        verdict, place = _written(incident, run_dir, folder)
    else:
        if incident is not None or run_dir is not None:
            raise click.UsageError("--incident and --run go with --write")
        if not paths:
            raise click.UsageError("which evidence? give a run, a directory, a log, or - for stdin")
        verdict, place = _diagnosed(paths, folder), _place(paths)
    if brief:
        from fabwatch.signatures.report.brief import brief as one_line
        from fabwatch.signatures.verdict import EXIT_CODES

        click.echo(one_line(verdict))
        raise SystemExit(EXIT_CODES[verdict.outcome])
    raise SystemExit(_show(verdict, place, as_json, top, live=write, colored=colored, role=role))


def _diagnosed(paths: tuple[str, ...], folder: str | None) -> Verdict:
    """The verdict on ``paths``; ends with 2 when nothing in them can be read."""
    from fabwatch.signatures.diagnose import diagnose
    from fabwatch.watchdog.evidence.reading import read

    library = library_of(folder)
    reading = read(paths)
    if reading.empty:
        for problem in reading.problems[:20]:
            click.echo(f"fabwatch: {problem}", err=True)
        files = len(reading.unrecognised)
        looked = (
            f"{files} file{'s' if files != 1 else ''} of no known kind" if files else "no files"
        )
        click.echo(
            f"fabwatch: nothing readable in {' '.join(paths)} ({looked}); fabwatch reads "
            "flight-recorder dumps, py-spy stacks, /proc files, logs and its own runs",
            err=True,
        )
        raise SystemExit(2)
    return diagnose(reading, library)


def library_of(folder: str | None, strict: bool = False) -> Library:
    """Our signatures, those of installed packages, and those in ``folder`` (several: a PATH).

    Ends with 2 and all located errors if ``folder`` is broken, and if ``strict``, also if a
    package's signatures are. Else those are told and left out: a hang is diagnosed all the same.
    """
    from fabwatch.signatures.loader import LibraryError, load

    folders = folder.split(os.pathsep) if folder else []
    try:
        return load(*folders, packages=True)
    except LibraryError as err:
        for problem in err.problems:
            click.echo(f"fabwatch: {problem}", err=True)
        if not strict:
            try:
                library = load(*folders)
            except LibraryError:
                raise SystemExit(2) from None
            click.echo("fabwatch: goes on without the signatures of installed packages", err=True)
            return library
    except OSError as err:
        click.echo(f"fabwatch: {folder}: {err.strerror or err}", err=True)
    raise SystemExit(2)


def _place(paths: tuple[str, ...]) -> str:
    """Where the evidence lies; of a run, the incident that was read."""
    from fabwatch.watchdog.evidence import bundle

    if len(paths) != 1 or paths[0] == "-":
        return "standard input" if paths == ("-",) else " ".join(paths)
    path = Path(paths[0])
    if bundle.is_run(path) and not bundle.is_incident(path):
        chosen = bundle.current(bundle.incidents_of(path))
        return str(chosen or path)
    return str(path)


def _written(
    incident: str | None, run_dir: str | None, signatures: str | None
) -> tuple[Verdict, str]:
    """Diagnose an incident, a run, or both from one reading; write verdict.json and summary.md.

    Of both, the incident's comes first, so that a deadline can only cost the run its own; the
    verdict on the run is returned.
    """
    for folder in (incident, run_dir):
        if folder is not None and not Path(folder).is_dir():
            raise click.UsageError(f"{folder}: no such directory")
    signatures = _usable(signatures)
    known: dict[Path, Verdict] = {}
    if incident is not None:
        verdict, place = _diagnosed((incident,), signatures), incident
        known[Path(incident)] = verdict
        verdict = _kept(verdict, Path(incident), place)
    if run_dir is not None:
        verdict, place = of_run(Path(run_dir), signatures, known)
        verdict = _kept(verdict, Path(run_dir), place)
    return verdict, place


def _kept(verdict: Verdict, folder: Path, place: str) -> Verdict:
    """Write the verdict on the incident at ``place`` into ``folder``; returned with its timing."""
    import time

    from fabwatch.signatures.report.files import write

    verdict = _timed(verdict, Path(place))
    try:
        write(verdict, folder, place, time.time())
    except OSError as err:
        click.echo(f"fabwatch: cannot write the verdict into {folder}: {err}", err=True)
    return verdict


def _usable(folder: str | None) -> str | None:
    """The user's folder if all in it is sound, else None: a hang is diagnosed all the same."""
    if folder is None:
        return None
    try:
        library_of(folder)
    except SystemExit:
        click.echo("fabwatch: diagnosed with fabwatch's own signatures only", err=True)
        return None
    return folder


def of_run(
    run: Path, signatures: str | None, known: Mapping[Path, Verdict] | None = None
) -> tuple[Verdict, str]:
    """The newest unresolved incident; an earlier one if only that was diagnosed.

    A hang that ends in time-outs leaves a second incident that shows the victims' deaths alone.
    ``known``: verdicts on incidents that were diagnosed just now.
    """
    from fabwatch.signatures.verdict import Culprits, Verdict
    from fabwatch.watchdog.evidence import bundle

    def diagnosed(incident: Path) -> Verdict:
        return (known or {}).get(incident) or _diagnosed((str(incident),), signatures)

    incidents = bundle.incidents_of(run)
    newest = bundle.current(incidents)
    if newest is None:
        from fabwatch.watchdog.evidence.reading import read

        if read([str(run)]).empty:
            healthy = Verdict(
                outcome="healthy", symptom="none", fabric="acquitted", culprits=Culprits(),
                fabric_reasons=("nothing is wrong",),
            )  # fmt: skip
            return healthy, str(run)
        return _diagnosed((str(run),), signatures), str(run)
    verdict = diagnosed(newest)
    if verdict.outcome != "cannot-tell":
        return verdict, str(newest)
    for earlier in reversed(incidents):
        if earlier != newest and not bundle.resolved(earlier):
            before = diagnosed(earlier)
            if before.outcome == "diagnosed":
                return before, str(earlier)
    return verdict, str(newest)


def _timed(verdict: Verdict, incident: Path) -> Verdict:
    """The verdict with how long it took from the end of the capture until now."""
    import time

    import msgspec

    try:
        facts = msgspec.json.decode((incident / "incident.json").read_bytes())
        captured = float(facts["captured"])
    except (OSError, msgspec.DecodeError, KeyError, TypeError, ValueError):
        return verdict
    took = max(round(time.time() - captured, 3), 0.0)
    timing = msgspec.structs.replace(verdict.timing, captured_to_verdict_s=took)
    return msgspec.structs.replace(verdict, timing=timing)


def _show(
    verdict: Verdict,
    place: str,
    as_json: bool,
    top: int | None,
    live: bool,
    colored: bool,
    role: str | None = None,
) -> int:
    """Print the verdict; return the exit code that goes with it."""
    import time

    import msgspec

    from fabwatch.signatures.verdict import EXIT_CODES, dumps

    if top is not None:
        verdict = msgspec.structs.replace(verdict, signatures=verdict.signatures[:top])
    if as_json:
        click.echo(dumps(verdict), nl=False)
    else:
        from fabwatch.commands._terminal import terminal
        from fabwatch.signatures.report.screen import screen

        how = terminal()
        color = how.color or colored
        text = screen(
            verdict,
            place,
            width=how.width,
            color=color,
            unicode=how.unicode,
            now=time.time() if live else None,
            role=role or "",
            more="in summary.md" if live else "with --json",
        )
        click.echo(text, nl=False, color=color)
    return EXIT_CODES[verdict.outcome]
