"""Real captures are read completely: no file unknown, ranks and states right."""

from __future__ import annotations

from pathlib import Path

import pytest

from fabwatch.watchdog.evidence.observations import RasReport
from fabwatch.watchdog.evidence.reading import read

CASES = [f"case{n:02d}" for n in range(1, 12)]


@pytest.mark.parametrize("case", CASES)
def test_every_file_of_a_capture_is_recognised(evidence: Path, case: str) -> None:
    """Whatever an engineer saved is known; what could not be read is named."""
    one = read([evidence / "nccl-h200" / case])
    assert one.unrecognised == ()
    assert not [p for p in one.problems if "parser failed" in p.problem]
    assert all(s.rank is not None for s in one.stacks)


def test_nvrx_dumps_are_read_with_their_ranks(evidence: Path) -> None:
    """``_dump_N`` with sixteen ranks and many groups; some ranks have no entries."""
    for case in sorted((evidence / "nvrx-fr").iterdir()):
        if case.is_dir():
            one = read([case])
            assert [t.rank for t in sorted(one.traces, key=lambda t: t.rank)] == list(range(16))
            assert all(g.ranks for t in one.traces for g in t.groups)


def kinds(report: RasReport) -> dict[str, object]:
    """What text and JSON of one state must agree on."""
    (comm,) = report.comms
    return {
        "size": comm.size,
        "missing": {r.rank for r in comm.ranks if r.missing},
        "abort": {r.rank for r in comm.ranks if r.abort},
        "init": {r.rank for r in comm.ranks if r.init_state == 7},
        "async": {r.rank for r in comm.ranks if r.async_error},
        "dead": set(report.dead),
    }


@pytest.mark.parametrize("version", ["2.24.3", "2.26.2", "2.27.7", "2.28.9", "2.30.7"])
def test_ras_of_five_versions_reads_into_one_model(evidence: Path, version: str) -> None:
    """Who is missing, aborted, still starting, or behind, from text and from JSON alike."""
    folder = evidence / "ras" / version
    texts = {p.stem: read([p]).ras[0] for p in folder.glob("*.text") if "monitor" not in p.name}
    assert kinds(texts["healthy"])["missing"] == set()
    assert texts["behind"].nccl_version == version
    behind = texts["behind"].comms[0]
    counts = {r.rank: dict(r.counts) for r in behind.ranks}
    assert len(counts) == 4
    assert len({tuple(counts[r].items()) for r in (0, 2, 3)}) == 1
    assert counts[1] != counts[0]
    assert 2 in kinds(texts["stopped_7s"])["missing"]  # type: ignore[operator]
    assert {1, 2} <= kinds(texts["dead"])["missing"]  # type: ignore[operator]
    assert len(texts["dead"].dead) == 2
    assert kinds(texts["async"])["async"] == {2}
    for path in folder.glob("*.json"):
        if path.stem == "monitor":
            continue
        (report,) = read([path]).ras
        said, meant = kinds(report), kinds(texts[path.stem])
        assert said["missing"] == meant["missing"], path.name
        for key in ("abort", "init", "async", "dead"):
            assert meant[key] <= said[key], (path.name, key)  # type: ignore[operator]
