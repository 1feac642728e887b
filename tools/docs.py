"""Write the generated docs, or with --check say which are stale.

docs/facts.md comes from the vocabulary, docs/signatures-index.md from the library, docs/cli.md
from the command line itself, docs/faults.md from the faults of the chaos side,
docs/false-friends.md from the shapes of harmless lines.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

# This script's folder holds fabwatch/ without its other halves; the installed package is meant.
HERE = Path(__file__).resolve().parent
sys.path[:] = [p for p in sys.path if Path(p).resolve() != HERE]

import click  # noqa: E402

from fabwatch.chaos.catalogue import page as faults_page  # noqa: E402
from fabwatch.cli import cli  # noqa: E402
from fabwatch.signatures.loader import load  # noqa: E402
from fabwatch.watchdog.evidence.shapes import known  # noqa: E402
from fabwatch.watchdog.evidence.vocabulary import SOURCES, VOCABULARY  # noqa: E402

DOCS = HERE.parent / "docs"
NOTE = "<!-- Made by tools/docs.py; change what it is made from, then run `make docs`. -->"


def facts() -> str:
    """The table of facts, those that shapes of the library make included."""
    load()
    lines = [
        "# Facts",
        "",
        NOTE,
        "",
        "What signatures may ask about. A fact is *yes* when it was seen, *no* when a source that "
        "can deny it was read and did not show it, and *unknown* otherwise.",
        "",
        "| fact | means | shown by | denied by |",
        "| --- | --- | --- | --- |",
    ]
    for name, entry in sorted(VOCABULARY.items()):
        seen, denied = ", ".join(entry.seen_by), ", ".join(entry.denied_by)
        lines.append(f"| `{name}` | {_cell(entry.says)} | {seen} | {denied} |")
    lines += ["", "## Sources", "", "| source | what it is |", "| --- | --- |"]
    lines += [f"| {name} | {_cell(text)} |" for name, text in SOURCES.items()]
    return "\n".join(lines) + "\n"


def signatures() -> str:
    """The index of signatures, by layer."""
    library = load()
    lines = ["# Signatures", "", NOTE, "", f"{len(library)} failure modes. Format: signatures.md."]
    layers = dict.fromkeys(s.layer for s in sorted(library.signatures.values(), key=_layer))
    for layer in layers:
        lines += ["", f"## {layer}", "", "| id | symptom | title | playbook | look-alikes |"]
        lines.append("| --- | --- | --- | --- | --- |")
        for one in library.signatures.values():
            if one.layer != layer:
                continue
            alike = ", ".join(f"`{other.id}`" for other in one.confusable_with)
            lines.append(
                f"| `{one.id}` | {one.symptom} | {_cell(one.title)} | {one.playbook} | {alike} |"
            )
    return "\n".join(lines) + "\n"


def _layer(one: object) -> str:
    return str(getattr(one, "layer", ""))


def commands() -> str:
    """`-h` of every command, word for word as a terminal of WIDTH columns shows it."""
    lines = ["# The command line", "", NOTE]
    for context in walk(cli, "fabwatch"):
        text = context.command.get_help(context)
        text = "\n".join(line.rstrip() for line in text.splitlines())
        lines += ["", f"## `{context.command_path}`", "", "```text", text, "```"]
    return "\n".join(lines) + "\n"


WIDTH = 90
"""Columns of the terminal whose help is shown; click leaves two of them free."""


def walk(
    command: click.Command, name: str, above: click.Context | None = None
) -> list[click.Context]:
    """The command and all below it, each in the context in which a user meets it."""
    settings = {"terminal_width": WIDTH - 2, **command.context_settings}
    context = command.context_class(command, parent=above, info_name=name, **settings)
    found = [context]
    if isinstance(command, click.Group):
        for word in command.list_commands(context):
            below = command.get_command(context, word)
            if below is not None and not below.hidden:
                found += walk(below, word, context)
    return found


def faults() -> str:
    """The table of faults."""
    return f"# Faults\n\n{NOTE}\n\n{faults_page()}"


def false_friends() -> str:
    """The lines that sound alarming and are not, each with its reason."""
    load()
    lines = [
        "# False friends",
        "",
        NOTE,
        "",
        "Lines that look alarming in the log of a job that is well. Their own software's "
        "documentation or source acquits them: fabwatch reads them, says why, and holds none of "
        "them against anybody. A line that is not here may still be harmless; one that is here "
        "proves nothing about the other lines beside it.",
        "",
        "Declared as `line.harmless` in `signatures/shapes/*.yaml` (one entry: the reason, a "
        "regex, a sample line).",
    ]
    found = [one for one in known().all if one.fact == "line.harmless"]
    for one in sorted(found, key=lambda one: dict(one.details).get("why", "")):
        why = dict(one.details).get("why", "")
        lines += ["", f"## {_cell(why[:1].upper() + why[1:])}", "", "```text"]
        lines += [sample.strip() for sample in one.samples]
        lines.append("```")
        if one.nevers:
            lines += ["", "Not to be confused with:", "", "```text"]
            lines += [never.strip() for never in one.nevers]
            lines.append("```")
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return re.sub(r"\s+", " ", text).replace("|", "\\|")


PAGES = {
    "facts.md": facts,
    "signatures-index.md": signatures,
    "cli.md": commands,
    "faults.md": faults,
    "false-friends.md": false_friends,
}
"""File in docs/ -> what makes it."""


def main(check: bool) -> int:
    """Write the pages, or compare; 1 when one is stale."""
    stale = 0
    for name, make in PAGES.items():
        path, text = DOCS / name, make()
        old = path.read_text(encoding="utf-8") if path.exists() else ""
        if text == old:
            continue
        if check:
            stale = 1
            print(f"docs/{name}:1: is stale; run: make docs", file=sys.stderr)
        else:
            path.write_text(text, encoding="utf-8")
            print(f"docs/{name}: written")
    return stale


if __name__ == "__main__":
    raise SystemExit(main("--check" in sys.argv[1:]))
