"""`fabwatch signatures measure`: decibans from labelled runs, beside those that are declared."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from fabwatch.signatures.labels import cases, evidence
from fabwatch.signatures.matching import Match, Point
from fabwatch.signatures.measure import ENOUGH, Run, as_dicts, measure, table
from fabwatch.signatures.model import Clue, Grade, Library, Signature
from fabwatch.watchdog.evidence.known import Known

BUNDLES = Path(__file__).resolve().parents[1] / "bundles"
YES, NO, UNKNOWN = Known.YES, Known.NO, Known.UNKNOWN
CLUE = Clue("process.stopped", required=True, present=20, absent=-20)
ONE = Signature("one", "t", "host", "hang", "s", "p", (CLUE,))
EFFECT = Signature("effect", "t", "host", "hang", "s", "p", (CLUE,))
CAUSE = Signature("cause", "t", "host", "hang", "s", "p", (CLUE,), explains=("one",))
LIBRARY = Library({one.id: one for one in (ONE, EFFECT, CAUSE)})


def run(known: Known, *right: str) -> Run:
    found = Match(ONE, Grade.POSSIBLE, 0.0, points=(Point(CLUE, known, 0.0),))
    return Run("r", frozenset(right), {"one": found})


def fit(*runs: Run, smoothing: float = 0.5):
    (weight,) = measure(LIBRARY, runs, [ONE], smoothing)
    return weight


def test_decibans_are_the_log_ratio_of_smoothed_shares():
    weight = fit(*[run(YES, "one")] * 9, run(NO, "one"), run(YES), *[run(NO)] * 9)
    assert weight.present == pytest.approx(10 * math.log10((9.5 / 11) / (1.5 / 11)))
    assert weight.absent == pytest.approx(10 * math.log10((1.5 / 11) / (9.5 / 11)))
    assert (weight.mine.yes, weight.mine.no) == (9, 1)
    assert (weight.others.yes, weight.others.no) == (1, 9)


def test_unknown_is_counted_and_moves_nothing():
    some = [run(YES, "one"), run(NO), run(NO)]
    with_unknown = fit(*some, run(UNKNOWN, "one"), run(UNKNOWN))
    assert with_unknown.present == fit(*some).present
    assert (with_unknown.mine.unknown, with_unknown.others.unknown) == (1, 1)


def test_smoothing_keeps_a_count_of_nothing_from_meaning_never():
    one = fit(run(YES, "one"), run(NO))
    assert one.present == pytest.approx(10 * math.log10(3))
    assert fit(run(YES, "one"), run(NO), smoothing=0.01).present > one.present


def test_where_one_side_has_no_run_nothing_is_measured():
    assert fit(run(YES, "one")).present is None
    assert fit(run(NO)).present is None
    assert "nobody could look" in table([fit(run(NO))])


def test_runs_of_a_cause_of_it_speak_neither_for_nor_against():
    weight = fit(run(YES, "one"), run(NO), run(YES, "cause"))
    assert weight.others.known == 1
    assert fit(run(YES, "one"), run(NO), run(YES, "effect")).others.known == 2


def test_a_declared_weight_is_called_off_only_by_enough_runs_that_show_the_fact():
    against = [run(NO, "one")] * ENOUGH + [run(YES)] * ENOUGH
    assert fit(*against).off
    assert not fit(*against[1:]).off
    assert not fit(*[run(YES, "one")] * 50, *[run(NO)] * 50).off
    assert not fit(*[run(NO, "one")] * ENOUGH, *[run(NO)] * ENOUGH).off, "nobody has seen it"
    (line,) = [x for x in table([fit(*against)]).splitlines() if "process.stopped" in x]
    assert line.startswith("!") and "+20/-20" in line and "0/5" in line and "5/5" in line
    assert as_dicts([fit(*against)])[0]["differs"] is True


def test_labels_of_folders_of_neighbours_and_of_bundles_are_read(tmp_path):
    for name in ("a", "b/x", "b/y", "c"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "train.log").write_text("step 1\n")
    (tmp_path / "a/truth.json").write_text('{"acceptable_cause_ids": ["one"]}')
    (tmp_path / "b/truth.json").write_text('{"x": {"signatures": []}, "y": {"cause_id": "two"}}')
    (tmp_path / "c/truth.yaml").write_text("z: {accept: [one, two], ranks: [3]}\nno-bundle: {}\n")
    (tmp_path / "c/z.tar.gz").write_bytes(b"")
    found = {one.name: one for one in cases(tmp_path)}
    assert {n: (c.right, c.expected) for n, c in found.items()} == {
        "a": (("one",), "name-the-cause"),
        "b/x": ((), "healthy"),
        "b/y": (("two",), "name-the-cause"),
        "c/z.tar.gz": (("one", "two"), "name-the-cause"),
    }
    assert found["c/z.tar.gz"].ranks == (3,)
    assert evidence(found["a"]) == [tmp_path / "a/train.log"]
    assert evidence(found["c/z.tar.gz"]) == [tmp_path / "c/z.tar.gz"]


@pytest.mark.parametrize("text", ["{", "[1]"])
def test_a_label_that_cannot_be_read_is_named(tmp_path, text):
    (tmp_path / "truth.json").write_text(text)
    with pytest.raises(ValueError, match=r"truth\.json"):
        list(cases(tmp_path))


def fabwatch(*words: object):
    return subprocess.run(
        [sys.executable, "-m", "fabwatch", "signatures", "measure", *map(str, words)],
        env=os.environ, capture_output=True, text=True, timeout=100,
    )  # fmt: skip


@pytest.fixture
def labelled(tmp_path):
    """Two recorded runs, labelled as drills label theirs; nothing else lies there."""
    for name, right in (("nccl-sigstop", ["process-stopped-sigstop"]), ("gloo-evaluation", [])):
        folder = tmp_path / name
        folder.mkdir()
        with tarfile.open(BUNDLES / f"{name}.tar.gz") as tar:
            tar.extractall(folder, filter="data")
        (folder / "truth.json").write_text(json.dumps({"acceptable_cause_ids": right}))
    return tmp_path


def test_the_command_prints_declared_beside_measured_and_writes_nothing(labelled):
    before = sorted((p, p.stat().st_mtime_ns) for p in labelled.rglob("*"))
    library = Path(__file__).resolve().parents[2] / "signatures" / "library"
    files = {p: p.read_bytes() for p in library.rglob("*.yaml")}
    done = fabwatch(labelled, "--json")
    assert done.returncode == 0, done.stderr
    stopped = next(w for w in json.loads(done.stdout) if w["fact"] == "process.stopped")
    assert stopped["signature"] == "process-stopped-sigstop"
    assert stopped["declared"]["present"] == 20
    assert stopped["with"] == {"yes": 1, "no": 0, "unknown": 0}
    assert stopped["without"] == {"yes": 0, "no": 1, "unknown": 0}
    assert stopped["measured"]["present"] == pytest.approx(10 * math.log10(3))
    assert sorted((p, p.stat().st_mtime_ns) for p in labelled.rglob("*")) == before
    assert {p: p.read_bytes() for p in library.rglob("*.yaml")} == files


def test_what_cannot_be_measured_is_a_usage_error_that_says_what_is_missing(tmp_path):
    assert "truth.json" in fabwatch().stderr
    assert fabwatch(tmp_path / "no").returncode == 2
    done = fabwatch(tmp_path)
    assert (done.returncode, "no labelled run" in done.stderr) == (2, True)
    (tmp_path / "truth.json").write_text("{")
    done = fabwatch(tmp_path)
    assert (done.returncode, "truth.json: no JSON" in done.stderr) == (2, True)
    assert "Traceback" not in done.stderr
