"""The whole agent on jobs of real processes: what it sees, keeps, says, and leaves alone."""

import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from datetime import datetime
from pathlib import Path

import pytest

from fabwatch.watchdog.agent.exits import RESERVE
from fabwatch.watchdog.agent.hold import LIMIT_S

pytestmark = pytest.mark.slow


def start_ticks(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]
    except OSError:
        return None


def runs(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def epoch(event):
    return datetime.fromisoformat(event["timestamp"].replace("Z", "+00:00")).timestamp()


def watched(play, world=3, restarts=0, env=None, **options):
    job = play.launch(world, restarts, **(env or {}))
    agent = play.watch(job.pid, **options)
    assert play.eventually(lambda: play.knows(world)), play.tail()
    assert play.eventually(play.ready), "nobody waits to capture"
    return job, agent


def ask(play, request):
    with socket.socket(socket.AF_UNIX) as client:
        client.settimeout(60)
        client.connect(str(play.sockets / "agent.sock"))
        client.sendall(request + b"\n")
        data = b""
        while not data.endswith(b"\n"):
            more = client.recv(65536)
            if not more:
                break
            data += more
    return json.loads(data) if data else None


@pytest.mark.parametrize(
    ("order", "code", "number"), [("exit 3", 3, None), ("kill 9", None, 9), ("kill 11", None, 11)]
)
def test_the_first_failure_is_told_from_its_victims_and_captured(play, order, code, number):
    job, _ = watched(play)
    play.order(0, "wait")
    play.order(1, order)
    assert play.finish(job) == 1
    exits = play.exits()
    assert [(e["rank"], e["code"], e["signal"], e["ours"]) for e in exits[:1]] == [
        (1, code, number, False)
    ]
    assert {e["rank"] for e in exits[1:]} == {0, 2}
    assert all(e["ours"] and e["signal"] == signal.SIGTERM for e in exits[1:])
    assert [e["order"] for e in exits] == [1, 2, 3]
    assert exits[0]["oom_killed"] is False
    (incident,) = play.incidents()
    assert incident["trigger"] == "exit"
    assert incident["resolved"] is False
    assert incident["timing"]["detect_to_captured_s"] >= 0
    folder = play.run / "incidents" / "0001"
    assert (folder / "exits.jsonl").read_text() == (play.run / "exits.jsonl").read_text()
    ledger = (folder / "ledger.jsonl").read_text()
    tried = {line.get("rank") for line in map(json.loads, ledger.splitlines())}
    assert {0, 1, 2} <= tried, "every rank was tried"
    assert [h["what"] for h in play.log("hold")] == ["held", "released"]
    (let_go,) = play.log("let-go")
    freed = min(epoch(let_go), epoch(play.log("hold")[0]) + LIMIT_S - 0.1)
    assert all(e["when"] >= freed for e in exits[1:]), "they lived while the launcher was held"
    verdict = json.loads((folder / "verdict.json").read_text())
    assert verdict["outcome"] in ("diagnosed", "cannot-tell")
    assert (play.run / "verdict.json").exists()
    assert str(folder) in play.said()


def test_a_normal_end_is_no_incident(play):
    job, _ = watched(play)
    for rank in range(3):
        play.order(rank, "exit 0")
    assert play.finish(job) == 0
    assert play.incidents() == []
    assert sorted(e["rank"] for e in play.exits()) == [0, 1, 2]
    assert all(e["code"] == 0 and not e["ours"] for e in play.exits())
    assert json.loads((play.run / "verdict.json").read_text())["outcome"] == "healthy"
    assert play.said() == ""


def test_after_the_end_there_is_no_process_and_no_socket_left(play):
    job, agent = watched(play)
    everybody = play.children(agent.pid)
    assert len(everybody) >= 2, "the one that holds, and the one that waits to capture"
    for rank in range(3):
        play.order(rank, "exit 0")
    play.finish(job)
    assert not any(runs(pid) for pid in everybody)
    assert not play.sockets.exists()


def test_a_rank_that_leaves_with_zero_while_others_wait_is_an_incident(play):
    job, _ = watched(play)
    for rank in (0, 2):
        play.order(rank, "wait")
    time.sleep(0.5)
    play.order(1, "exit 0 rudely")
    assert play.eventually(lambda: play.incidents() and not play.incidents()[0]["provisional"])
    (incident,) = play.incidents()
    assert incident["kind"] == "left"
    play.order(0, "exit 1")
    play.finish(job)
    assert play.exits()[0]["code"] == 0


def test_a_rank_that_leaves_with_zero_while_others_go_on_is_none(play):
    job, _ = watched(play)
    play.order(1, "exit 0 rudely")
    assert play.eventually(lambda: play.log("left-without-harm")), play.tail()
    assert play.incidents() == []
    for rank in (0, 2):
        play.order(rank, "exit 0")
    assert play.finish(job) == 0
    assert play.incidents() == []


def test_a_stall_is_captured_and_resolved_when_the_job_moves_again(play):
    job, _ = watched(play, stall_after=2.0)
    time.sleep(1.0)
    for rank in range(3):
        play.order(rank, "wait")
    assert play.eventually(lambda: play.incidents() and play.incidents()[0]["captured"])
    (incident,) = play.incidents()
    assert incident["trigger"] == "stall"
    assert incident["last_progress"] <= incident["detected"] <= incident["captured"]
    assert [r["rank"] for r in incident["job"]["ranks"]] == [0, 1, 2]
    for rank in range(3):
        play.order(rank, "")
    assert play.eventually(lambda: play.incidents()[0]["resolved"]), play.tail()
    assert len(play.incidents()) == 1
    for rank in range(3):
        play.order(rank, "exit 0")
    assert play.finish(job) == 0
    assert json.loads((play.run / "verdict.json").read_text())["outcome"] == "healthy"


def test_a_stopped_rank_is_captured_at_once_without_any_rhythm(play):
    job, _ = watched(play)
    pid = play.log("ranks")[-1]["ranks"][1][1]
    for rank in (0, 2):
        play.order(rank, "wait")
    os.kill(pid, signal.SIGSTOP)
    assert play.eventually(lambda: play.incidents() and play.incidents()[0]["captured"])
    (incident,) = play.incidents()
    assert incident["kind"] == "stopped"
    assert "rank 1" in incident["why"]
    os.kill(pid, signal.SIGCONT)
    for rank in range(3):
        play.order(rank, "exit 0")
    play.finish(job)


def test_the_run_has_a_verdict_from_the_first_diagnosis_on_and_follows_the_incident(play):
    job, _ = watched(play)
    pid = play.log("ranks")[-1]["ranks"][1][1]
    for rank in (0, 2):
        play.order(rank, "wait")
    os.kill(pid, signal.SIGSTOP)
    assert play.eventually(lambda: play.verdict().get("outcome") == "diagnosed"), play.tail()
    assert play.verdict()["culprits"]["ranks"] == [1]
    assert (play.run / "summary.md").exists()
    assert job.poll() is None, "all that while the job stands"
    os.kill(pid, signal.SIGCONT)
    for rank in (0, 2):
        play.order(rank, "")
    assert play.eventually(lambda: play.verdict().get("outcome") == "healthy"), play.tail()
    for rank in range(3):
        play.order(rank, "exit 0")
    play.finish(job)


BREAKS = """
import os, sys
words = sys.orig_argv
if "--write" in words and os.path.exists(os.environ["PLAY_BREAK"]):
    os._exit(9)
"""


@pytest.mark.skipif(sys.version_info < (3, 11), reason="sys.orig_argv tells -m from 3.10 on only")
@pytest.mark.parametrize("ends", ["exit 3", "exit 0"])
def test_a_last_diagnosis_that_breaks_leaves_what_was_known_and_nothing_that_is_over(play, ends):
    broken = play.root / "broken"
    site = play.root / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text(BREAKS)
    play.agents_env = {"PYTHONPATH": str(site), "PLAY_BREAK": str(broken)}
    job, _ = watched(play)
    pid = play.log("ranks")[-1]["ranks"][1][1]
    for rank in (0, 2):
        play.order(rank, "wait")
    os.kill(pid, signal.SIGSTOP)
    assert play.eventually(lambda: play.verdict().get("outcome") == "diagnosed"), play.tail()
    before = play.verdict("incidents/0001")
    broken.write_text("")
    os.kill(pid, signal.SIGCONT)
    for rank in range(3):
        play.order(rank, ends)
    play.finish(job)
    assert play.log("diagnosis-failed")
    if ends == "exit 3":
        assert play.verdict()["culprits"] == before["culprits"]
        assert play.verdict()["outcome"] == "diagnosed"
    else:
        assert play.verdict() == {}, "a job that ended well is not said to stand"


def test_restarted_workers_are_watched_as_another_attempt(play):
    job, _ = watched(play, restarts=1)
    play.order(2, "exit 7")
    assert play.eventually(
        lambda: play.log("ranks")[-1]["ranks"] and play.log("ranks")[-1]["ranks"][0][2] == 1
        and play.knows(3)
    ), play.tail()  # fmt: skip
    for rank in range(3):
        play.order(rank, "exit 0", attempt=1)
    assert play.finish(job) == 0
    exits = play.exits()
    assert (exits[0]["rank"], exits[0]["code"], exits[0]["attempt"]) == (2, 7, 0)
    assert sorted(e["rank"] for e in exits if e["attempt"] == 1) == [0, 1, 2]
    assert all(e["code"] == 0 and not e["ours"] for e in exits if e["attempt"] == 1)
    (incident,) = play.incidents()
    assert incident["resolved"]
    manifest = json.loads((play.run / "manifest.json").read_text())
    assert sorted((r["attempt"], r["rank"]) for r in manifest["ranks"]) == [
        (a, r) for a in (0, 1) for r in range(3)
    ]


def test_a_job_that_is_ended_as_a_whole_by_sigterm_is_no_incident(play):
    job, _ = watched(play)
    for _, pid, _, _ in play.log("ranks")[-1]["ranks"]:
        os.kill(pid, signal.SIGTERM)
    play.finish(job)
    assert play.incidents() == []
    assert all(e["signal"] == signal.SIGTERM for e in play.exits())


def test_one_rank_that_is_ended_by_sigterm_is_an_incident(play):
    job, _ = watched(play)
    os.kill(play.log("ranks")[-1]["ranks"][1][1], signal.SIGTERM)
    play.finish(job)
    (incident,) = play.incidents()
    assert incident["trigger"] == "exit"
    assert [e["ours"] for e in play.exits()] == [False, True, True]


@pytest.mark.parametrize("seed", range(6))
def test_if_the_agent_is_killed_the_job_ends_as_without_it(play, seed):
    """At a random moment: while it looks for ranks, watches, holds the launcher, or captures."""
    rng = random.Random(seed)
    job = play.launch(3)
    agent = play.watch(job.pid)
    fails = seed % 2 == 0
    if seed >= 2:
        play.eventually(lambda: play.knows(3))
    helpers = []
    if fails:
        for rank in (0, 2):
            play.order(rank, "wait")
        play.order(1, "exit 5")
        play.eventually(play.exits, 20)
        time.sleep(rng.uniform(0, 0.3))
        helpers = play.children(agent.pid)
        agent.kill()
    else:
        time.sleep(rng.uniform(0, 1.0))
        helpers = play.children(agent.pid)
        agent.kill()
        for rank in range(3):
            play.order(rank, "exit 0")
    assert job.wait(30) == (1 if fails else 0)
    assert play.eventually(lambda: not any(runs(pid) for pid in helpers)), "helpers stayed behind"
    for file in play.run.rglob("*.json"):
        if not file.name.startswith("."):
            json.loads(file.read_text())


def test_if_the_stub_is_gone_the_agent_watches_to_the_end(play):
    job, agent = watched(play)
    play.line.close()
    play.order(1, "exit 3")
    job.wait(30)
    assert agent.wait(60) == 0, play.tail()
    assert play.exits()[0]["code"] == 3
    assert len(play.incidents()) == 1
    assert (play.run / "verdict.json").exists()
    assert not play.sockets.exists()


def test_a_job_that_was_over_before_the_agent_was_up_is_let_go_at_once(play):
    """Nothing is left to be watched: the agent does not even do its imports."""
    agent = play.watch(None)
    play.tell({"job_pid": 1 << 22})
    play.tell({"job_ended": {"code": 0}})
    assert agent.wait(60) == 0
    assert play.hear()[-1] == {"done": True}
    assert play.log("job") == [], "the loop never began"


def test_ranks_beyond_the_limit_of_open_files_are_told_of_with_what_to_do(play):
    job = play.launch(3)
    play.agents_limit = RESERVE + 8
    play.watch(job.pid)
    assert play.eventually(lambda: f"limit of open files ({RESERVE + 8})" in play.said()), (
        play.tail()
    )
    assert "ulimit" in play.said()
    for rank in range(3):
        play.order(rank, "exit 0")
    assert job.wait(30) == 0


def test_a_stub_that_never_started_a_job_leaves_no_agent(play):
    agent = play.watch(None)
    play.line.close()
    assert agent.wait(30) == 0


def test_requests_are_answered(play):
    job, _ = watched(play)
    status = ask(play, b'{"do":"status"}')
    assert status["ok"] is True
    assert [r["rank"] for r in status["ranks"]] == [0, 1, 2]
    assert status["phase"] in ("first-step", "steady")
    assert status["incident"] is None
    capture = ask(play, b'{"do":"capture"}')
    assert capture["ok"] is True
    folder = Path(capture["incident"])
    assert json.loads((folder / "incident.json").read_text())["trigger"] == "request"
    assert (folder / "ledger.jsonl").exists()
    refused = ask(play, b'{"do":"dance"}')
    assert refused["ok"] is False
    assert "dance" in refused["error"]
    for rank in range(3):
        play.order(rank, "exit 0")
    assert play.finish(job) == 0


def test_garbage_on_the_socket_harms_nothing(play):
    job, agent = watched(play)
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(play.sockets / "agent.sock"))
        client.sendall(b"\xff\x00 no json\n[1,2]\n{" + b"[" * 50000 + b"\n")
    assert ask(play, b'{"do":"status"}')["ok"] is True
    assert agent.poll() is None
    for rank in range(3):
        play.order(rank, "exit 0")
    assert play.finish(job) == 0


