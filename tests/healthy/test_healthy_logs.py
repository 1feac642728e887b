"""Logs of jobs that really ran and got through, noisy ones among them, accuse nobody."""

from __future__ import annotations

from pathlib import Path

import pytest

from fabwatch.signatures.diagnose import diagnose
from fabwatch.watchdog.evidence.reading import read

HERE = Path(__file__).parent
LOGS = sorted(HERE.glob("*.log"))
"""The name says what made each: torch (torchrun, Gloo), launch (torch.distributed.launch), ..."""


def standing(path: Path) -> list[str]:
    verdict = diagnose(read([path]))
    return [s.id for s in verdict.signatures if s.grade in ("likely", "confirmed")]


def test_there_are_logs_to_judge() -> None:
    assert LOGS
    assert all(path.read_text().strip() for path in LOGS)


@pytest.mark.parametrize("path", LOGS, ids=lambda path: path.stem)
def test_nothing_is_likely_in_the_log_of_a_job_that_got_through(path: Path) -> None:
    assert standing(path) == []


def test_the_same_log_with_a_cause_in_it_is_no_longer_quiet(tmp_path: Path) -> None:
    broken = tmp_path / "job.log"
    line = "RuntimeError: CUDA error: an illegal memory access was encountered\n"
    broken.write_text(LOGS[0].read_text() + line)
    assert "cuda-illegal-access" in standing(broken)
