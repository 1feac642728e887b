"""Version ranges of signatures: ``>=2.27,<2.29.3``, compared number by number."""

from __future__ import annotations

import re
from collections.abc import Mapping

_TERM = re.compile(r"(>=|<=|==|!=|<|>)\s*(\d+(?:\.\d+)*)")


def _numbers(version: str) -> tuple[int, ...]:
    match = re.match(r"\d+(?:\.\d+)*", version.strip())
    if match is None:
        return ()
    numbers = [int(one) for one in match.group().split(".")]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)


def bad_range(key: str, wanted: str) -> str:
    """What is wrong with the range ``wanted`` for ``key`` (``arch`` is a plain name), or ""."""
    if key == "arch":
        return ""
    for term in wanted.split(","):
        if not _TERM.fullmatch(term.strip()):
            return f"{key}: {term.strip()!r} is no version range such as '>=2.27,<2.29.3'"
    return ""


def _holds(version: str, wanted: str) -> bool:
    have = _numbers(version)
    for term in wanted.split(","):
        match = _TERM.fullmatch(term.strip())
        if match is None:
            return False
        sign, limit = match.group(1), _numbers(match.group(2))
        if not {
            ">=": have >= limit,
            "<=": have <= limit,
            "==": have == limit,
            "!=": have != limit,
            "<": have < limit,
            ">": have > limit,
        }[sign]:
            return False
    return True


def applies(ranges: tuple[tuple[str, str], ...], versions: Mapping[str, str]) -> bool | None:
    """True or False if the versions say so; None when a version that matters is not known."""
    open_question = False
    for key, wanted in ranges:
        have = versions.get(key, "")
        if not have:
            open_question = True
        elif key == "arch":
            if have != wanted:
                return False
        elif not _holds(have, wanted):
            return False
    return None if open_question else True