def test_kill_on_stall_ends_the_launcher_and_nobody_else(play):
    job, _ = watched(play, on_stall="kill", grace=1.0)
    ranks = {pid: start_ticks(pid) for _, pid, _, _ in play.log("ranks")[-1]["ranks"]}
    stopped = play.log("ranks")[-1]["ranks"][1][1]
    for rank in (0, 2):
        play.order(rank, "wait")
    os.kill(stopped, signal.SIGSTOP)
    assert job.wait(60) == -signal.SIGTERM, play.tail()
    assert "SIGTERM" in play.said()
    assert all(start_ticks(pid) == ticks for pid, ticks in ranks.items())
    for pid in ranks:
        os.kill(pid, signal.SIGKILL)
    play.finish(job)


def test_a_launcher_that_is_traced_already_is_left_alone_and_the_ledger_says_so(play):
    job, _ = watched(play)
    code = (
        "import sys, time\n"
        "from fabwatch.watchdog.agent import hold\n"
        "libc = hold._libc(); assert libc.ptrace(hold._SEIZE, int(sys.argv[1]), None, None) == 0\n"
        "print('seized', flush=True); time.sleep(60)\n"
    )
    tracer = subprocess.Popen([sys.executable, "-c", code, str(job.pid)], stdout=subprocess.PIPE)
    try:
        assert tracer.stdout.readline() == b"seized\n"
        play.order(1, "exit 3")
        assert play.eventually(lambda: [h for h in play.log("hold") if h["what"] == "refused"])
    finally:
        tracer.kill()
        tracer.wait()
        tracer.stdout.close()
    play.finish(job)
    assert "was not held" in (play.run / "incidents" / "0001" / "ledger.jsonl").read_text()


def test_without_pages_ends_are_seen_all_the_same(play):
    job, _ = watched(play, env={"PLAY_PAGES": "0"})
    play.order(1, "exit 3")
    assert play.finish(job) == 1
    assert play.exits()[0]["rank"] == 1
    (incident,) = play.incidents()
    assert incident["unseen"], "it says that there were no pages"


def test_a_run_directory_that_cannot_be_written_does_not_end_the_watch(play):
    job, agent = watched(play)
    incidents = play.run / "incidents"
    incidents.rmdir()
    incidents.write_text("a file stands where the directory should be")
    play.order(1, "exit 3")
    assert play.finish(job) == 1
    assert agent.returncode == 0
    assert play.log("no-incident-folder")


def test_wrong_words_on_the_command_line_are_told():
    for words in ([], ["/nowhere", "3"], [str(Path(__file__).parent), "x"]):
        result = subprocess.run(
            [sys.executable, "-m", "fabwatch.watchdog.agent", *words],
            capture_output=True, text=True, timeout=60,
        )  # fmt: skip
        assert result.returncode == 2
        assert "Traceback" not in result.stderr
        assert result.stderr
