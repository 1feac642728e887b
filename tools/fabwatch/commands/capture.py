"""`fabwatch capture [RUN]`: freeze the evidence of a running job now."""

from __future__ import annotations

import click


@click.command(name="capture", short_help="Freeze the evidence of a running job now.")
@click.argument("run", metavar="[RUN]", required=False)
@click.option("--out", metavar="DIR", help="Where to look for runs.  [default: ./fabwatch-runs]")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0.1),
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="Give up waiting after so long; the capture itself goes on.",
)
def command(run: str | None, out: str | None, timeout: float) -> None:
    """Freeze the evidence of a job now: where every rank is, in which operation, on which line.

    RUN is the run directory of a job that was started under fabwatch, by default the newest one
    that still runs in ./fabwatch-runs. The job runs on, undisturbed. Prints the directory that
    the evidence went to; read it with `fabwatch match DIRECTORY`.

    \b
        fabwatch match $(fabwatch capture)

    Exit code: 0 captured, 1 no running job or no answer in time, 2 usage error.
    """  # noqa: D301 - click reads the backspace
    from fabwatch.commands._agent import request, running

    folder, sock = running(run, out)
    answer = request(sock, {"do": "capture"}, timeout)
    incident = str(answer.get("incident") or "")
    click.echo(str(folder / "incidents" / incident) if incident.isdigit() else incident)
