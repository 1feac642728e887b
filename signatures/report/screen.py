"""One screen for the terminal: the verdict, minority first, in about thirty lines."""

from __future__ import annotations

import io

from rich.console import Console, Group, RenderableType
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from fabwatch.signatures.report.story import Line, Section, Story, tell
from fabwatch.signatures.report.text import ascii_only, clip
from fabwatch.signatures.verdict import Verdict

_TONES = {
    "confirmed": "bold red",
    "likely": "bold yellow",
    "cannot-tell": "bold magenta",
    "waiting": "bold cyan",
    "healthy": "bold green",
}
_LABEL = 10
_SIGNS = {"+": "red", "-": "green", "!": "yellow"}


def screen(
    verdict: Verdict,
    place: str = "",
    *,
    width: int = 100,
    color: bool = False,
    unicode: bool = True,
    now: float | None = None,
    role: str = "",
    more: str = "in summary.md",
) -> str:
    """The screen as text that ends with a newline; without ``color`` it holds no escape.

    ``role`` adds what the verdict asks of that role (see roles.ROLES).
    ``width`` is in columns (at least 40 are used), ``place`` is where the bundle lies,
    ``more`` says where the lines are that do not fit.
    """
    out = io.StringIO()
    console = Console(
        file=out,
        width=max(width, 40),
        force_terminal=color,
        color_system="standard" if color else None,
        no_color=not color,
        legacy_windows=False,
        highlight=False,
        markup=False,
        emoji=False,
    )
    draw(console, tell(verdict, place, now, role), more)
    text = out.getvalue()
    if not color:
        text = "".join(f"{line.rstrip()}\n" for line in text.splitlines())
    return text if unicode else ascii_only(text)


def draw(console: Console, story: Story, more: str = "in summary.md") -> None:
    """Print ``story`` on ``console``."""
    tone = _TONES.get(story.tone, "bold")
    console.print(Text.assemble(("fabwatch", "bold"), "  ", (story.badge, tone)))
    console.print(Rule(style="dim"))
    console.print(Text(story.headline, style="bold"))
    if story.below:
        console.print(Text(story.below, style="dim"))
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(width=_LABEL, no_wrap=True)
    table.add_column(ratio=1)
    room = console.width - _LABEL - 4
    for section in story.sections:
        table.add_row(Text(section.label, style="cyan"), _section(section, room, tone, more))
    console.print()
    console.print(table)


def _section(section: Section, room: int, tone: str, more: str) -> Group:
    """The lines of one section; those with a sign have it in a column of its own."""
    shown = section.lines[: section.most]
    signs = max((len(line.sign) for line in shown), default=0)
    rows: list[RenderableType] = []
    for line in shown:
        if not line.sign:
            rows.append(_line(line, room * section.width, tone))
            continue
        grid = Table.grid(padding=(0, 1, 0, 0))
        grid.add_column(width=signs, no_wrap=True)
        grid.add_column(ratio=1, overflow="fold")
        said = _line(line, (room - signs - 1) * section.width, tone)
        grid.add_row(Text(line.sign, style=_SIGNS.get(line.sign[:1], "dim")), said)
        rows.append(grid)
    rest = len(section.lines) - len(shown)
    if rest > 0:
        rows.append(Text(f"… {rest} more {more}", style="dim"))
    return Group(*rows)


def _line(line: Line, most: int, tone: str) -> Text:
    """The statement, then its aside as far as there is room."""
    text = Text(clip(line.text, most), style=tone if line.loud else "")
    left = most - len(text) - 3
    if line.aside and left > 12:
        text.append(f"  {clip(line.aside, left)}", style="dim")
    return text
