"""Version ranges of known bugs, and what an unknown version means."""

from __future__ import annotations

import pytest

from fabwatch.signatures.versions import applies, bad_range


@pytest.mark.parametrize(
    ("have", "wanted", "holds"),
    [
        ("2.27", ">=2.27,<2.29.3", True),
        ("2.27.0", "==2.27", True),
        ("2.29.2", ">=2.27,<2.29.3", True),
        ("2.29.3", ">=2.27,<2.29.3", False),
        ("2.26.9", ">=2.27,<2.29.3", False),
        ("2.10", ">2.9", True),
        ("2.9", ">2.9", False),
        ("2.9", ">=2.9", True),
        ("2.9", "<=2.9", True),
        ("2.9.1", "<=2.9", False),
        ("2.9", "!=2.9.0", False),
        ("2.8", "!=2.9", True),
        ("2.11.0+cu128", ">=2.11", True),
        ("2.10.9", "<2.11", True),
    ],
)
def test_versions_compare_number_by_number(have: str, wanted: str, holds: bool) -> None:
    assert applies((("torch", wanted),), {"torch": have}) is holds


def test_an_unknown_version_leaves_the_question_open_but_a_known_no_decides() -> None:
    ranges = (("arch", "aarch64"), ("nccl", "<2.29.3"))
    assert applies(ranges, {"nccl": "2.28"}) is None
    assert applies(ranges, {"nccl": "2.30"}) is False
    assert applies(ranges, {"arch": "x86_64"}) is False
    assert applies(ranges, {"arch": "aarch64", "nccl": "2.28"}) is True
    assert applies((), {}) is True


def test_a_range_that_cannot_be_read_is_named() -> None:
    assert bad_range("nccl", ">=2.27, <2.29") == ""
    assert "'two'" in bad_range("nccl", ">=2,two")
    assert bad_range("arch", "aarch64") == ""
