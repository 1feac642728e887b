"""The screen: minority first, honest, short, plain where it must be."""

from __future__ import annotations

import re

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabwatch.signatures.report.screen import screen
from fabwatch.signatures.report.summary import summary
from fabwatch.signatures.report.text import clip, odds, seconds
from fabwatch.signatures.verdict import (
    Advice,
    Candidate,
    Culprits,
    Hang,
    HangRoot,
    LedgerCounts,
    Reason,
    Timing,
    Verdict,
)

STOPPED = Candidate(
    id="process-stopped-sigstop",
    title="A rank's process is stopped and holds the others up",
    layer="host",
    grade="confirmed",
    decibans=26,
    where=Culprits(ranks=(1,)),
    reasons=(
        Reason(
            fact="process.stopped",
            known="yes",
            worth=20,
            cites=("ranks/1/proc_rank_1.txt:3",),
            why="/proc shows state T.",
        ),
        Reason(fact="page.stale", known="no", worth=-3, why="A stopped process cannot tick."),
    ),
    mitigations=(
        Advice(
            id="continue-it",
            do="kill -CONT PID on the rank's host.",
            risk="It may return to a torn-down group.",
            check="process.stopped is gone.",
            undo="kill -STOP PID.",
            undo_when="If the rank was stopped on purpose.",
        ),
        Advice(id="restart-it", do="Restart the job."),
    ),
    playbook="process-stalls",
)
ROOT = HangRoot(
    ranks=(1,), kind="host-stall", group="default_pg", op="all_reduce", seq=21,
    frame="train.py:35 next_batch",
)  # fmt: skip
RANKS = ((0, "node-06", 4210), (1, "node-07", 4211), (2, "node-06", 4212))
DIAGNOSED = Verdict(
    outcome="diagnosed",
    symptom="hang",
    fabric="acquitted",
    culprits=Culprits(ranks=(1,), hosts=("node-07",)),
    signatures=(STOPPED,),
    hang=Hang(roots=(ROOT,), waiting=(0, 2), since=1000.0),
    ledger=LedgerCounts(ok=31, failed=1, gaps=("rank 1: flight-recorder: no answer in 3 s",)),
    timing=Timing(last_progress_to_detect_s=6.1, detect_to_captured_s=2.4),
    fabric_reasons=("process-stopped-sigstop: process.stopped",),
    contradictions=("rank 2's stack says otherwise",),
    ranks=RANKS,
)
CANNOT_TELL = Verdict(
    outcome="cannot-tell",
    symptom="hang",
    fabric="undecided",
    culprits=Culprits(),
    hang=Hang(
        roots=(HangRoot(ranks=(), kind="in-collective", op="all_reduce", seq=8, suspects=(0, 2)),),
        waiting=(0, 2),
    ),
    asks=("gpu.spinning: fetch nvidia-smi, twice",),
    ranks=RANKS,
)
WAITING = Verdict(
    outcome="waiting", symptom="none", fabric="undecided", culprits=Culprits(),
    hang=Hang(roots=(ROOT,), waiting=(0, 2), since=1000.0), ranks=RANKS,
)  # fmt: skip
HEALTHY = Verdict(
    outcome="healthy", symptom="none", fabric="acquitted", culprits=Culprits(), ranks=RANKS
)
ALL = (DIAGNOSED, CANNOT_TELL, WAITING, HEALTHY)


def flat(text: str) -> str:
    return re.sub(r"\s+", " ", text)


def test_a_diagnosis_says_who_where_why_against_and_what_to_do_in_that_order():
    text = flat(screen(DIAGNOSED, "runs/x/incidents/0001", now=1041.0))
    wanted = [
        "A rank's process is stopped and holds the others up",
        "confirmed",
        "rank 1 → node-07 → pid 4211 → train.py:35 next_batch",
        "ranks 0, 2 (2 of 3) in all_reduce #21 of default_pg no progress for 41 s",
        "+20 /proc shows state T. ranks/1/proc_rank_1.txt:3",
        "-3 not seen: page.stale (A stopped process cannot tick.)",
        "rank 2's stack says otherwise",
        "acquitted",
        "kill -CONT PID on the rank's host.",
        "risk It may return to a torn-down group.",
        "when If the rank was stopped on purpose.",
        "fabwatch playbook process-stopped-sigstop",
        "rank 1: flight-recorder: no answer in 3 s",
        "runs/x/incidents/0001",
    ]
    places = [text.find(one) for one in wanted]
    assert -1 not in places, wanted[places.index(-1)]
    assert places == sorted(places)


