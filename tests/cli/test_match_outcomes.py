"""`fabwatch match` on runs, incidents, files and standard input: outcomes and exit codes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from fabwatch.signatures.verdict import read as read_verdict


def match(cwd: Path, *words: object, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    clean = {k: v for k, v in os.environ.items() if not k.startswith("FABWATCH_")}
    return subprocess.run(
        [sys.executable, "-m", "fabwatch", "match", *map(str, words)],
        cwd=cwd, env=clean, input=stdin, capture_output=True, text=True, timeout=60,
    )  # fmt: skip


def incident(
    run: Path,
    name: str,
    *,
    states: tuple[str, ...],
    trigger: str = "stall",
    resolved: bool = False,
    waited_s: float = 6.0,
) -> Path:
    """An incident as the agent leaves it, with the process state of each rank."""
    folder = run / "incidents" / name
    began = 1_790_000_000.0 + int(name) * 100
    ranks = [
        {"rank": r, "local_rank": r, "pid": 100 + r, "host": "node-a", "attempt": 0}
        for r in range(len(states))
    ]
    for rank, state in enumerate(states):
        place = folder / "ranks" / str(rank)
        place.mkdir(parents=True)
        (place / f"proc_rank_{rank}.txt").write_text(
            f"# /proc/{100 + rank}/status\nName:\tpython\nState:\t{state}\nPid:\t{100 + rank}\n"
        )
    facts = {
        "schema": "fabwatch.incident/1", "trigger": trigger, "phase": "steady",
        "last_progress": began, "detected": began + 6, "captured": began + 8, "waited_s": waited_s,
        "longest_wait_s": 0.5, "limit_s": 60.0, "still_ranks": list(range(len(states))),
        "moving_ranks": [], "resolved": resolved,
        "job": {"world_size": len(states), "ranks": ranks},
    }  # fmt: skip
    (folder / "incident.json").write_text(json.dumps(facts))
    return folder


RUNNING, STOPPED = "S (sleeping)", "T (stopped)"


@pytest.fixture
def run(tmp_path):
    return tmp_path / "job-20260101T000000Z"


def test_a_stopped_rank_is_diagnosed_with_0_on_screen_and_as_json(run, tmp_path):
    place = incident(run, "0001", states=(RUNNING, STOPPED))
    done = match(tmp_path, place)
    assert done.returncode == 0
    assert "rank 1 → node-a → pid 101" in done.stdout
    assert "\x1b" not in done.stdout
    as_json = match(tmp_path, place, "--json")
    assert as_json.returncode == 0
    verdict = json.loads(as_json.stdout)
    assert verdict["schema"] == "fabwatch.verdict/1"
    assert verdict["outcome"] == "diagnosed"
    assert verdict["culprits"]["ranks"] == [1]
    assert verdict["signatures"][0]["id"] == "process-stopped-sigstop"
    assert verdict["timing"]["last_progress_to_detect_s"] == 6.0
    assert set(verdict["ledger"]) >= {"ok", "partial", "failed", "timed-out", "not-armed", "gaps"}


def test_the_same_ranks_running_are_no_failure_and_end_with_1(run, tmp_path):
    done = match(tmp_path, incident(run, "0001", states=(RUNNING, RUNNING), resolved=True))
    assert done.returncode == 1
    assert "culprit" not in done.stdout


def test_what_cannot_be_told_ends_with_3_and_says_what_to_fetch(tmp_path):
    """A job's own time-out report alone: something is wrong, and nobody saw what."""
    log = (
        "[rank0]:[E1130 10:00:00.000000000 ProcessGroupNCCL.cpp:685] [Rank 0] Watchdog caught "
        "collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE, NumelIn=1, NumelOut=1, "
        "Timeout(ms)=600000) ran for 600001 milliseconds before timing out.\n"
    )
    done = match(tmp_path, "-", stdin=log)
    assert done.returncode == 3, done.stdout
    assert "fetch next" in done.stdout
    assert "culprit" not in done.stdout


def test_top_limits_the_signatures(run, tmp_path):
    place = incident(run, "0001", states=(RUNNING, STOPPED))
    assert len(json.loads(match(tmp_path, place, "--json", "--top", 1).stdout)["signatures"]) == 1
    assert match(tmp_path, place, "--top", 0).returncode == 2


def test_of_a_run_the_newest_unresolved_incident_counts(run, tmp_path):
    incident(run, "0001", states=(STOPPED, RUNNING))
    incident(run, "0002", states=(RUNNING, STOPPED))
    incident(run, "0003", states=(RUNNING, RUNNING), resolved=True)
    done = match(tmp_path, run)
    assert done.returncode == 0
    assert "rank 1 → node-a" in done.stdout
    assert "incidents/0002" in done.stdout


def test_an_incident_in_an_archive_gives_the_same_verdict(run, tmp_path):
    place = incident(run, "0001", states=(RUNNING, STOPPED))
    with tarfile.open(tmp_path / "x.tar.gz", "w:gz") as archive:
        archive.add(place, "0001")
    verdict = json.loads(match(tmp_path, "x.tar.gz", "--json").stdout)
    assert (verdict["outcome"], verdict["culprits"]["ranks"]) == ("diagnosed", [1])


def test_write_leaves_verdict_and_summary_in_the_incident_and_prints_the_screen(run, tmp_path):
    place = incident(run, "0001", states=(RUNNING, STOPPED))
    done = match(tmp_path, "--write", "--incident", place)
    assert done.returncode == 0
    assert "rank 1 → node-a" in done.stdout
    verdict = read_verdict(place / "verdict.json")
    assert verdict.culprits.ranks == (1,)
    assert verdict.timing.captured_to_verdict_s is not None
    assert "rank 1" in (place / "summary.md").read_text()
    assert not list(place.glob(".*"))
    assert read_verdict(place / "verdict.json").outcome == "diagnosed"
    again = match(tmp_path, place)  # our own conclusions are not evidence
    assert again.returncode == 0


