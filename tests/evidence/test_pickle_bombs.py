"""Tuples that hold each other doubled are refused at once; what dumps hold is not."""

from __future__ import annotations

import pickle

import pytest

from fabwatch.watchdog.evidence.safe_pickle import Refused, load

LONG = b"X\x28\x00\x00\x00" + b"a" * 40

LEVELS = {
    "a pair of twice the same": lambda one, new: one + one + b"\x86" + new,
    "puts between them": lambda one, new: one + b"q\xf0" + one + b"q\xf1\x86" + new,
    "three with a text last": lambda one, new: one + one + LONG + b"\x87" + new,
    "pairs in a pair": lambda one, new: (one + LONG + b"\x86") * 2 + b"\x86" + new,
    "four after a mark": lambda one, new: b"(" + (one + b"K\x01") * 4 + b"t" + new,
    "singles around pairs": lambda one, new: (one + b"\x85") * 2 + b"\x86" + new,
}


def doubled(level, depth):
    """A pickle whose tuple at ``depth`` is a key; each level holds the one below twice or more."""
    body = b"\x80\x02})q\x01"
    for number in range(1, depth):
        body += level(b"h" + bytes([number]), b"q" + bytes([number + 1]))
    return body + b"K\x01s."


@pytest.mark.parametrize("level", LEVELS.values(), ids=LEVELS)
def test_doubled_tuples_are_refused_and_never_hashed(level) -> None:
    with pytest.raises(Refused, match="a tuple of more than"):
        load(doubled(level, 70))


@pytest.mark.parametrize("level", LEVELS.values(), ids=LEVELS)
def test_a_cut_pickle_is_weighed_too_before_it_is_folded(level) -> None:
    body = b"\x80\x02}()q\x01"
    for number in range(1, 70):
        body += level(b"h" + bytes([number]), b"q" + bytes([number + 1]))
    with pytest.raises(Refused, match="a tuple of more than"):
        load(body + b"tK\x01s")


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_pairs_of_shared_texts_in_many_groups_load(protocol: int) -> None:
    names = [(str(n), f"group {n}") for n in range(300)]
    entries = [{"process_group": names[n % 300], "input_sizes": [[n, 2]]} for n in range(900)]
    value = {"entries": entries, "version": "2.9"}
    assert load(pickle.dumps(value, protocol)).value == value


def test_a_set_is_refused() -> None:
    with pytest.raises(Refused, match="EMPTY_SET"):
        load(pickle.dumps({"entries": {1, 2}}, 4))