def test_cannot_tell_names_no_culprit_and_puts_what_to_fetch_before_the_candidates():
    text = screen(
        msgspec.structs.replace(
            CANNOT_TELL, signatures=(msgspec.structs.replace(STOPPED, grade="possible"),)
        )
    )
    assert "culprit" not in text
    assert "cannot tell what" in text
    assert "suspects" in text
    assert "ranks 0, 2" in text
    assert text.index("gpu.spinning") < text.index("process-stopped-sigstop")
    assert "first aid" not in text


def test_waiting_raises_no_alarm():
    text = screen(WAITING, now=1041.0)
    assert "no sign of a failure" in text
    assert "rank 1 → node-07 → pid 4211 → train.py:35 next_batch" in text
    assert "culprit" not in text
    assert "first aid" not in text


def test_healthy_says_what_it_speaks_for():
    text = screen(HEALTHY)
    assert "Nothing wrong was found" in text
    assert "3 ranks seen" in text
    assert "culprit" not in text


def test_old_evidence_says_since_when_and_not_for_how_long():
    assert "since 1970-01-01 00:16:40 UTC" in screen(WAITING)
    assert "no progress for" not in screen(WAITING)


@pytest.mark.parametrize("verdict", ALL, ids=lambda v: v.outcome)
@pytest.mark.parametrize("width", [60, 80, 100, 120])
def test_no_line_is_wider_than_the_terminal(verdict, width):
    assert max(map(len, screen(verdict, "a/b", width=width).splitlines())) <= width


def many(count: int) -> Verdict:
    """Half of ``count`` ranks at fault, on eight hosts, with more of everything than fits."""
    blamed = tuple(range(0, count, 2))
    reasons = tuple(
        Reason(fact="process.stopped", known="yes", worth=20 - i, cites=("a:1",) * 9, why="x " * 99)
        for i in range(12)
    )
    return Verdict(
        outcome="diagnosed",
        symptom="hang",
        fabric="undecided",
        culprits=Culprits(ranks=blamed),
        signatures=(msgspec.structs.replace(STOPPED, reasons=reasons),) * 5,
        hang=Hang(roots=(ROOT,) * 9, waiting=tuple(range(1, count, 2))),
        ledger=LedgerCounts(ok=1, failed=200, gaps=tuple(f"rank {i}: x: y" for i in range(200))),
        asks=tuple(f"ask {i}" for i in range(9)),
        contradictions=tuple(f"doubt {i}" for i in range(9)),
        ranks=tuple((i, f"node-{i % 8}", 100 + i) for i in range(count)),
    )


def test_a_thousand_ranks_still_fit_one_screen():
    assert len(screen(many(1024)).splitlines()) <= 48
    assert "more in summary.md" in screen(many(1024))


def test_summary_holds_what_the_screen_leaves_out():
    text = summary(many(64))
    assert "rank 199: x: y" in text
    assert "doubt 8" in text
    assert "more in summary.md" not in text
    assert "Further: restart-it" in text


@pytest.mark.parametrize("verdict", ALL, ids=lambda v: v.outcome)
def test_without_a_terminal_there_is_no_escape_and_no_trailing_space(verdict):
    text = screen(verdict, "x")
    assert "\x1b" not in text
    assert all(line == line.rstrip() for line in text.splitlines())
    assert "\x1b[" in screen(verdict, "x", color=True)


@pytest.mark.parametrize("verdict", ALL, ids=lambda v: v.outcome)
def test_a_terminal_without_unicode_gets_ascii(verdict):
    assert screen(verdict, "x", unicode=False, now=2000.0).isascii()


@given(st.text(min_size=1, max_size=80))
def test_what_comes_from_evidence_cannot_steer_the_terminal_or_the_markup(text):
    verdict = msgspec.structs.replace(
        DIAGNOSED,
        contradictions=(text,),
        hang=Hang(roots=(msgspec.structs.replace(ROOT, frame=text),), waiting=(0,)),
    )
    shown = screen(verdict, "x")
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202a-\u202e]", shown)


def test_markup_in_evidence_stays_text():
    odd = "[red]<b>*x*</b> `y` | # z"
    verdict = msgspec.structs.replace(DIAGNOSED, contradictions=(odd,))
    assert odd in flat(screen(verdict, "x"))
    assert r"\[red\]\<b\>\*x\*\</b\> \`y\` \| \# z" in summary(verdict)


def test_small_words():
    assert odds(20) == "100 to 1"
    assert odds(-10) == "1 to 10"
    assert odds(99) == "over a million to 1"
    assert [seconds(s) for s in (0.31, 41, 700, 12600)] == ["0.3 s", "41 s", "12 min", "3.5 h"]
    assert clip("one two three", 9) == "one two…"
    assert clip("short", 9) == "short"
