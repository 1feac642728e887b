"""`fabwatch top [RUN]`: a live table of a running job."""

from __future__ import annotations

import time
from typing import Any

import click

_COLUMNS = ("rank", "host", "pid", "state", "cpu", "still_s", "where")


@click.command(name="top", short_help="A live table of a running job.")
@click.argument("run", metavar="[RUN]", required=False)
@click.option("--out", metavar="DIR", help="Where runs are.  [default: ./fabwatch-runs]")
@click.option("--once", is_flag=True, help="Print one table and end.")
@click.option("--json", "as_json", is_flag=True, help="Print the agent's status as JSON and end.")
def command(run: str | None, out: str | None, once: bool, as_json: bool) -> None:
    """Show what the agent of RUN (default: the newest running one) sees, once a second."""
    import json

    from fabwatch.commands._agent import request, running

    folder, sock = running(run, out)
    status = request(sock, {"do": "status"}, 10.0)
    if as_json:
        click.echo(json.dumps(status, indent=2))
        return
    while True:
        if not once:
            click.clear()
        click.echo(table(str(folder), status), nl=False)
        if once:
            return
        time.sleep(1.0)
        status = request(sock, {"do": "status"}, 10.0)


def table(place: str, status: dict[str, Any]) -> str:
    """The status as text; columns that no rank fills are left out."""
    waited = status.get("waited_s")
    head = [place, f"phase {status.get('phase') or '?'}"]
    if isinstance(waited, (int, float)):
        head.append(f"{waited:.1f} s since the last progress")
    ranks = [rank for rank in status.get("ranks") or () if isinstance(rank, dict)]
    keys = dict.fromkeys([*_COLUMNS, *(key for rank in ranks for key in rank)])
    columns = [key for key in keys if any(rank.get(key) not in (None, "") for rank in ranks)]
    rows = [columns, *([_cell(rank.get(key)) for key in columns] for rank in ranks)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(columns))]
    lines = ["  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) for row in rows]
    return "\n".join(line.rstrip() for line in [" · ".join(head), *lines]) + "\n"


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.1f}"
    text = "" if value is None else str(value)
    return "".join(c if c.isprintable() else "?" for c in text)[:60]
