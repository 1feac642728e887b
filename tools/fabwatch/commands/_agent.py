"""Talks to a running job's agent through its unix socket, never by signals."""

from __future__ import annotations

import json
import os
import socket
import time
from pathlib import Path
from typing import Any

import click

_MOST = 1 << 24


def running(run: str | None, out: str | None) -> tuple[Path, Path]:
    """The run directory and its agent's socket; ends with a usage error when there is none.

    Without ``run``: the newest run in ``out`` (or FABWATCH_OUT, or ./fabwatch-runs) whose agent
    has a socket.
    """
    if run is not None:
        folder = Path(run)
        if not folder.is_dir():
            raise click.UsageError(f"{run}: no such run directory")
        found = _socket(folder)
        if found is None:
            raise click.ClickException(f"{run}: no agent answers there; the run has ended")
        return folder, found
    home = Path(out or os.environ.get("FABWATCH_OUT") or "fabwatch-runs")
    folders = [p.parent for p in home.glob("*/launch.json")] if home.is_dir() else []
    for folder in sorted(folders, key=lambda p: p.stat().st_mtime, reverse=True):
        found = _socket(folder)
        if found is not None:
            return folder, found
    raise click.ClickException(f"no running job in {home}; name its run directory")


def _socket(folder: Path) -> Path | None:
    """The agent's socket of this run, if it exists."""
    try:
        facts = json.loads((folder / "launch.json").read_bytes())
        path = Path(facts["sockets"]) / "agent.sock"
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return path if path.is_socket() else None


def request(sock: Path, message: dict[str, Any], timeout: float) -> dict[str, Any]:
    """Send one line, return the answer; ClickException when none comes in ``timeout`` seconds."""
    end = time.monotonic() + timeout
    data = b""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
            line.settimeout(min(timeout, 5.0))
            line.connect(str(sock))
            line.sendall(json.dumps(message).encode() + b"\n")
            while not data.endswith(b"\n") and len(data) < _MOST:
                line.settimeout(max(end - time.monotonic(), 0.001))
                more = line.recv(1 << 16)
                if not more:
                    break
                data += more
    except TimeoutError:
        raise click.ClickException(f"the agent gave no answer in {timeout:.0f} s") from None
    except OSError as err:
        raise click.ClickException(f"the agent cannot be reached: {err}") from err
    try:
        answer = json.loads(data)
    except ValueError:
        raise click.ClickException("the agent's answer cannot be read") from None
    if not isinstance(answer, dict) or not answer.get("ok"):
        reason = answer.get("error") or answer.get("reason") if isinstance(answer, dict) else ""
        raise click.ClickException(f"the agent refused: {reason or answer}")
    return answer
