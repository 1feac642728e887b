"""Finds operations on which ranks disagree at one sequence number, and who is in the minority."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from math import prod

from fabwatch.signatures.analysis.lanes import Lanes
from fabwatch.watchdog.evidence.observations import Frame, Op

SCALE_FREE = frozenset({"barrier", "monitored_barrier", "coalesced", "send_recv"})


@dataclass(frozen=True, slots=True)
class Split:
    """A disagreement at one operation.

    ``aspect`` is type, size, dtype, root or call-site. ``ranks`` is the minority, or everybody in
    a tie, or () while members whose call nobody has seen may turn the majority; these are then
    ``unseen``. ``values`` maps a readable value to its ranks, most common first.
    """

    group: str
    seq: int
    op: str
    aspect: str
    ranks: tuple[int, ...]
    tie: bool
    values: tuple[tuple[str, tuple[int, ...]], ...]
    unfinished: bool = True
    unseen: tuple[int, ...] = ()

    @property
    def odd(self) -> tuple[int, ...]:
        """Whoever differs from the most common value seen; everybody if none is."""
        counts = [len(who) for _, who in self.values]
        rest = self.values if counts.count(counts[0]) > 1 else self.values[1:]
        return tuple(sorted(r for _, who in rest for r in who))


def family(op: str) -> str:
    """The operation without the spelling of its output buffers: all_gather_base -> all_gather."""
    name = op
    for tail in ("_coalesced", "_base", "_into_tensor", "_tensor", "_single"):
        name = name.removesuffix(tail)
    return {"_all_gather": "all_gather", "_reduce_scatter": "reduce_scatter"}.get(name, name)


def total(sizes: Sequence[Sequence[int]]) -> int | None:
    """Elements over all tensors; None when nothing is recorded."""
    return sum(prod(shape) for shape in sizes) if sizes else None


def vote(values: Mapping[int, Hashable]) -> tuple[tuple[int, ...], bool]:
    """The minority's ranks, and whether it is a tie (then everybody)."""
    counts = Counter(values.values()).most_common()
    if len(counts) < 2:
        return (), False
    if len(values) == 2 or counts[0][1] == counts[1][1]:
        return tuple(sorted(values)), True
    return tuple(sorted(r for r, v in values.items() if v != counts[0][0])), False


def settled(values: Mapping[int, Hashable], unseen: int) -> bool:
    """Whether the minority stays to blame however ``unseen`` more members would have voted.

    The most common value must lead by as many as are unseen: at worst it is a tie then, which
    blames the minority too.
    """
    counts = [n for _, n in Counter(values.values()).most_common(2)]
    return not unseen or counts[0] - (counts[1] if len(counts) > 1 else 0) >= unseen


def split(
    group: str,
    seq: int,
    op: str,
    aspect: str,
    values: Mapping[int, Hashable],
    unfinished: bool,
    members: Sequence[int] = (),
) -> Split | None:
    """A Split when ``values`` (rank -> value) disagree, else None.

    ``members`` are all who should have called; () when that is not known.
    """
    ranks, tie = vote(values)
    if not ranks:
        return None
    unseen: tuple[int, ...] = tuple(r for r in members if r not in values)
    if settled(values, len(unseen)):
        unseen = ()
    else:
        ranks, tie = (), False
    by_value: dict[str, list[int]] = defaultdict(list)
    for rank, value in values.items():
        by_value[str(value)].append(rank)
    table = sorted(by_value.items(), key=lambda item: (-len(item[1]), item[0]))
    readable = tuple((value, tuple(sorted(who))) for value, who in table)
    return Split(group, seq, op, aspect, ranks, tie, readable, unfinished, unseen)


def find(group: str, members: Sequence[int], by_seq: Lanes) -> list[Split]:
    """The first disagreement of one group: every aspect that differs at that operation.

    Only operations that at least two ranks recorded can tell. Linear in entries.
    """
    for seq in by_seq.differing(_signature):
        found = _compare(group, seq, members, by_seq[seq])
        if found:
            return found
    return []


def _signature(op: Op) -> Hashable:
    """What is the same for all entries of one operation in the cheap common case."""
    return op.op, op.sizes_in, op.sizes_out, op.dtypes_in


