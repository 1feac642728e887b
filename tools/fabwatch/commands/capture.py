"""`fabwatch capture [RUN]`: freeze the evidence of a running job now."""

from __future__ import annotations

import click


@click.command(name="capture", short_help="Freeze the evidence of a running job now.")
@click.argument("run", metavar="[RUN]", required=False)
@click.option("--out", metavar="DIR", help="Where runs are.  [default: ./fabwatch-runs]")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0.1),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="How long to wait for it.",
)
def command(run: str | None, out: str | None, timeout: float) -> None:
    """Ask the agent of RUN (default: the newest running one) for a capture.

    The job is not disturbed. Prints the new incident's directory; `fabwatch match` reads it.
    """
    from fabwatch.commands._agent import request, running

    folder, sock = running(run, out)
    answer = request(sock, {"do": "capture"}, timeout)
    incident = str(answer.get("incident") or "")
    click.echo(str(folder / "incidents" / incident) if incident.isdigit() else incident)
