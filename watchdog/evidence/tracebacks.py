"""Frames of Python tracebacks, whole or in halves, from text."""

from __future__ import annotations

import re

from fabwatch.watchdog.evidence.observations import Frame

FILE_LINE = re.compile(
    r'^\s*File "(?P<file>[^"\n]{1,1000})", line (?P<line>\d{1,9})(?:, in (?P<function>.+))?\s*$'
)
ERROR_LINE = re.compile(
    r"^(?P<type>(?:[A-Za-z_]\w*\.)*(?:[A-Z]\w*(?:Error|Exception|Interrupt|Exit|Timeout|Failure|Warning|StopIteration)"
    r"|SystemExit|KeyboardInterrupt|StopIteration|GeneratorExit|[A-Z]\w*(?:Err|Failed|Killed|Aborted)))"
    r"(?:: (?P<text>.*))?$"
)
MAX_FRAMES = 500


def frames_of_text(text: str) -> tuple[Frame, ...]:
    """All frames of a traceback text, in its order (innermost last)."""
    frames = []
    for line in text.splitlines():
        if match := FILE_LINE.match(line):
            frames.append(Frame((match["function"] or "")[:400], match["file"], int(match["line"])))
    return tuple(frames[-MAX_FRAMES:])