def test_write_of_a_run_takes_the_newest_unresolved_incident(run, tmp_path):
    incident(run, "0001", states=(RUNNING, STOPPED))
    incident(run, "0002", states=(RUNNING, RUNNING), resolved=True)
    assert match(tmp_path, "--write", "--run", run).returncode == 0
    assert read_verdict(run / "verdict.json").culprits.ranks == (1,)
    assert (run / "summary.md").exists()


def test_incident_and_run_are_written_by_one_process(run, tmp_path):
    place = incident(run, "0001", states=(RUNNING, STOPPED))
    done = match(tmp_path, "--write", "--incident", place, "--run", run)
    assert done.returncode == 0
    assert done.stdout.count("rank 1 → node-a") == 1, "one screen"
    for folder in (place, run):
        assert read_verdict(folder / "verdict.json").culprits.ranks == (1,)
        assert "rank 1" in (folder / "summary.md").read_text()


def test_of_both_the_run_keeps_what_an_earlier_incident_told(run, tmp_path):
    earlier = incident(run, "0001", states=(RUNNING, STOPPED))
    newest = incident(run, "0002", states=(RUNNING, RUNNING), waited_s=100.0)
    done = match(tmp_path, "--write", "--incident", newest, "--run", run)
    assert done.returncode == 0
    assert read_verdict(newest / "verdict.json").outcome == "cannot-tell"
    assert not (earlier / "verdict.json").exists(), "it was read, not judged anew"
    assert read_verdict(run / "verdict.json").culprits.ranks == (1,)
    assert "process-stopped-sigstop" in (run / "summary.md").read_text()


def test_a_resolved_incident_beside_none_that_stands_makes_no_failed_run(run, tmp_path):
    place = incident(run, "0001", states=(RUNNING, RUNNING), resolved=True)
    assert match(tmp_path, "--write", "--incident", place, "--run", run).returncode == 1
    assert read_verdict(run / "verdict.json").outcome == "healthy"


def test_a_run_in_which_nothing_happened_is_healthy(run, tmp_path):
    (run / "incidents").mkdir(parents=True)
    done = match(tmp_path, "--write", "--run", run)
    assert done.returncode == 1
    assert "Nothing wrong was found" in done.stdout
    assert read_verdict(run / "verdict.json").outcome == "healthy"


def test_a_verdict_that_cannot_be_written_is_still_printed(run, tmp_path):
    place = incident(run, "0001", states=(RUNNING, STOPPED))
    (place / "verdict.json").mkdir()
    (place / "verdict.json" / "x").write_text("in the way")
    done = match(tmp_path, "--write", "--incident", place)
    assert done.returncode == 0
    assert "cannot write" in done.stderr
    assert "rank 1 → node-a" in done.stdout


def test_a_half_written_incident_is_read(run, tmp_path):
    place = incident(run, "0001", states=(RUNNING, STOPPED))
    text = (place / "incident.json").read_text()
    (place / "incident.json").write_text(text[: len(text) // 2])
    (place / "ledger.jsonl").write_text('{"source": "process", "sta')
    done = match(tmp_path, place)
    assert done.returncode == 0
    assert "Traceback" not in done.stderr


def test_columns_set_the_width_of_plain_output(run, tmp_path):
    place = incident(run, "0001", states=(RUNNING, STOPPED))
    done = subprocess.run(
        [sys.executable, "-m", "fabwatch", "match", str(place.relative_to(tmp_path))],
        cwd=tmp_path, env={**os.environ, "COLUMNS": "60"},
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert max(map(len, done.stdout.splitlines())) <= 60


def test_a_terminal_without_unicode_is_not_sent_any(run, tmp_path):
    place = incident(run, "0001", states=(RUNNING, STOPPED))
    done = subprocess.run(
        [sys.executable, "-m", "fabwatch", "match", str(place)],
        env={**os.environ, "PYTHONIOENCODING": "ascii"}, capture_output=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0
    assert done.stdout.isascii()


def test_a_broken_signature_of_the_user_s_does_not_cost_the_diagnosis_of_a_live_hang(tmp_path):
    place = incident(tmp_path / "run", "0001", states=("S (sleeping)", "T (stopped)"))
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "bad.yaml").write_text("schema: 1\nid: Not An Id\n")
    live = match(tmp_path, "--write", "--incident", place, "--signatures", mine)
    assert "bad.yaml:" in live.stderr
    assert "fabwatch's own signatures only" in live.stderr
    assert json.loads((place / "verdict.json").read_text())["outcome"] == "diagnosed"


def test_by_hand_a_broken_signature_is_a_usage_error_with_its_place(tmp_path):
    place = incident(tmp_path / "run", "0001", states=("S (sleeping)", "T (stopped)"))
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "bad.yaml").write_text("schema: 1\nid: Not An Id\n")
    by_hand = match(tmp_path, place, "--signatures", mine)
    assert by_hand.returncode == 2
    assert "bad.yaml:" in by_hand.stderr
    assert not (place / "verdict.json").exists()


def test_a_confirmed_verdict_without_a_rival_asks_for_nothing_more(tmp_path):
    recorded = Path(__file__).parents[1] / "recorded" / "nccl-h200" / "case02"
    done = match(tmp_path, str(recorded))
    assert done.returncode == 0 and "confirmed" in done.stdout
    assert "fetch next" not in done.stdout
