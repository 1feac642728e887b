"""Operations of one long dump kept in columns: what repeats once, the numbers in arrays.

A ring of thousands of entries holds few different operations; an :class:`Op` is made when it is
asked for. It behaves as the tuple of its operations does.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import overload

from fabwatch.watchdog.evidence.observations import Op

COLUMNS = (
    "record_id",
    "collective_seq_id",
    "p2p_seq_id",
    "op_id",
    "time_created_ns",
    "time_discovered_started_ns",
    "time_discovered_completed_ns",
)
"""Keys of a dump's entry whose numbers are columns, in the order of ``OpColumns.numbers``."""

_NONE = -(1 << 62)


class OpColumns(Sequence[Op]):
    """A sequence of operations. ``kinds``: an operation of each kind; ``kind``: which one.

    ``places``: positions in the dump; ``numbers``: one array for each of :data:`COLUMNS`, with the
    kind's own value where an entry has none. Equal to a tuple of the same operations.
    """

    __slots__ = ("kind", "kinds", "numbers", "places")

    def __init__(
        self,
        kinds: Sequence[Op],
        kind: array[int],
        places: array[int],
        numbers: tuple[array[int], ...],
    ) -> None:
        self.kinds = tuple(kinds)
        self.kind = kind
        self.places = places
        self.numbers = numbers

    @classmethod
    def of(cls, kinds: Sequence[Op | None], rows: Sequence[tuple[int | None, ...]]) -> OpColumns:
        """From rows of (number of the kind, :data:`COLUMNS`); rows whose kind is None are lost."""
        index: Sequence[int] = range(len(rows))
        if None in kinds:
            lost = {number for number, one in enumerate(kinds) if one is None}
            index = [i for i, row in enumerate(rows) if row[0] not in lost]
            rows = [rows[i] for i in index]
        columns = list(zip(*rows, strict=True)) or [()] * (1 + len(COLUMNS))
        numbers = tuple(array("q", _bounded(column)) for column in columns[1:])
        left = [one for one in kinds if one is not None]
        renumber: dict[int, int] = {}
        for number, one in enumerate(kinds):
            if one is not None:
                renumber[number] = len(renumber)
        kind = array("I", [renumber[int(k or 0)] for k in columns[0]])
        return cls(left, kind, array("I", index), numbers)

    def __len__(self) -> int:
        return len(self.kind)

    @overload
    def __getitem__(self, at: int) -> Op: ...

    @overload
    def __getitem__(self, at: slice) -> tuple[Op, ...]: ...

    def __getitem__(self, at: int | slice) -> Op | tuple[Op, ...]:
        if isinstance(at, slice):
            return tuple(self[i] for i in range(*at.indices(len(self))))
        return next(
            self._made((self.places[at],), (self.kind[at],), [(n[at],) for n in self.numbers])
        )

    def __iter__(self) -> Iterator[Op]:
        return self._made(self.places, self.kind, self.numbers)

    def _made(
        self, index: Iterable[int], kind: Iterable[int], numbers: Sequence[Iterable[int]]
    ) -> Iterator[Op]:
        kinds = self.kinds
        for i, k, record, seq, p2p, op_id, created, started, done in zip(
            index, kind, *numbers, strict=True
        ):
            a = kinds[k]
            yield Op(
                i,
                a.record_id if record == _NONE else record,
                a.group,
                a.seq if seq == _NONE else seq,
                a.op,
                a.backend,
                a.p2p_seq if p2p == _NONE else p2p,
                a.op_id if op_id == _NONE else op_id,
                a.is_p2p,
                a.peer,
                a.sizes_in,
                a.sizes_out,
                a.dtypes_in,
                a.dtypes_out,
                a.finished,
                a.started,
                a.retired,
                created if created > 0 else a.created_ns if created == _NONE else None,
                started if started > 0 else a.started_ns if started == _NONE else None,
                done if done > 0 else a.completed_ns if done == _NONE else None,
                a.timeout_ms,
                a.thread,
                a.frames,
            )

    def backends(self) -> Iterator[str]:
        """The backend of each operation that names one."""
        names = [one.backend for one in self.kinds]
        return (names[k] for k in self.kind if names[k])

    def seqs(self) -> Sequence[int]:
        """``seq`` of each operation."""
        column = self.numbers[COLUMNS.index("collective_seq_id")]
        if _NONE not in column:
            return column
        own = [one.seq for one in self.kinds]
        return [own[k] if s == _NONE else s for k, s in zip(self.kind, column, strict=True)]

    def __eq__(self, other: object) -> bool:
        if isinstance(other, OpColumns | tuple):
            return tuple(self) == tuple(other)
        return NotImplemented

    def __hash__(self) -> int:
        return hash((len(self), self.numbers[0].tobytes(), self.numbers[1].tobytes()))

    def __repr__(self) -> str:
        return f"OpColumns({len(self)} operations of {len(self.kinds)} kinds)"


def _bounded(column: Iterable[int | None]) -> list[int]:
    """Numbers that fit into 64 bits; None, and what does not fit, is the kind's own."""
    return [_NONE if one is None else one for one in column]


def how_many(ops: Sequence[Op], wanted: Callable[[Op], bool]) -> int:
    """How many operations are ``wanted``, which may depend on nothing that columns hold."""
    if not isinstance(ops, OpColumns):
        return sum(1 for op in ops if wanted(op))
    yes = [wanted(one) for one in ops.kinds]
    return sum(count for kind, count in Counter(ops.kind).items() if yes[kind])


def each(ops: Sequence[Op], wanted: Callable[[Op], bool], of: Callable[[Op], str]) -> list[str]:
    """What ``of`` tells of each operation that is ``wanted``; both depend on no column."""
    if not isinstance(ops, OpColumns):
        return [of(op) for op in ops if wanted(op)]
    told = [of(one) if wanted(one) else None for one in ops.kinds]
    return [text for kind in ops.kind if (text := told[kind]) is not None]


def newest_ns(ops: Sequence[Op]) -> int:
    """When the newest operation was created, in epoch nanoseconds; 0 when nothing tells."""
    if isinstance(ops, OpColumns) and all(one.created_ns is None for one in ops.kinds):
        return 0
    if isinstance(ops, OpColumns):
        return max(ops.numbers[COLUMNS.index("time_created_ns")], default=0)
    return max((op.created_ns or 0 for op in ops), default=0)