def _compare(group: str, seq: int, members: Sequence[int], ops: Mapping[int, Op]) -> list[Split]:
    unfinished = any(not op.finished for op in ops.values())
    kinds = {rank: family(op.op) for rank, op in ops.items()}
    name = Counter(kinds.values()).most_common(1)[0][0]
    differs = split(group, seq, name, "type", kinds, unfinished, members)
    if differs:
        return [differs]
    if name in SCALE_FREE:
        return []
    out = []
    sizes = _sizes(name, members, ops)
    if sizes and (one := split(group, seq, name, "size", sizes, unfinished, members)):
        out.append(one)
    dtypes = {
        r: (op.dtypes_in or op.dtypes_out)[0]
        for r, op in ops.items()
        if op.dtypes_in or op.dtypes_out
    }
    if one := split(group, seq, name, "dtype", dtypes, unfinished, members):
        out.append(one)
    return out


def _sizes(name: str, members: Sequence[int], ops: Mapping[int, Op]) -> dict[int, int]:
    """Rank -> elements on the side that has to agree; {} where sizes may legally differ."""
    ins = {r: t for r, op in ops.items() if (t := total(op.sizes_in)) is not None}
    outs = {r: t for r, op in ops.items() if (t := total(op.sizes_out)) is not None}
    if name in ("all_reduce", "broadcast", "reduce"):
        return ins or outs
    if name == "gather":
        return ins
    if name == "scatter":
        return outs
    if name == "all_gather":
        return _gathered(members, ops, ins, outs)
    if name == "reduce_scatter":
        return _gathered(members, ops, outs, ins)
    return {}


def _gathered(
    members: Sequence[int], ops: Mapping[int, Op], parts: dict[int, int], wholes: dict[int, int]
) -> dict[int, int]:
    """The whole must agree; parts too, unless they legally add up to it unevenly."""
    if len(set(wholes.values())) > 1:
        return wholes
    if len(set(parts.values())) < 2:
        return {}
    whole = next(iter(wholes.values()), None)
    everybody = len(parts) == len(members)
    if everybody and whole is not None and sum(parts.values()) == whole:
        return {}
    even = whole is not None and any(p * len(members) == whole for p in parts.values())
    fixed = any(op.op.endswith(("_base", "_tensor", "_single")) for op in ops.values())
    return parts if fixed or (everybody and even) else {}


def call_site(frames: Sequence[Frame]) -> str:
    """Where the user's code called: the first frame outside torch and its wrappers."""
    for frame in frames:
        if "torch/" not in frame.file and "site-packages" not in frame.file and frame.file:
            return f"{frame.file.rsplit('/', 1)[-1]}:{frame.line} {frame.function}"
    return ""


def shifted(
    group: str, sites: Mapping[int, Mapping[int, str]], names: Mapping[int, str]
) -> Split | None:
    """Find ranks that made one call more than the others and have been shifted ever since.

    ``sites`` is rank -> seq -> call site, ``names`` seq -> op. A shift is told from an honest
    ``if rank == 0`` by what follows: the minority's next call is what the majority called now.
    """
    if len(sites) < 2:
        return None
    common = sorted(set.intersection(*(set(s) for s in sites.values())))
    for position, seq in enumerate(common):
        here = {rank: by[seq] for rank, by in sites.items() if by[seq]}
        if len(here) != len(sites) or len(set(here.values())) < 2:
            continue
        counts = Counter(here.values())
        usual = counts.most_common(1)[0][0]
        later = common[position + 1 :]
        ranks, tie = vote(here)
        ahead = tuple(r for r in here if here[r] != usual) if not tie else ranks
        if later and all(
            _is_shifted(sites, [q for q in here if here[q] != here[r]], r, seq, later)
            for r in ahead
        ):
            return split(group, seq, names.get(seq, ""), "call-site", here, True)
        if tie and later:
            for value in sorted(counts):
                some = tuple(sorted(r for r in here if here[r] == value))
                rest = [r for r in here if here[r] != value]
                if all(_is_shifted(sites, rest, r, seq, later) for r in some):
                    table = tuple(
                        (v, tuple(sorted(r for r in here if here[r] == v))) for v in sorted(counts)
                    )
                    op = names.get(seq, "")
                    return Split(group, seq, op, "call-site", some, False, table)
    return None


def _is_shifted(
    sites: Mapping[int, Mapping[int, str]],
    rest: Sequence[int],
    rank: int,
    seq: int,
    later: Sequence[int],
) -> bool:
    """Whether ``rank`` calls at each later number what ``rest`` called one number before."""
    if not rest or sites[rank][seq] in {sites[q][seq] for q in rest}:
        return False
    other = sites[rest[0]]
    steps = [s for s in later if s - 1 in other and s in sites[rank]][:50]
    return bool(steps) and all(sites[rank][s] == other[s - 1] for s in steps)
