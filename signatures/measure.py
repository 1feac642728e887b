"""Fits decibans to labelled runs, to be read beside those that signatures declare.

For a clue and a signature the runs are counted in which the clue was yes or no, apart for runs
that the signature explains and for all others; unknown counts for neither. With ``y`` yes of ``n``
known, a share is ``(y + a) / (n + 2a)``: the smoothing ``a`` keeps a count of 0 from meaning
"never". Decibans are 10 x log10 of the ratio of the two shares.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fabwatch.signatures.analysis import analyse
from fabwatch.signatures.labels import Case, evidence
from fabwatch.signatures.matching import Match, match
from fabwatch.signatures.model import Clue, Library, Signature
from fabwatch.watchdog.evidence.known import Known
from fabwatch.watchdog.evidence.reading import read, versions_of

SMOOTHING = 0.5
"""Added to every count (Jeffreys)."""
ENOUGH = 5
"""Runs of each side in which somebody could look, before a declared weight is called off."""
_DECIBANS = 10 / math.log(10)


@dataclass(frozen=True, slots=True)
class Run:
    """A labelled run as the matcher saw it: ``right`` ids, none for a healthy one."""

    name: str
    right: frozenset[str]
    matches: dict[str, Match]


@dataclass(slots=True)
class Count:
    """How often a clue was yes, no, and unknown."""

    yes: int = 0
    no: int = 0
    unknown: int = 0

    @property
    def known(self) -> int:
        """Runs in which somebody could look."""
        return self.yes + self.no

    def add(self, known: Known) -> None:
        """One more run."""
        if known is Known.YES:
            self.yes += 1
        elif known is Known.NO:
            self.no += 1
        else:
            self.unknown += 1


@dataclass(frozen=True, slots=True)
class Weight:
    """One clue: what is declared, and what the runs say, in decibans.

    ``mine`` are counts of runs with this failure, ``others`` of those without. ``give`` are two
    standard errors of ``present`` and ``absent``; None where a side has no run.
    """

    signature: str
    clue: Clue
    mine: Count
    others: Count
    present: float | None
    absent: float | None
    give: tuple[float, float] = (0.0, 0.0)

    @property
    def off(self) -> bool:
        """Whether a declared weight lies further off than two standard errors and 3 decibans.

        False where fewer than ENOUGH runs of one side tell, and where no run shows the fact.
        """
        if min(self.mine.known, self.others.known) < ENOUGH or not self.mine.yes + self.others.yes:
            return False
        pairs = (
            (self.clue.present, self.present, self.give[0]),
            (self.clue.absent, self.absent, self.give[1]),
        )
        return any(
            said != 0 and found is not None and abs(said - found) > max(give, 3.0)
            for said, found, give in pairs
        )


def run_of(case: Case, library: Library) -> Run:
    """Read a labelled case and match it."""
    reading = read(evidence(case))
    analysis = analyse(reading)
    found = match(library, analysis.facts, analysis.hosts, versions_of(reading))
    return Run(case.name, frozenset(case.right), {one.id: one for one in found})


def measure(
    library: Library,
    runs: Iterable[Run],
    only: Iterable[Signature] | None = None,
    smoothing: float = SMOOTHING,
) -> list[Weight]:
    """The weight of every clue of ``only`` (default: those that some run is labelled with)."""
    every = list(runs)
    labelled = {name for run in every for name in run.right}
    chosen = list(only) if only is not None else [
        one for one in library.signatures.values() if one.id in labelled
    ]  # fmt: skip
    return [
        _weight(one, number, every, library, smoothing)
        for one in chosen
        for number in range(len(one.clues))
    ]


def _weight(
    one: Signature, number: int, runs: Sequence[Run], library: Library, smoothing: float
) -> Weight:
    mine, others = Count(), Count()
    akin = {one.id, *one.explains, *library.ancestors(one.id)}
    for run in runs:
        found = run.matches.get(one.id)
        if found is None:
            continue
        known = found.points[number].known
        if one.id in run.right:
            mine.add(known)
        elif not akin & run.right and not _above(run.right, one.id, library):
            others.add(known)
    clue = one.clues[number]
    if not mine.known or not others.known:
        return Weight(one.id, clue, mine, others, None, None)
    present, give_present = _ratio(mine.yes, mine.known, others.yes, others.known, smoothing)
    absent, give_absent = _ratio(mine.no, mine.known, others.no, others.known, smoothing)
    return Weight(one.id, clue, mine, others, present, absent, (give_present, give_absent))


def _above(right: Iterable[str], name: str, library: Library) -> bool:
    """Whether a right answer is a special form of ``name`` or a cause of it: then it holds too."""
    return any(
        name in library.ancestors(one)
        or (one in library.signatures and name in library.signatures[one].explains)
        for one in right
    )


def _ratio(y1: int, n1: int, y0: int, n0: int, smoothing: float) -> tuple[float, float]:
    """Decibans and two standard errors of the ratio of two smoothed shares."""
    size1, size0 = n1 + 2 * smoothing, n0 + 2 * smoothing
    p1, p0 = (y1 + smoothing) / size1, (y0 + smoothing) / size0
    error = math.sqrt((1 - p1) / (size1 * p1) + (1 - p0) / (size0 * p0))
    return _DECIBANS * math.log(p1 / p0), 2 * _DECIBANS * error


def table(weights: Iterable[Weight]) -> str:
    """Declared beside measured, one clue a line; ``!`` where they differ by more than the error."""
    lines = []
    last = ""
    for one in weights:
        if one.signature != last:
            last = one.signature
            mine, others = one.mine, one.others
            lines += [
                "",
                f"{last}: {mine.known + mine.unknown} runs with it, "
                f"{others.known + others.unknown} without",
                f"  {'declared':>9}  {'measured, ± 2 errors':<24}  {'with':>7}  {'without':>7}",
            ]
        declared = f"{one.clue.present:+.0f}/{one.clue.absent:+.0f}"
        if one.present is None or one.absent is None:
            measured = "nobody could look"
        else:
            measured = (
                f"{one.present:+.1f} ± {one.give[0]:.1f} / {one.absent:+.1f} ± {one.give[1]:.1f}"
            )
        lines.append(
            f"{'!' if one.off else ' '} {declared:>9}  {measured:<24}  "
            f"{one.mine.yes:>3}/{one.mine.known:<3}  {one.others.yes:>3}/{one.others.known:<3}  "
            f"{one.clue.fact}{_detail(one.clue)}"
        )
    return "\n".join(lines).lstrip("\n") + "\n" if lines else ""


def _detail(clue: Clue) -> str:
    said = ", ".join(f"{key}: {' or '.join(values)}" for key, values in clue.detail)
    return f" ({said})" if said else ""


def as_dicts(weights: Iterable[Weight]) -> list[dict[str, object]]:
    """The same for programs."""
    return [
        {
            "signature": one.signature,
            "fact": one.clue.fact,
            "detail": {key: list(values) for key, values in one.clue.detail},
            "declared": {"present": one.clue.present, "absent": one.clue.absent},
            "measured": {"present": one.present, "absent": one.absent},
            "two_errors": {"present": one.give[0], "absent": one.give[1]},
            "with": {"yes": one.mine.yes, "no": one.mine.no, "unknown": one.mine.unknown},
            "without": {
                "yes": one.others.yes, "no": one.others.no, "unknown": one.others.unknown,
            },
            "differs": one.off,
        }
        for one in weights
    ]  # fmt: skip
