"""One raw artefact as parsers see it: bytes with a label, and what its name tells.

A parser never opens files: it asks the artefact for a bounded read or for bounded lines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import BinaryIO, Protocol

from fabwatch.watchdog.evidence.naming import Hint
from fabwatch.watchdog.evidence.observations import Parsed, ReadError, Source

HEAD_BYTES = 64 * 1024
"""How much of an artefact a sniffer sees."""

WHOLE_BYTES = 256 * 1024 * 1024
"""The most that a parser which needs a whole artefact in memory reads."""

LINE_BYTES = 64 * 1024
"""The most of one line that is kept; the rest is skipped."""

_BLOCK = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Artefact:
    """One file, archive member or stream. ``path`` is the label that citations print.

    ``opener`` gives a fresh binary stream from the start each time. ``size`` in bytes, -1 if
    unknown. ``modified`` is the file's own time (epoch seconds), None if it has none. ``before``:
    it is a part of a file that has so many lines before it; numbers of lines are those of the
    file. ``asked`` is the command or file that the heading of such a part names.
    """

    path: str
    name: str
    opener: Callable[[], BinaryIO]
    size: int = -1
    modified: float | None = None
    hint: Hint = field(default_factory=Hint)
    before: int = 0
    asked: str = ""

    def head(self, limit: int = HEAD_BYTES) -> bytes:
        """The first bytes. Raises OSError when it cannot be read."""
        with self.opener() as stream:
            return stream.read(limit)

    def read(self, limit: int = WHOLE_BYTES) -> tuple[bytes, bool]:
        """All bytes up to ``limit``, and whether something was left out. Raises OSError."""
        with self.opener() as stream:
            data = stream.read(limit + 1)
        return b"\n" * self.before + data[:limit], len(data) > limit

    def text(self, limit: int = WHOLE_BYTES) -> tuple[str, bool]:
        """Like :meth:`read`, decoded; undecodable bytes become U+FFFD."""
        data, cut = self.read(limit)
        return decode(data), cut

    def blocks(self, block: int = _BLOCK) -> Iterator[tuple[int, bytes]]:
        """Yield (number of the first line, whole lines) in bounded memory. Raises OSError.

        A line longer than a block is cut at :data:`LINE_BYTES`; line numbers stay right.
        """
        number, rest, skipping = self.before + 1, b"", False
        with self.opener() as stream:
            while True:
                chunk = stream.read(block)
                if not chunk:
                    break
                if skipping:
                    end = chunk.find(b"\n")
                    if end < 0:
                        continue
                    chunk, skipping = chunk[end:], False
                chunk = rest + chunk
                end = chunk.rfind(b"\n")
                if end < 0:
                    if len(chunk) > block:
                        rest, skipping = chunk[:LINE_BYTES], True
                    else:
                        rest = chunk
                    continue
                whole, rest = chunk[: end + 1], chunk[end + 1 :]
                yield number, whole
                number += whole.count(b"\n")
            if rest:
                yield number, rest

    def source(
        self,
        kind: str,
        *,
        rank: int | None = None,
        host: str | None = None,
        taken: float | None = None,
        snapshot: int | None = None,
    ) -> Source:
        """A Source for this artefact; what is not given comes from its name."""
        return Source(
            self.path,
            kind,
            self.hint.rank if rank is None else rank,
            host or self.hint.host,
            (self.hint.snapshot or 1) if snapshot is None else snapshot,
            taken,
        )

    def error(self, problem: str, where: str = "", advice: str = "") -> ReadError:
        """A located complaint about this artefact."""
        return ReadError(self.path, where, problem, advice)


class Parser(Protocol):
    """What a module in the parsers folder offers."""

    NAME: str
    MAKES: tuple[str, ...]

    def sniff(self, head: bytes, name: str) -> int:
        """0 (not mine) to 100 (certainly mine), from the first bytes; the name only breaks ties."""
        ...

    def parse(self, artefact: Artefact) -> Parsed:
        """Observations and located errors. Never raises for bad content."""
        ...


def decode(data: bytes) -> str:
    """Text of bytes: UTF-16 with a byte-order mark, else UTF-8 with replacement, no NULs."""
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        text = data.decode("utf-16", "replace")
    else:
        text = data.decode("utf-8", "replace")
    return text.replace("\0", "").removeprefix("\ufeff")


def looks_binary(head: bytes) -> bool:
    """True for bytes that are no text: many control characters. UTF-16 with a mark is text."""
    if head[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return False
    sample = head[:4096]
    if not sample:
        return False
    odd = sum(1 for byte in sample if byte < 9 or 13 < byte < 27 or 27 < byte < 32)
    # Noise has a tenth of them. NULs fill holes in logs and backspaces draw progress bars.
    plain = odd - sample.count(0) - sample.count(8)
    return odd * 10 > len(sample) * 3 or plain * 20 > len(sample)
