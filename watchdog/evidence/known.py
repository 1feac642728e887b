"""Three values: yes, no, nobody could look."""

from __future__ import annotations

from enum import Enum


class Known(str, Enum):
    """Whether a fact holds. UNKNOWN is derived from what was looked at, never written by hand."""

    YES = "yes"
    NO = "no"
    UNKNOWN = "unknown"
