"""The collectives of one group, by sequence number and rank, without an object for each.

A lane is where each sequence number of one rank stands in its dump. Operations are taken from the
dump when they are asked for; whether ranks agree is told by comparing lanes.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence

from fabwatch.watchdog.evidence.observations import Op
from fabwatch.watchdog.evidence.op_columns import OpColumns


class Lanes(Mapping[int, Mapping[int, Op]]):
    """Sequence number -> rank -> operation, of one group."""

    def __init__(self) -> None:
        self._lanes: dict[int, list[tuple[Sequence[Op], dict[int, int]]]] = {}

    def add(self, rank: int, ops: Sequence[Op], places: dict[int, int]) -> None:
        """Add a rank's dump: ``places`` says where in ``ops`` each sequence number stands."""
        self._lanes.setdefault(rank, []).append((ops, places))

    @property
    def ranks(self) -> tuple[int, ...]:
        """Who recorded anything here."""
        return tuple(self._lanes)

    def __getitem__(self, seq: int) -> dict[int, Op]:
        out = {
            rank: ops[places[seq]]
            for rank, lanes in self._lanes.items()
            for ops, places in lanes
            if seq in places
        }
        if not out:
            raise KeyError(seq)
        return out

    def __iter__(self) -> Iterator[int]:
        seen: set[int] = set()
        for lanes in self._lanes.values():
            for _, places in lanes:
                seen |= places.keys()
        return iter(sorted(seen))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def of(self, seq: int, rank: int) -> Op | None:
        """One rank's operation, None when it recorded none."""
        for ops, places in reversed(self._lanes.get(rank, ())):
            if seq in places:
                return ops[places[seq]]
        return None

    def differing(self, of: Callable[[Op], Hashable]) -> list[int]:
        """Sequence numbers at which ranks differ in what ``of`` tells of an operation, ascending.

        ``of`` may depend on nothing that differs between entries of one kind of operation (its
        numbers and times). Linear in entries.
        """
        usual: dict[int, Hashable] = {}
        differ: set[int] = set()
        for lanes in self._lanes.values():
            for ops, places in lanes:
                mine = _values(ops, places, of)
                odd = mine.items() - usual.items()
                differ.update(seq for seq, _ in odd if seq in usual)
                usual.update((seq, value) for seq, value in odd if seq not in usual)
        return sorted(differ)


def _values(
    ops: Sequence[Op], places: Mapping[int, int], of: Callable[[Op], Hashable]
) -> dict[int, Hashable]:
    if not isinstance(ops, OpColumns):
        return {seq: of(ops[i]) for seq, i in places.items()}
    values = [of(one) for one in ops.kinds]
    kind = ops.kind
    return {seq: values[kind[i]] for seq, i in places.items()}
