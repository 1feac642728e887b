"""`fabwatch signatures list/show/test/measure`: look at the library of failure modes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from fabwatch.commands.match import signature_folders as _folder

if TYPE_CHECKING:
    from fabwatch.signatures.model import Library, Signature


@click.group(name="signatures", short_help="The library of failure modes: list, show, test.")
def command() -> None:
    """Look at the library of failure modes: what fabwatch knows, and what it goes by.

    A signature is one documented failure. It weighs facts of the evidence in decibans (10 x log10
    of how much likelier the fact is with this failure than without: 10 is 10 to 1, 20 is 100
    to 1) and says what to do. Write your own: docs/signatures.md.
    """


@command.command(name="list")
@click.option(
    "--layer",
    metavar="LAYER",
    help="Only this layer: application, runtime, fabric, gpu, host, scheduler, numerics or "
    "performance.",
)
@click.option(
    "--symptom",
    metavar="SYMPTOM",
    help="Only this symptom: hang, crash, slowdown or wrong-numbers.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON list instead of a table.")
@_folder
def list_(layer: str | None, symptom: str | None, as_json: bool, folder: str | None) -> None:
    """List the signatures: id, layer, symptom, title."""
    import json

    from fabwatch.signatures.model import LAYER_NAMES, LAYERS, SYMPTOMS

    layer = LAYER_NAMES.get(layer or "", layer)
    for what, value, known in (("layer", layer, LAYERS), ("symptom", symptom, SYMPTOMS)):
        if value is not None and value not in known:
            raise click.UsageError(f"no {what} {value!r}; there are {', '.join(known)}")
    chosen = [
        one
        for one in _library(folder).signatures.values()
        if layer in (None, one.layer) and symptom in (None, one.symptom)
    ]
    if as_json:
        keys = ("id", "title", "layer", "symptom", "status", "playbook")
        click.echo(json.dumps([{k: getattr(s, k) for k in keys} for s in chosen], indent=2))
        return
    if not chosen:
        click.echo("fabwatch: no signature has both; leave one of the two out", err=True)
    width = max((len(one.id) for one in chosen), default=0)
    for one in chosen:
        click.echo(f"{one.id:<{width}}  {one.layer:<11}  {one.symptom:<13}  {one.title}")


@command.command(name="show")
@click.argument("name", metavar="ID")
@_folder
def show(name: str, folder: str | None) -> None:
    """Show one signature: what speaks for it, what against, its look-alikes, what to do."""
    one = find(_library(folder), name)
    click.echo(f"{one.id}: {one.title}\n{one.layer} · {one.symptom} · {one.status}\n")
    click.echo(click.wrap_text(one.summary, 96, "  ", "  ", preserve_paragraphs=True))
    click.echo("\nClues, in decibans (present / absent)")
    for clue in one.clues:
        bound = f" at the same place as {clue.on}" if clue.on else ""
        need = "  required" if clue.required else ""
        click.echo(f"  {clue.present:+4.0f} / {clue.absent:+4.0f}  {clue.fact}{bound}{need}")
        click.echo(click.wrap_text(clue.why, 96, " " * 15, " " * 15))
    for other in one.confusable_with:
        told = " or ".join(other.tell_apart)
        click.echo(f"\nLooks like {other.id}; told apart by {told}\n  {other.because}")
    for step in one.mitigations:
        click.echo(f"\nMitigation {step.id}")
        for key in ("do", "scope", "risk", "check", "undo", "undo_when"):
            text = f"{key.replace('_', ' ') + ':':<10} {getattr(step, key)}"
            click.echo(click.wrap_text(text, 96, "  ", " " * 13))
    click.echo(f"\nPlaybook: fabwatch playbook {one.id}\nFile: {one.path}")
    for url in one.references:
        click.echo(f"See {url}")


@command.command(name="test")
@click.argument("name", metavar="[ID]", required=False)
@_folder
def test(name: str | None, folder: str | None) -> None:
    """Run the cases that signatures bring with them: one signature's, or all.

    A file that cannot be used, a draft with TODOs for one, is told with file and line, all
    problems at once. Exit code: 0 all cases came out, 1 some did not, 2 a file cannot be used.
    """
    from fabwatch.signatures.cases import run_case

    library = _library(folder, strict=True)
    chosen = [find(library, name)] if name else list(library.signatures.values())
    total = failed = 0
    for one in chosen:
        for case in one.cases:
            total += 1
            problem = run_case(one, case, library)
            if problem:
                failed += 1
                click.echo(f"{one.path}:{case.line}: {case.name}: {problem}")
    click.echo(f"{total} cases of {len(chosen)} signatures, {failed} failed")
    raise SystemExit(1 if failed else 0)


@command.command(name="measure")
@click.argument("paths", metavar="DIR...", nargs=-1, type=click.Path(path_type=Path))
@click.option("--id", "names", metavar="ID", multiple=True, help="Only this one; repeatable.")
@click.option("--json", "as_json", is_flag=True, help="One JSON list instead of a table.")
@click.option(
    "--smoothing",
    type=click.FloatRange(min=0, min_open=True),
    default=0.5,
    show_default=True,
    help="Added to every count, so that 0 of 3 does not mean never.",
)
@_folder
def measure(
    paths: tuple[Path, ...],
    names: tuple[str, ...],
    as_json: bool,
    smoothing: float,
    folder: str | None,
) -> None:
    """Fit decibans to labelled runs in DIR, and print them beside the declared ones.

    A run is labelled by a truth.json in its folder, {"acceptable_cause_ids": ["ID", ...]}, or a
    healthy one by {"acceptable_cause_ids": []}; runs that nobody could decide are left out. Each
    line says of one clue: declared present/absent, measured present / absent with two standard
    errors, and how often it was seen of how often somebody could look, in runs with this failure
    and in runs without. `!` marks a declared weight that the runs speak against.

    Nothing is written: whoever changes a weight edits the signature's file and says why.
    """
    import json

    from fabwatch.signatures.labels import cases
    from fabwatch.signatures.measure import as_dicts, run_of, table
    from fabwatch.signatures.measure import measure as fit

    if not paths:
        raise click.UsageError("which runs? give folders with a truth.json in or below them")
    library = _library(folder, strict=True)
    only = [find(library, name) for name in names] or None
    found = []
    for path in paths:
        if not path.is_dir():
            raise click.UsageError(f"{path}: no such directory")
        try:
            found += list(cases(path))
        except (ValueError, OSError) as err:
            raise click.UsageError(str(err)) from None
    decided = [one for one in found if one.right or one.expected == "healthy"]
    if not decided:
        raise click.UsageError("no labelled run there: no truth.json names a signature")
    runs = []
    for number, case in enumerate(decided, 1):
        if not as_json:
            click.echo(f"\r{number} of {len(decided)} runs", nl=number == len(decided), err=True)
        runs.append(run_of(case, library))
    weights = fit(library, runs, only, smoothing)
    click.echo(json.dumps(as_dicts(weights), indent=1) if as_json else table(weights), nl=as_json)


def _library(folder: str | None, strict: bool = False) -> Library:
    from fabwatch.commands.match import library_of

    return library_of(folder, strict)


def find(library: Library, name: str) -> Signature:
    """The signature with that id or alias; a usage error names the nearest ones."""
    import difflib

    found = library.get(name)
    if found is None:
        near = difflib.get_close_matches(name, library.signatures, 3, 0.5)
        hint = f"; near it: {', '.join(near)}" if near else "; see fabwatch signatures list"
        raise click.UsageError(f"no signature {name!r}{hint}")
    return found
