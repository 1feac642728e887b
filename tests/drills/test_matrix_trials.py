"""Real jobs, really broken, through the command line: the right rank is named and no other."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor

import pytest

pytest.importorskip("torch", reason="the trials train real jobs")

from fabwatch.chaos.drills import cgroups
from fabwatch.chaos.drills.cells import CELLS, FAULTS
from fabwatch.chaos.drills.cells import CONTROLS as HEALTHY
from fabwatch.chaos.drills.trial import Outcome, run

REPRESENTATIVE = [
    ("sigstop", 0),
    ("loader-sleep", 2),
    ("gil", 1),
    ("sigkill", 3),
    ("exception", 0),
    ("op-mismatch", 2),
    ("crossed-groups", 1),
    ("recv-unmatched", 3),
    ("slow-checkpoint", 0),
    ("frozen", 2),
]
CONTROLS = ["evaluation", "pipeline"]
AT_ONCE = 2
"""Trials that run at the same time; each is four ranks that mostly sleep."""


@pytest.fixture(scope="module")
def trials(tmp_path_factory):
    """All trials of this module, started together, a few at a time."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        started: dict[tuple[str, int | None], Future[Outcome]] = {}
        for name, culprit in [*REPRESENTATIVE, *((name, None) for name in CONTROLS)]:
            cell = CELLS[name]
            if all(cgroups.available(need) for need in cell.needs):
                folder = tmp_path_factory.mktemp(f"{name}-{culprit}") / "trial"
                started[name, culprit] = pool.submit(run, cell, culprit, folder)
        yield started
        for future in started.values():
            future.cancel()


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("name", "culprit"), REPRESENTATIVE)
def test_the_broken_rank_is_named_and_nobody_else(trials, name, culprit):
    if (name, culprit) not in trials:
        pytest.skip(f"this host lets nobody make a {CELLS[name].needs} cgroup")
    outcome = trials[name, culprit].result()
    assert outcome.right, outcome.as_json()


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", CONTROLS)
def test_a_healthy_job_raises_no_alarm(trials, name):
    outcome = trials[name, None].result()
    assert outcome.right, outcome.as_json()


REST = [
    (cell.name, culprit)
    for cell in FAULTS
    for culprit in (0, 2)
    if (cell.name, culprit) not in REPRESENTATIVE
]


@pytest.mark.matrix
@pytest.mark.timeout(600)
@pytest.mark.parametrize(("name", "culprit"), REST)
def test_the_rest_of_the_matrix_names_the_broken_rank_too(tmp_path, name, culprit):
    cell = CELLS[name]
    if not all(cgroups.available(need) for need in cell.needs):
        pytest.skip(f"this host lets nobody make a {cell.needs} cgroup")
    outcome = run(cell, culprit, tmp_path / "trial")
    assert outcome.right, outcome.as_json()


@pytest.mark.matrix
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", [c.name for c in HEALTHY if c.name not in CONTROLS])
def test_the_other_healthy_jobs_raise_no_alarm_either(tmp_path, name):
    outcome = run(CELLS[name], None, tmp_path / "trial")
    assert outcome.right, outcome.as_json()


def test_a_trial_that_names_the_wrong_rank_is_judged_wrong(tmp_path):
    """The judge itself: a run that blames a victim does not pass."""
    import json

    from fabwatch.chaos.drills.trial import _judge

    run_dir = tmp_path / "runs" / "job"
    incident = run_dir / "incidents" / "0001"
    incident.mkdir(parents=True)
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "fault.at").write_text("100.0")
    (tmp_path / "stdout").write_text("train: begin\n")
    (incident / "incident.json").write_text(json.dumps({"captured": 105.0, "last_progress": 99.9}))
    verdict = {
        "outcome": "diagnosed",
        "symptom": "hang",
        "fabric": "acquitted",
        "culprits": {"ranks": [1]},
        "signatures": [{"id": "process-stopped-sigstop", "grade": "confirmed"}],
    }
    (run_dir / "verdict.json").write_text(json.dumps(verdict))

    def judged(culprit: int) -> Outcome:
        outcome = Outcome("sigstop", culprit, [culprit], exit_code=1)
        _judge(CELLS["sigstop"], outcome, tmp_path)
        return outcome

    assert judged(1).right, judged(1).wrong
    assert judged(2).wrong == ["named [1] instead of [2]"]
