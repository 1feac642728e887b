"""Python tracebacks in mixed logs, whole or in halves, one writer at a time."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from fabwatch.watchdog.evidence.observations import Frame

FILE_LINE = re.compile(
    r'^\s*File "(?P<file>[^"\n]{1,1000})", line (?P<line>\d{1,9})(?:,? in (?P<function>.+?))?\s*$'
)
ERROR_LINE = re.compile(
    r"^(?P<type>(?:[A-Za-z_][\w<>]*\.){0,12}(?:[A-Z]\w{0,80}?(?:Error|Exception|Interrupt|Exit|"
    r"Timeout|Failure|Warning|Signal)|SystemExit|KeyboardInterrupt|StopIteration|GeneratorExit|"
    r"CudaOOM|Empty|Full))(?::(?P<text> .*)?)?$"
)
HEADER = "Traceback (most recent call last)"
MAX_FRAMES = 500
MAX_TEXT = 4096
_BETWEEN = (
    "During handling of the above exception, another exception occurred",
    "The above exception was the direct cause of the following exception",
)
_OPEN_LINES = 4000
_QUIET_DONE = 500
_QUIET_OPEN = 5000
_MORE = re.compile(
    r"^(?:nccl\w+: |Last error:|HINT|Search for |CUDA kernel errors|For debugging consider|"
    r"Compile with|Original Traceback|Device-side|\(Triggered internally|\s{2,}\S)"
)


@dataclass(slots=True)
class Raised:
    """One exception as its writer printed it. ``first`` and ``last`` are line numbers."""

    stream: str
    type: str
    text: str
    frames: tuple[Frame, ...]
    first: int
    last: int
    chained: tuple[str, ...] = ()


@dataclass(slots=True)
class _Open:
    """A traceback that is being read."""

    first: int
    frames: list[Frame] = field(default_factory=list)
    chained: list[str] = field(default_factory=list)
    lines: int = 0
    done: Raised | None = None
    extra: int = 0
    seen: int = 0


def frames_of_text(text: str) -> tuple[Frame, ...]:
    """All frames of a traceback text, in its order (innermost last)."""
    frames = []
    for line in text.splitlines():
        if match := FILE_LINE.match(line):
            frames.append(Frame((match["function"] or "")[:400], match["file"], int(match["line"])))
    return tuple(frames[-MAX_FRAMES:])


class Tracebacks:
    """Feed it the lines of each stream; it returns exceptions when they are complete."""

    def __init__(self) -> None:
        self._open: dict[str, _Open] = {}

    @property
    def busy(self) -> bool:
        """True while any traceback is open, so that no line may be skipped."""
        return bool(self._open)

    def feed(self, stream: str, body: str, number: int) -> list[Raised]:
        """Give one line without its prefix. Returns exceptions that ended before it."""
        now = self._open.get(stream)
        if now is not None:
            now.seen = number
        out: list[Raised] = []
        if HEADER in body:
            if now is not None and now.done is not None:
                out += self._end(stream)
                now = None
            if now is None:
                now = self._open[stream] = _Open(number)
            elif body.startswith("Original Traceback"):
                pass  # a worker's traceback inside the message of the outer one
            elif now.frames and not now.chained:
                # Two writers without prefixes, or a header that was cut: keep what there is.
                out += self._end(stream)
                now = self._open[stream] = _Open(number)
            now.frames.clear()
            now.lines = 0
            return out
        if now is None:
            if FILE_LINE.match(body):
                self._open[stream] = now = _Open(number)
            else:
                match = ERROR_LINE.match(body)
                if match and match["type"][0] != "W" and not body.startswith(("Warning", "User")):
                    self._close(stream, _Open(number), match, number)
                return out
        return out + self._inside(stream, now, body, number)

    def _inside(self, stream: str, now: _Open, body: str, number: int) -> list[Raised]:
        now.lines += 1
        if now.done is not None:
            return self._after(stream, now, body, number)
        if match := FILE_LINE.match(body):
            if len(now.frames) < MAX_FRAMES:
                now.frames.append(
                    Frame((match["function"] or "")[:400], match["file"], int(match["line"]))
                )
            return []
        match = ERROR_LINE.match(body)
        if match and (now.frames or now.chained):
            self._close(stream, now, match, number)
            return []
        if now.lines > _OPEN_LINES or (body.strip() and not body.startswith((" ", "\t", "|", "+"))):
            # Neither a frame nor code: another writer's line, or the end of half a traceback.
            now.extra += 1
            if now.extra > 50 or now.lines > _OPEN_LINES:
                return self._end(stream)
        return []

    def _close(self, stream: str, now: _Open, match: re.Match[str], number: int) -> None:
        now.done = Raised(
            stream,
            match["type"][:200],
            (match["text"] or "").strip()[:MAX_TEXT],
            tuple(now.frames),
            now.first,
            number,
            tuple(now.chained),
        )
        now.extra = 0
        self._open[stream] = now

    def _after(self, stream: str, now: _Open, body: str, number: int) -> list[Raised]:
        """The lines after an exception: more of its message, a chained one, or the end."""
        done = now.done
        assert done is not None
        text = body.strip()
        if any(text.startswith(words) for words in _BETWEEN):
            self._open[stream] = _Open(now.first, chained=[*now.chained, done.type])
            return []
        if not text and now.extra < 3:
            now.extra += 1
            return []
        ended = text.startswith(("[rank", "[E", "[W", "[I", "W", "E1", "E0")) and "]" in text[:80]
        if len(done.text) < MAX_TEXT and now.extra < 25 and not ended:
            wanted = (
                _MORE.match(body)
                or done.text.endswith("Last error:")
                or (stream and not ERROR_LINE.match(body))
            )
            if wanted:
                now.extra += 1
                done.text = f"{done.text}\n{text}"[:MAX_TEXT]
                done.last = number
                return []
        out = self._end(stream)
        return out + self.feed(stream, body, number)

    def _end(self, stream: str) -> list[Raised]:
        now = self._open.pop(stream, None)
        if now is None:
            return []
        if now.done is not None:
            return [now.done]
        if now.frames:  # half a traceback: where, but not what
            return [Raised(stream, "", "", tuple(now.frames), now.first, now.first + now.lines)]
        return []

    def expire(self, number: int) -> list[Raised]:
        """End what its writer has not gone on with for many lines of others."""
        out: list[Raised] = []
        for stream, now in list(self._open.items()):
            quiet = number - max(now.seen, now.first)
            if quiet > (_QUIET_DONE if now.done is not None else _QUIET_OPEN):
                out += self._end(stream)
        return out

    def finish(self) -> list[Raised]:
        """What is still open at the end of the file."""
        out: list[Raised] = []
        for stream in list(self._open):
            out += self._end(stream)
        return out
