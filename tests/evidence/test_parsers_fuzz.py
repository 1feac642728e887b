"""No input makes a parser raise or run away: random bytes, and real samples cut and changed."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fabwatch.watchdog.evidence.artefact import Artefact, Parser
from fabwatch.watchdog.evidence.naming import hint_of
from fabwatch.watchdog.evidence.observations import Parsed
from fabwatch.watchdog.evidence.parsers import all_parsers
from fabwatch.watchdog.evidence.reading import choose
from fabwatch.watchdog.evidence.settle import settle

SAMPLES = sorted((Path(__file__).resolve().parent.parent / "samples").glob("*--*.in"))
LIGHT = settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True
)


def parse(parser: Parser, data: bytes, name: str) -> Parsed:
    artefact = Artefact(name, name, lambda: io.BytesIO(data), len(data), None, hint_of(name))
    assert 0 <= parser.sniff(data[:65536], name) <= 100
    parsed = parser.parse(artefact)
    assert isinstance(parsed, Parsed)
    assert len(parsed.observations) <= len(data) + 1
    settle(parsed.observations, parsed.looked, {}, {}, set())
    return parsed


def name_of(parser: Parser) -> str:
    return str(getattr(parser, "__name__", "")).rsplit(".", 1)[-1]


@pytest.mark.parametrize("parser", all_parsers(), ids=name_of)
@LIGHT
@given(st.binary(max_size=2000))
def test_random_bytes_never_raise(parser: Parser, data: bytes) -> None:
    """Whatever it is, the answer is observations or located errors."""
    parse(parser, data, "x_rank_1.txt")


@pytest.mark.parametrize("path", SAMPLES, ids=lambda p: p.name)
@LIGHT
@given(st.data())
def test_cut_and_changed_samples_never_raise(path: Path, data: st.DataObject) -> None:
    """Half-written files, and files that something went over."""
    module, _, name = path.name.removesuffix(".in").partition("--")
    name = name.replace("%2F", "/")
    raw = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(0, 6))):
        at = data.draw(st.integers(0, len(raw)))
        new = data.draw(
            st.binary(max_size=12) | st.sampled_from([b"\n", b"9" * 30, b"{", b"[" * 9])
        )
        raw[at : at + data.draw(st.integers(0, 40))] = new
    if data.draw(st.booleans()):
        del raw[data.draw(st.integers(0, len(raw))) :]
    own = next(p for p in all_parsers() if name_of(p) == module)
    parse(own, bytes(raw), name)
    chosen = choose(bytes(raw[:65536]), name)
    if chosen is not None and chosen is not own:
        parse(chosen, bytes(raw), name)


@pytest.mark.parametrize("parser", all_parsers(), ids=name_of)
def test_deep_nesting_and_huge_numbers_never_raise(parser: Parser) -> None:
    """Recursive structures and integers of a million digits."""
    deep = b'{"version": "2.10", "pg_config": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    huge = b'{"tick_s": 1, "age_s": ' + b"9" * 100_000 + b', "rank": ' + b"1" * 400 + b"}"
    text = (
        b"Thread "
        + b"9" * 100_000
        + b' (active): "MainThread"\n    f (a.py:'
        + b"8" * 5000
        + b")\n"
    )
    for data in (deep, huge, text, b"\x80\x02" + b"(" * 200_000 + b".", b"]" * 1000):
        parse(parser, data, "x_rank_1.json")


@pytest.mark.slow
@pytest.mark.parametrize("parser", all_parsers(), ids=name_of)
def test_a_hundred_megabytes_of_one_kind_stay_bounded(parser: Parser) -> None:
    """The sample and a hundred megabytes after it: it ends, without an exception."""
    sample = next(p for p in SAMPLES if p.name.startswith(name_of(parser) + "--"))
    raw = sample.read_bytes()
    if name_of(parser) in ("job_log", "kernel_log"):
        line = b"[rank3]: step 123 loss 1.2345 lr 1e-4 tokens/s 123456 grad_norm 0.31 mem 71GB\n"
        data = raw * 200 + line * (100_000_000 // len(line)) + raw
    else:
        data = raw + b"x" * 100_000_000
    parse(parser, data, sample.name.replace("%2F", "/"))
