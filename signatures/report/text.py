"""Small text helpers of reports: clean, shorten, count."""

from __future__ import annotations

import re
from collections.abc import Iterable

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
_SPACE = re.compile(r"\s+")

_PLAIN = str.maketrans(
    {"─": "-", "·": "|", "→": "->", "…": "..."}
)  # fmt: skip


def clean(text: str) -> str:
    """One line that cannot steer a terminal: evidence is written by strangers."""
    return _SPACE.sub(" ", _CONTROL.sub("?", text.replace("\n", " "))).strip()


def clip(text: str, most: int) -> str:
    """At most ``most`` characters, cut at a word where one is near."""
    text = clean(text)
    if len(text) <= most:
        return text
    cut = text[: most - 1]
    space = cut.rfind(" ")
    return (cut[:space] if space > most * 2 // 3 else cut).rstrip(" ,;:") + "…"


def ascii_only(text: str) -> str:
    """The same text for terminals that know no Unicode."""
    return text.translate(_PLAIN).encode("ascii", "replace").decode("ascii")


def counted(number: int, one: str, many: str = "") -> str:
    """``1 rank``, ``3 ranks``."""
    return f"{number} {one if number == 1 else many or one + 's'}"


def seconds(value: float) -> str:
    """``0.3 s``, ``41 s``, ``12 min``, ``3.5 h``."""
    if value < 10:
        return f"{value:.1f} s"
    if value < 120:
        return f"{value:.0f} s"
    return f"{value / 60:.0f} min" if value < 7200 else f"{value / 3600:.1f} h"


def odds(decibans: float) -> str:
    """``400 to 1`` from 26 decibans; two significant digits, a million at most."""
    if decibans >= 60:
        return "over a million to 1"
    ratio = 10 ** (abs(decibans) / 10)
    digits = f"{float(f'{ratio:.2g}'):,.0f}" if ratio >= 10 else f"{ratio:.1f}"
    return f"{digits} to 1" if decibans >= 0 else f"1 to {digits}"


def listed(items: Iterable[str], most: int) -> str:
    """``a, b and 3 more``."""
    every = [clean(item) for item in items]
    shown = ", ".join(every[:most])
    return f"{shown} and {len(every) - most} more" if len(every) > most else shown
