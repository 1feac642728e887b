"""Collect what a tool reads of each thing by name; a value that comes again opens a new look."""

from __future__ import annotations

from fabwatch.watchdog.evidence.observations import MEASURED, Measured, Source

MAX_VALUES = 500_000
_Value = str | int | float


class Looks:
    """What one artefact reads. ``put`` in the order of its lines; ``out`` gives the observations.

    >>> looks = Looks(Source("ibstat.txt", "interfaces"))
    >>> looks.put("rdma-port", "mlx5_0", "state", "DOWN", 7)
    >>> looks.out()[0].cite("state")
    'ibstat.txt:7'
    """

    def __init__(self, source: Source) -> None:
        self.source = source
        self._open: dict[tuple[str, str], dict[str, tuple[_Value, int]]] = {}
        self._done: list[tuple[tuple[str, str], dict[str, tuple[_Value, int]]]] = []
        self._count = 0

    def put(self, kind: str, name: str, key: str, value: _Value | None, line: int = 0) -> None:
        """Remember one value; None is left out. Beyond :data:`MAX_VALUES` nothing is kept."""
        assert kind in MEASURED
        if value is None or self._count >= MAX_VALUES:
            return
        self._count += 1
        place = (kind, name[:200])
        values = self._open.get(place)
        if values is not None and key in values:
            values = None
        if values is None:
            values = self._open[place] = {}
            self._done.append((place, values))
        values[key[:200]] = (value[:400] if isinstance(value, str) else value, line)

    def __bool__(self) -> bool:
        return bool(self._done)

    def out(self) -> tuple[Measured, ...]:
        """One observation for each thing and look, in order."""
        return tuple(
            Measured(self.source, kind, name, tuple((k, v, n) for k, (v, n) in values.items()))
            for (kind, name), values in self._done
        )


def whole(text: str) -> int | None:
    """A count of at most 20 digits, else None."""
    text = text.strip().replace(",", "")
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 20 else None


def real(text: str) -> float | None:
    """The number that ``text`` begins with (``16x``, ``400 Gb/sec``), else None."""
    end = 0
    text = text.strip()
    while end < min(len(text), 20) and (text[end] in "0123456789" or (text[end] == "." and end)):
        end += 1
    try:
        return float(text[:end]) if end and text[:end].isascii() else None
    except ValueError:
        return None
