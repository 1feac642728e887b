"""`fabwatch capture` and `fabwatch top` against a socket that answers as the agent does."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import pytest

from fabwatch.commands.top import table


@pytest.fixture
def agent(tmp_path):
    """A run whose socket answers each request with what ``answer`` returns (None: silence)."""
    sockets = Path(tempfile.mkdtemp(prefix="fw-"))
    run = tmp_path / "fabwatch-runs" / "job-20260101T000000Z"
    run.mkdir(parents=True)
    (run / "launch.json").write_text(json.dumps({"sockets": str(sockets)}))
    server = socket.socket(socket.AF_UNIX)
    server.bind(str(sockets / "agent.sock"))
    server.listen()
    asked: list[dict[str, object]] = []
    answers: dict[str, object] = {}

    def serve() -> None:
        while True:
            try:
                line, _ = server.accept()
            except OSError:
                return
            asked.append(json.loads(line.makefile().readline()))
            answer = answers.get(str(asked[-1]["do"]))
            if answer is not None:
                line.sendall(json.dumps(answer).encode() + b"\n")
                line.close()
            else:
                answers["kept"] = line  # open, and silent

    threading.Thread(target=serve, daemon=True).start()
    yield run, asked, answers
    server.close()
    (sockets / "agent.sock").unlink()
    sockets.rmdir()


def fabwatch(cwd, *words):
    clean = {k: v for k, v in os.environ.items() if not k.startswith("FABWATCH_")}
    return subprocess.run(
        [sys.executable, "-m", "fabwatch", *map(str, words)],
        cwd=cwd, env=clean, capture_output=True, text=True, timeout=60,
    )  # fmt: skip


def test_capture_finds_the_running_job_and_prints_the_incident(agent, tmp_path):
    _run, asked, answers = agent
    answers["capture"] = {"ok": True, "incident": "/a/incidents/0003"}
    done = fabwatch(tmp_path, "capture")
    assert (done.returncode, done.stdout) == (0, "/a/incidents/0003\n")
    assert asked == [{"do": "capture"}]


def test_a_refusal_and_a_silent_agent_are_failures_with_a_reason(agent, tmp_path):
    run, _, answers = agent
    answers["capture"] = {"ok": False, "error": "a capture is under way"}
    done = fabwatch(tmp_path, "capture", run)
    assert done.returncode == 1
    assert "a capture is under way" in done.stderr
    del answers["capture"]
    done = fabwatch(tmp_path, "capture", run, "--timeout", "0.2")
    assert done.returncode == 1
    assert "no answer" in done.stderr


def test_top_prints_a_table_once(agent, tmp_path):
    _run, _, answers = agent
    ranks = [{"rank": 0, "pid": 11, "state": "S"}, {"rank": 1, "pid": 12, "state": "T"}]
    answers["status"] = {"ok": True, "ranks": ranks, "phase": "steady", "waited_s": 7.25}
    done = fabwatch(tmp_path, "top", "--once")
    assert done.returncode == 0
    assert "phase steady · 7.2 s since the last progress" in done.stdout
    assert done.stdout.splitlines()[1:] == [
        "rank  pid  state  look", "0     11   S", "1     12   T      <- stopped",
    ]  # fmt: skip
    assert json.loads(fabwatch(tmp_path, "top", "--json").stdout)["ranks"] == ranks


def test_the_table_cannot_be_steered_by_what_a_process_calls_itself():
    text = table("run", {"ranks": [{"rank": 0, "state": "\x1b[2J"}]})
    assert "\x1b" not in text


def test_the_table_stands_a_job_without_ranks():
    assert table("run", {"ranks": [], "phase": "start"}).startswith("run · phase start")


def test_the_table_marks_the_rank_to_look_at_and_no_victim():
    waits = {"state": "S", "pending": True, "page_age_s": 0.4}
    late = {"state": "S", "pending": False, "page_age_s": 0.2}
    stuck = {"state": "R", "pending": True, "page_age_s": 9.5}
    stopped = {"state": "T", "pending": True}
    dead = {"state": "Z"}

    def marked(*ranks, waited=7.0):
        text = table("run", {"ranks": [{"rank": n, **r} for n, r in enumerate(ranks)],
                             "waited_s": waited})  # fmt: skip
        return [line.split()[0] + line.split("<-")[1] for line in text.splitlines() if "<-" in line]

    assert marked(waits, late, waits) == ["1 the others wait, it does not"]
    assert marked(waits, late, waits, waited=1.0) == [], "a step may take that long"
    assert marked(late, late, waits) == [], "most of them do not wait"
    assert marked(waits, waits) == [], "all wait: the network or a device, no rank"
    assert marked(waits, stuck, waits) == ["1 its interpreter does not answer"]
    assert marked(stopped, waits, dead) == ["0 stopped", "2 dead"]
    assert marked(waits, {"state": "D"}) == ["1 waits in the kernel"]


def test_the_help_of_top_explains_every_column(tmp_path):
    from fabwatch.commands.top import COLUMNS

    shown = fabwatch(tmp_path, "top", "-h").stdout
    for name in ("state", "pending", "counted_s", "idle_s", "page_age_s"):
        assert f"{name} " in shown
        assert COLUMNS[name] in shown
