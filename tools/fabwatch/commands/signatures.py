"""`fabwatch signatures list/show/test`: look at the library of failure modes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from fabwatch.signatures.model import Library, Signature


_folder = click.option("--signatures", "folder", metavar="DIR", help="Also those in DIR.")


@click.group(name="signatures", short_help="The library of failure modes: list, show, test.")
def command() -> None:
    """Look at the library of failure modes."""


@command.command(name="list")
@click.option("--layer", metavar="LAYER", help="Only this layer (host, runtime, fabric, ...).")
@click.option("--symptom", metavar="SYMPTOM", help="Only this symptom (hang, crash, ...).")
@click.option("--json", "as_json", is_flag=True, help="One JSON list instead of a table.")
@_folder
def list_(layer: str | None, symptom: str | None, as_json: bool, folder: str | None) -> None:
    """List the signatures."""
    import json

    from fabwatch.signatures.model import LAYERS, SYMPTOMS

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
    """Run the cases that signatures bring with them: one signature's, or all."""
    from fabwatch.signatures.cases import run_case

    library = _library(folder)
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


def _library(folder: str | None) -> Library:
    from fabwatch.commands.match import library_of

    return library_of(folder)


def find(library: Library, name: str) -> Signature:
    """The signature with that id or alias; a usage error names the nearest ones."""
    import difflib

    found = library.get(name)
    if found is None:
        near = difflib.get_close_matches(name, library.signatures, 3, 0.5)
        hint = f"; near it: {', '.join(near)}" if near else "; see fabwatch signatures list"
        raise click.UsageError(f"no signature {name!r}{hint}")
    return found
