"""What standard output can show: width, colour, Unicode."""

from __future__ import annotations

import os
import shutil
import sys
from typing import NamedTuple


class Terminal(NamedTuple):
    """Columns, and whether colour and Unicode come through."""

    width: int
    color: bool
    unicode: bool


def terminal() -> Terminal:
    """Look at standard output; a file or pipe gets plain text of 100 columns, or of COLUMNS."""
    if sys.stdout is None:
        return Terminal(100, False, False)
    tty = sys.stdout.isatty()
    width = shutil.get_terminal_size((100, 24)).columns if tty else _columns()
    color = tty and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    encoding = (sys.stdout.encoding or "ascii").lower().replace("-", "")
    return Terminal(min(max(width, 40), 120), color, encoding.startswith("utf"))


def _columns() -> int:
    text = os.environ.get("COLUMNS", "")
    return int(text) if text.isdigit() and int(text) else 100
