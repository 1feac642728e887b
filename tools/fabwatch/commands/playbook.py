"""`fabwatch playbook [ID]`: what to do about a failure, in the terminal."""

from __future__ import annotations

import re

import click


@click.command(name="playbook", short_help="What to do about a failure.")
@click.argument("name", metavar="[ID]", required=False)
@click.option("--all", "whole", is_flag=True, help="The whole playbook, not only ID's section.")
def command(name: str | None, whole: bool) -> None:
    """Show the playbook for a signature (or by its own name); without ID, list them."""
    books = playbooks()
    if name is None:
        for book, text in books.items():
            title = next((x[2:] for x in text.splitlines() if x.startswith("# ")), "")
            click.echo(f"{book:<28}  {title}")
        return
    if name in books:
        text = books[name]
    else:
        from fabwatch.commands.match import library_of
        from fabwatch.commands.signatures import find

        signature = find(library_of(None), name)
        book = signature.playbook.partition("#")[0]
        if book not in books:
            raise click.ClickException(f"{name} names the playbook {book!r}, which is missing")
        text = books[book] if whole else section_of(books[book], signature.id)
    _print(text)


def playbooks() -> dict[str, str]:
    """Name -> Markdown of every playbook."""
    from importlib.resources import files

    found = {}
    for entry in files("fabwatch.playbooks").iterdir():
        if entry.name.endswith(".md"):
            found[entry.name.removesuffix(".md")] = entry.read_text(encoding="utf-8")
    return dict(sorted(found.items()))


def section_of(text: str, signature: str) -> str:
    """The title and the section whose heading names ``signature``; all of it if none does."""
    title, *sections = re.split(r"^(?=## )", text, flags=re.MULTILINE)
    word = re.compile(rf"(?<![\w-]){re.escape(signature)}(?![\w-])")
    chosen = [part for part in sections if word.search(part.splitlines()[0])]
    return title.rstrip() + "\n\n" + "".join(chosen) if chosen else text


def _print(text: str) -> None:
    """Rendered on a terminal, the plain Markdown elsewhere."""
    from fabwatch.commands._terminal import terminal

    how = terminal()
    if not how.color:
        click.echo(text)
        return
    from rich.console import Console
    from rich.markdown import Markdown

    Console(width=how.width).print(Markdown(text))
