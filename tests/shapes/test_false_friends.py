"""Lines that sound alarming and are not: each says why, is on the page, and accuses nobody."""

from __future__ import annotations

from pathlib import Path

import pytest

from fabwatch.signatures.diagnose import diagnose
from fabwatch.signatures.loader import load
from fabwatch.watchdog.evidence.reading import read
from fabwatch.watchdog.evidence.shapes import known

load()
ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/false-friends.md").read_text(encoding="utf-8")
HARMLESS = [one for one in known().all if one.fact == "line.harmless"]
SAMPLES = [(one, sample) for one in HARMLESS for sample in one.samples]
STEPS = "".join(f"step {n} loss {3 - n / 10:.4f}\n" for n in range(6))


def judged(tmp_path: Path, text: str) -> tuple[str, set[str]]:
    log = tmp_path / "job.log"
    log.write_text(text)
    verdict = diagnose(read([log]))
    return verdict.outcome, {
        one.id for one in verdict.signatures if one.grade in ("likely", "confirmed")
    }


def test_there_are_such_lines() -> None:
    assert len(HARMLESS) >= 6


@pytest.mark.parametrize("shape", HARMLESS, ids=lambda one: one.regex[:40])
def test_each_says_why_and_is_on_the_page(shape) -> None:
    why = dict(shape.details).get("why", "")
    assert len(why) > 10
    assert why[1:].replace("|", "\\|") in PAGE
    for line in (*shape.samples, *shape.nevers):
        assert line.strip() in PAGE.splitlines()


@pytest.mark.parametrize(("shape", "sample"), SAMPLES, ids=lambda one: str(one)[:40])
def test_a_job_that_goes_on_after_it_is_accused_of_nothing(tmp_path, shape, sample) -> None:
    outcome, standing = judged(tmp_path, f"{STEPS}{sample}\n{STEPS}")
    assert standing == set()
    assert outcome not in ("diagnosed", "waiting")


@pytest.mark.parametrize(("shape", "sample"), SAMPLES, ids=lambda one: str(one)[:40])
def test_it_acquits_no_other_line(tmp_path, shape, sample) -> None:
    fault = "RuntimeError: CUDA error: an illegal memory access was encountered\n"
    outcome, standing = judged(tmp_path, f"{STEPS}{sample}\n{fault}")
    assert outcome == "diagnosed"
    assert "cuda-illegal-access" in standing
