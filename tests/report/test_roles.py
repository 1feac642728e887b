"""What a verdict asks of the training engineer, the fabric engineer and the cluster admin."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from fabwatch.signatures.model import LAYERS
from fabwatch.signatures.report.roles import OWNERS, ROLES, advice, owner_of
from fabwatch.signatures.report.screen import screen
from fabwatch.signatures.report.summary import summary
from fabwatch.signatures.verdict import Advice, Candidate, Culprits, Hang, HangRoot, Verdict

BUNDLES = Path(__file__).resolve().parents[1] / "bundles"
STEP = Advice(id="s", do="Do this", risk="Little", undo="Take it back", undo_when="Tomorrow")


def candidate(name: str, layer: str, *ranks: int, grade: str = "confirmed") -> Candidate:
    return Candidate(
        id=name, title=f"It is {name}", layer=layer, grade=grade, decibans=25,
        where=Culprits(ranks=ranks), mitigations=(STEP,),
    )  # fmt: skip


def verdict(*found: Candidate, **more: object) -> Verdict:
    base: dict[str, object] = {
        "outcome": "diagnosed", "symptom": "hang", "fabric": "acquitted", "signatures": found,
        "culprits": Culprits(ranks=(1,), hosts=("n1",)), "fabric_reasons": ("rank 1: gil.held",),
    }  # fmt: skip
    return Verdict(**(base | more))  # type: ignore[arg-type]


def told(found: Verdict, role: str) -> str:
    return "\n".join(advice(found, role))


def test_every_layer_has_an_owner_and_every_owner_is_a_role():
    assert set(OWNERS) == set(LAYERS)
    assert set(OWNERS.values()) == set(ROLES)


@pytest.mark.parametrize("layer", LAYERS)
def test_the_owner_gets_the_step_and_the_others_learn_whose_turn_it_is(layer):
    found = verdict(candidate("x", layer, 1))
    for role in ROLES:
        text = told(found, role)
        if role == owner_of(found):
            assert "Yours: It is x (x). Do this. Risk: Little." in text
            assert "turn" not in text
        else:
            assert f"It is the {ROLES[OWNERS[layer]]}'s turn: x ({layer})." in text
            assert "Yours" not in text


def test_an_acquitted_fabric_is_left_alone_and_a_convicted_one_named():
    assert "no link is to be taken down" in told(verdict(candidate("x", "host", 1)), "fabric")
    guilty = verdict(
        candidate("x", "fabric", 1), fabric="convicted", culprits=Culprits(links=("n1/eth0",))
    )
    assert "The fabric is convicted" in told(guilty, "fabric")
    assert "Look at n1/eth0." in told(guilty, "fabric")
    assert "taken down" not in told(guilty, "fabric")


def test_who_cannot_tell_is_asked_for_what_each_can_fetch_and_nothing_is_drained():
    asks = ("link.down (x): fetch ip -s -d link", "gpu.xid (x): fetch dmesg -T", "other: py-spy")
    found = verdict(outcome="cannot-tell", fabric="undecided", asks=asks)
    assert f"Would tell: {asks[0]}" in told(found, "fabric")
    assert asks[1] not in told(found, "fabric")
    assert f"Would tell: {asks[1]}" in told(found, "admin")
    assert "No host is to be drained" in told(found, "admin")
    assert "Do not restart before" in told(found, "training")


def test_only_the_first_cause_and_independent_ones_are_anybodys():
    first = candidate("oom", "host", 1)
    effect = candidate("killed", "host", 1)
    apart = candidate("other", "host", 4)
    maybe = candidate("maybe", "host", 5, grade="likely")
    text = told(verdict(first, effect, apart, maybe), "admin")
    assert [n for n in ("oom", "killed", "other", "maybe") if f"({n})" in text] == ["oom", "other"]


def test_the_training_engineer_gets_the_line_of_the_culprit_only():
    roots = (HangRoot(ranks=(1,), kind="host-stall", frame="train.py:35 next_batch"),
             HangRoot(ranks=(2,), kind="host-stall", frame="train.py:99 other"))  # fmt: skip
    text = told(verdict(candidate("x", "application", 1), hang=Hang(roots=roots)), "training")
    assert "Code to look at: train.py:35 next_batch (rank 1)." in text
    assert "train.py:99" not in text


def test_an_unknown_role_is_refused():
    with pytest.raises(KeyError):
        advice(verdict(), "boss")


def test_the_screen_shows_the_role_asked_for_and_the_summary_all_three():
    found = verdict(candidate("x", "gpu", 1))
    plain = screen(found)
    assert "admin:" not in plain and "Yours" not in plain
    assert "admin:" in screen(found, role="admin") and "Yours" in screen(found, role="admin")
    page = summary(found)
    for who in ROLES.values():
        assert f"- **{who.capitalize()}**: " in page
    healthy = msgspec.structs.replace(found, outcome="healthy", signatures=())
    assert "Who does what" not in summary(healthy)


def test_the_command_takes_a_role_and_refuses_others():
    def match(*words: str):
        return subprocess.run(
            [sys.executable, "-m", "fabwatch", "match", str(BUNDLES / "gloo-oom.tar.gz"), *words],
            env=os.environ, capture_output=True, text=True, timeout=60,
        )  # fmt: skip

    assert "It is the cluster admin's turn: oom-kill-cgroup" in match("--role", "fabric").stdout
    assert match("--role", "boss").returncode == 2
