"""Every parser reads its real samples to what is written down beside them.

A sample is ``<parser module>--<file name>.in``; what it reads to is ``....expected``. Write the
latter anew with ``FABWATCH_WRITE_SAMPLES=1`` and look at the difference.
"""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest

from fabwatch.watchdog.evidence.artefact import Artefact
from fabwatch.watchdog.evidence.naming import hint_of
from fabwatch.watchdog.evidence.observations import Parsed
from fabwatch.watchdog.evidence.parsers import all_parsers
from fabwatch.watchdog.evidence.reading import _readers, choose
from fabwatch.watchdog.evidence.vocabulary import SOURCES

SAMPLES = Path(__file__).resolve().parent.parent / "samples"
ALL = sorted(SAMPLES.glob("*--*.in"))


def module_of(parser: object) -> str:
    return str(getattr(parser, "__name__", "")).rsplit(".", 1)[-1]


def as_text(parsed: Parsed) -> str:
    """One line for each thing that was read, readable in a difference.

    Lines that a shape of the library finds have samples of their own.
    """
    lines = [
        repr(one)
        for one in parsed.observations
        if not getattr(one, "kind", "").startswith("shape:")
    ]
    lines += [f"error: {one}" for one in parsed.errors]
    lines += [f"looked: {one.kind} rank={one.rank} host={one.host}" for one in parsed.looked]
    return "\n".join(lines) + "\n"


def load(path: Path) -> tuple[str, Artefact]:
    module, _, name = path.name.removesuffix(".in").partition("--")
    name = name.replace("%2F", "/")
    data = path.read_bytes()
    return module, Artefact(name, name, lambda: io.BytesIO(data), len(data), None, hint_of(name))


def test_every_parser_has_a_sample() -> None:
    """A parser without a real sample is a guess."""
    have = {path.name.partition("--")[0] for path in ALL}
    assert {module_of(parser) for parser in all_parsers()} == have


@pytest.mark.parametrize("path", ALL, ids=lambda p: p.name)
def test_a_sample_is_recognised_by_its_content(path: Path) -> None:
    """The right parser is the surest one, whatever the file is called."""
    module, artefact = load(path)
    if module == "sysfs":  # a number alone says nothing: its place in the tree does
        assert [module_of(p) for p in _readers(artefact.head(), artefact)] == ["sysfs"]
        return
    for name in (artefact.name, "download(1)"):
        parser = choose(artefact.head(), name)
        assert parser is not None
        if module != "job_log" or name == artefact.name:
            assert module_of(parser) == module


@pytest.mark.parametrize("path", ALL, ids=lambda p: p.name)
def test_a_sample_reads_to_what_is_written_down(path: Path) -> None:
    """Any change in what is read shows up in a reviewable file."""
    module, artefact = load(path)
    parser = next(p for p in all_parsers() if module_of(p) == module)
    parsed = parser.parse(artefact)
    text = as_text(parsed)
    expected = path.with_suffix(".expected")
    if os.environ.get("FABWATCH_WRITE_SAMPLES"):
        expected.write_text(text)
    assert parsed.observations or parsed.errors
    assert expected.read_text() == text


@pytest.mark.parametrize("parser", all_parsers(), ids=module_of)
def test_a_parser_says_what_it_makes(parser: object) -> None:
    """NAME, MAKES with known sources, a docstring with an example."""
    makes = getattr(parser, "MAKES", ())
    assert makes
    assert set(makes) <= set(SOURCES)
    doc = getattr(parser, "__doc__", "") or ""
    assert "xample" in doc or ">>>" in doc
