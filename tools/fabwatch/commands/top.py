"""`fabwatch top [RUN]`: a live table of a running job."""

from __future__ import annotations

import time
from typing import Any

import click

COLUMNS = {
    "rank": "global rank",
    "host": "where it runs",
    "pid": "its process",
    "state": "R runs, S sleeps, D waits in the kernel, T is stopped, Z is dead",
    "pending": "yes: inside a collective, waiting for the others or for the network",
    "counted_s": "seconds since it last began an operation",
    "idle_s": "seconds without CPU time and I/O",
    "page_age_s": "seconds since its probe spoke; more than 3: its interpreter is stuck",
    "look": "why this rank is the one to look at first",
}
"""Column -> what it means; others that the agent sends stand behind them."""
_LATE_S = 3.0


@click.command(name="top", short_help="A live table of a running job: who waits, who is late.")
@click.argument("run", metavar="[RUN]", required=False)
@click.option("--out", metavar="DIR", help="Where to look for runs.  [default: ./fabwatch-runs]")
@click.option("--once", is_flag=True, help="Print one table and end.")
@click.option("--json", "as_json", is_flag=True, help="Print the agent's status as JSON and end.")
def command(run: str | None, out: str | None, once: bool, as_json: bool) -> None:
    """Show every rank of a running job once a second; `<-` marks those to look at first.

    RUN is the run directory of a job that was started under fabwatch, by default the newest one
    that still runs in ./fabwatch-runs. Ctrl-C ends it; the job does not notice.

    \b
    state       R runs, S sleeps, D waits in the kernel, T is stopped, Z is dead
    pending     yes: inside a collective, waiting for the others or for the network
    counted_s   seconds since it last began an operation
    idle_s      seconds without CPU time and I/O
    page_age_s  seconds since its probe spoke; more than 3: its interpreter is stuck

    A mark is a first look, not a verdict: `fabwatch capture`, then `fabwatch match`.
    """  # noqa: D301 - click reads the backspace
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
    """The status as text; columns that no rank fills are left out, suspects are marked."""
    waited = status.get("waited_s")
    head = [place, f"phase {status.get('phase') or '?'}"]
    if isinstance(waited, (int, float)):
        head.append(f"{waited:.1f} s since the last progress")
    ranks = [rank for rank in status.get("ranks") or () if isinstance(rank, dict)]
    marks = suspects(ranks, waited if isinstance(waited, (int, float)) else 0.0)
    ranks = [{**rank, "look": marks.get(n, "")} for n, rank in enumerate(ranks)]
    keys = dict.fromkeys([*COLUMNS, *(key for rank in ranks for key in rank)])
    columns = [key for key in keys if any(rank.get(key) not in (None, "") for rank in ranks)]
    rows = [columns, *([_cell(rank.get(key)) for key in columns] for rank in ranks)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(columns))]
    lines = ["  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) for row in rows]
    return "\n".join(line.rstrip() for line in [" · ".join(head), *lines]) + "\n"


def suspects(ranks: list[dict[str, Any]], waited: float) -> dict[int, str]:
    """Position -> why that rank is to be looked at first. Of ranks that all wait, none is."""
    out: dict[int, str] = {}
    waiting = sum(rank.get("pending") is True for rank in ranks)
    for number, rank in enumerate(ranks):
        state, age = str(rank.get("state") or ""), rank.get("page_age_s")
        if state[:1] in ("T", "t"):
            out[number] = "<- stopped"
        elif state[:1] == "Z":
            out[number] = "<- dead"
        elif isinstance(age, (int, float)) and age > _LATE_S:
            out[number] = "<- its interpreter does not answer"
        elif waited > _LATE_S and rank.get("pending") is False and 2 * waiting >= len(ranks):
            out[number] = "<- the others wait, it does not"
        elif state[:1] == "D" and waited > _LATE_S:
            out[number] = "<- waits in the kernel"
    return out


def _cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.1f}"
    text = "" if value is None else str(value)
    return "".join(c if c.isprintable() else "?" for c in text)[:60]
