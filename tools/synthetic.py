"""Score fabwatch and torchfrtrace on synthetic dumps: tools/scoreboard.py --synthetic [--write].

What can be decided from a set of dumps is written down in docs/hang-analysis.md, and once more
here as ``truth``: from who is a member, whose dump is there and what it holds, without a look at
what fabwatch makes of it.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import io
import pickle
import random
import re
import sys
import tempfile
import types
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:] = [p for p in sys.path if Path(p or ".").resolve() != HERE]

from fabwatch.signatures.diagnose import diagnose  # noqa: E402
from fabwatch.signatures.verdict import Verdict  # noqa: E402
from fabwatch.watchdog.evidence.reading import read  # noqa: E402

ROOT = HERE.parent
GENERATOR = ROOT / "tests" / "synthetic" / "gen_fr.py"
PAGE = ROOT / "docs" / "scoreboard-synthetic.md"
LAYOUTS = (("flat", 16), ("2d", 2), ("2d", 4), ("2d", 8))
"""Layout and TP width of 16 ranks: the faulty group has 16, 8, 4 and 2 members."""
CONDITIONS = ("all files", "rank 0 first", "culprit's absent", "even half", "low half", "any half")
DIFFER = ("size", "type", "dtype")
RANKS, ENTRIES = 16, 30


def generator() -> types.ModuleType:
    """The module that makes the dumps."""
    spec = importlib.util.spec_from_file_location("gen_fr", GENERATOR)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@dataclass(frozen=True)
class Truth:
    """What the visible dumps allow to be said; see docs/hang-analysis.md for the words.

    ``kind``: exact, lead, blind or quiet. ``culprits`` have to be named exactly (exact), or to be
    the only ones that may be singled out, with reserve (lead), or not at all (blind, quiet).
    ``hidden``: members whose dumps have to be asked for. ``stated``: that ranks differ is proven.
    """

    kind: str
    culprits: tuple[int, ...] = ()
    hidden: tuple[int, ...] = ()
    stated: bool = False


def truth(fault: str, culprit: int, members: Sequence[int], seen: Iterable[int]) -> Truth:
    """What can be said of one odd member of a group when only ``seen`` ranks left a dump."""
    visible = set(seen) & set(members)
    others = visible - {culprit}
    hidden = tuple(sorted(set(members) - visible))
    if fault in DIFFER and culprit in visible and others:
        if len(members) == 2:
            return Truth("exact", tuple(sorted(members)), stated=True)
        # The others outnumber the odd one however the hidden ones called, but for a tie, and in a
        # tie both sides are to blame: the odd one is among the culprits in every case.
        if len(others) > 1 and len(others) >= 1 + len(hidden):
            return Truth("exact", (culprit,), stated=True)
        return Truth("blind", (), hidden, stated=True)
    if fault in DIFFER and culprit in visible:
        return Truth("blind", (), hidden)  # it waits, and nobody is there to compare it with
    if not others:
        return Truth("quiet", (), hidden)  # nobody who waits has left a dump
    if culprit not in visible:
        return Truth("lead", hidden, hidden) if len(hidden) == 1 else Truth("blind", (), hidden)
    if fault == "missing":
        return Truth("exact", (culprit,))
    # It has finished what nobody can finish alone: no dump says on which side of the hop it broke.
    if len(others) > 1 and len(others) >= 1 + len(hidden):
        return Truth("lead", (culprit,))
    return Truth("blind", (), hidden)


@dataclass(frozen=True)
class Shot:
    """One question: which fault, whose, under which condition, whose dumps in which order."""

    layout: str
    tp: int
    fault: str
    culprit: int
    condition: str
    seen: tuple[int, ...]

    @property
    def size(self) -> int:
        """Members of the faulty group."""
        return RANKS if self.layout == "flat" else RANKS // self.tp


def order(culprit: int, condition: str) -> tuple[int, ...]:
    """Whose dumps are there under a condition, in reading order."""
    ranks = list(range(RANKS))
    rng = random.Random(f"{culprit}/{condition}")
    if condition == "rank 0 first":
        return tuple(ranks)
    if condition == "culprit's absent":
        ranks.remove(culprit)
    elif condition == "even half":
        ranks = ranks[::2]
    elif condition == "low half":
        ranks = ranks[: RANKS // 2]
    elif condition == "any half":
        ranks = rng.sample(ranks, RANKS // 2)
    rng.shuffle(ranks)
    return tuple(ranks)


@dataclass(frozen=True)
class Answer:
    """What a tool said: who is to blame, who is left, what to fetch, and whether it was sure."""

    named: tuple[int, ...] = ()
    suspects: tuple[int, ...] = ()
    sure: bool = False
    asks: tuple[str, ...] = ()
    error: str = ""


def ours(verdict: Verdict) -> Answer:
    """Fabwatch's verdict as an answer."""
    left = {r for root in verdict.hang.roots for r in (*root.ranks, *root.suspects)}
    named = set(verdict.culprits.ranks)
    # Whose fault it is can be certain although dumps alone never say why a rank did not come.
    sure = any(root.sure and named & set(root.ranks) for root in verdict.hang.roots)
    return Answer(
        tuple(sorted(named)),
        tuple(sorted(left)),
        sure or verdict.outcome == "diagnosed",
        verdict.asks,
    )


def theirs(dumps: dict[int, bytes], partial: bool) -> Answer:
    """Torchfrtrace's answer: ranks that it calls missing or culprit. Needs torch."""
    from torch.distributed.flight_recorder.components import builder  # type: ignore[import]

    details = {}
    for rank, data in dumps.items():
        dump = pickle.loads(data)  # made by this program a moment ago
        details[str(rank)] = {
            "host_name": f"host_rank{rank}", "rank": rank, "entries": dump["entries"],
            "version": dump["version"], "pg_config": dump["pg_config"],
        }  # fmt: skip
    args = argparse.Namespace(
        verbose=False, just_print_entries=False, allow_incomplete_ranks=partial, mismatch_cap=10
    )
    said: list[str] = []

    class Listener:
        def info(self, text: str, *values: Any) -> None:
            said.append(text % values if values else str(text))

        debug = warning = error = info

    from torch.distributed.flight_recorder.components import utils

    before = builder.logger, utils.logger
    builder.logger = utils.logger = Listener()
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            builder.build_db(details, args, "2.10")
    except Exception as error:  # whatever it raises is its answer
        return Answer(error=f"{type(error).__name__}: {error}")
    finally:
        builder.logger, utils.logger = before
    named: set[int] = set()
    for line in said:
        if line.startswith("missing ranks: "):
            named |= {int(n) for n in re.findall(r"\d+", line)}
        named |= {int(n) for n in re.findall(r"Culprit rank (\d+)", line)}
    return Answer(tuple(sorted(named)), sure=bool(named))


def grade(told: Truth, answer: Answer, full: bool) -> str:
    """``right``, ``wrong`` (an innocent is named, or more is claimed than is known) or ``short``.

    ``full``: the answer can say suspects, asks and reserve; of a tool without those only the
    names count.
    """
    blamed = set(answer.named)
    if told.kind == "exact":
        if blamed == set(told.culprits):
            return "right" if answer.sure else "short"
        return "wrong" if blamed - set(told.culprits) else "short"
    if blamed - set(told.culprits):
        return "wrong"
    if not full:
        return "right" if told.kind in ("blind", "quiet") or blamed else "short"
    if answer.sure and not told.stated:
        return "wrong"
    if told.kind == "lead" and set(answer.suspects) != set(told.culprits):
        return "short"
    return "right" if _asked(told, answer) else "short"


def _asked(told: Truth, answer: Answer) -> bool:
    """Whether what would decide is asked for."""
    if told.hidden:
        return any(set(told.hidden) <= _ranks_in(text) for text in answer.asks)
    return any("GPU utilisation" in text or "NIC byte" in text for text in answer.asks)


def _ranks_in(text: str) -> set[int]:
    """The ranks of ``flight-recorder dump of ranks 1-3, 7: why``."""
    listed = re.search(r"flight-recorder dumps? of ranks? ([\d, -]+)", text)
    out: set[int] = set()
    for part in re.findall(r"\d+(?:-\d+)?", listed[1]) if listed else ():
        first, _, last = part.partition("-")
        out |= set(range(int(first), int(last or first) + 1))
    return out


def shots(
    layouts: Sequence[tuple[str, int]] = LAYOUTS,
    culprits: Iterable[int] = range(RANKS),
    conditions: Sequence[str] = CONDITIONS,
) -> Iterator[Shot]:
    """Every question, those about the same dumps one after the other."""
    for layout, tp in layouts:
        for fault in generator().FAULTS:
            for culprit in culprits:
                for condition in conditions:
                    seen = order(culprit, condition)
                    yield Shot(layout, tp, fault, culprit, condition, seen)


@dataclass
class Result:
    """How both came out at one question; ``torch`` is "" where it was not asked."""

    shot: Shot
    told: Truth
    answer: Answer
    mark: str
    torch: str = ""
    torch_answer: Answer = Answer()


def run(questions: Iterable[Shot], beside: bool = False) -> list[Result]:
    """Ask fabwatch, and torchfrtrace too if ``beside``."""
    gen = generator()
    out: list[Result] = []
    key: tuple[object, ...] = ()
    dumps: dict[int, bytes] = {}
    members: tuple[int, ...] = ()
    with tempfile.TemporaryDirectory(prefix="fabwatch-synthetic-") as name:
        folder = Path(name)
        for shot in questions:
            if key != (shot.layout, shot.tp, shot.fault, shot.culprit):
                key = (shot.layout, shot.tp, shot.fault, shot.culprit)
                plan = gen.Plan(
                    RANKS, ENTRIES, shot.layout, shot.tp, shot.fault, shot.culprit, None
                )
                members = gen.faulty_members(plan)
                dumps = {r: pickle.dumps(gen.build(r, plan), protocol=2) for r in range(RANKS)}
                for rank, data in dumps.items():
                    (folder / f"nccl_trace_rank_{rank}").write_bytes(data)
            told = truth(shot.fault, shot.culprit, members, shot.seen)
            paths = [str(folder / f"nccl_trace_rank_{rank}") for rank in shot.seen]
            answer = ours(diagnose(read(paths)))
            one = Result(shot, told, answer, grade(told, answer, full=True))
            if beside:
                given = {rank: dumps[rank] for rank in shot.seen}
                one.torch_answer = theirs(given, partial=len(shot.seen) < RANKS)
                one.torch = grade(told, one.torch_answer, full=False)
                if one.torch_answer.error:
                    one.torch = "error"
            out.append(one)
    return out


def table(results: Sequence[Result]) -> str:
    """Markdown: a line for each fault and condition; right/asked for both, and what was wrong."""
    lines = []
    for title, of in (("fault", "fault"), ("condition", "condition"), ("group of", "size")):
        groups: dict[str, list[Result]] = defaultdict(list)
        for one in results:
            groups[str(getattr(one.shot, of))].append(one)
        lines += _part(title, groups)
    kinds: dict[str, list[Result]] = defaultdict(list)
    for one in results:
        kinds[one.told.kind].append(one)
    lines += _part("what can be said", kinds)
    lines += _part("", {"all": list(results)})
    return "\n".join(lines)


def _part(title: str, groups: dict[str, list[Result]]) -> list[str]:
    lines = [
        f"| {title} | asked | fabwatch right | wrong | short "
        "| torchfrtrace right | wrong | short | error |",
        "| --- |" + " ---: |" * 8,
    ]
    for name, some in groups.items():
        mine = Counter(one.mark for one in some)
        torch = Counter(one.torch for one in some if one.torch)
        beside = [str(torch[k]) if torch else "-" for k in ("right", "wrong", "short", "error")]
        cells = [name, len(some), mine["right"], mine["wrong"], mine["short"], *beside]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return [*lines, ""]


def main(write: bool) -> int:
    """Ask everything, print the tables, and write the page if told to."""
    try:
        import torch
    except ImportError:
        torch = None  # type: ignore[assignment]
    results = run(shots(), beside=torch is not None)
    version = f" (torch {torch.__version__})" if torch is not None else " (torch is not installed)"
    text = (
        "# Scoreboard on synthetic dumps\n\n"
        "<!-- Made by tools/scoreboard.py --synthetic --write. -->\n\n"
        f"16 ranks, one odd rank; each fault with each rank as the culprit, under "
        f"{len(CONDITIONS)} conditions, in groups of 16, 8, 4 and 2. What counts as right is "
        "defined in [hang-analysis.md](hang-analysis.md), from what the dumps hold and not from "
        f"what fabwatch says. torchfrtrace{version} is given the same dumps in the same order, "
        "with --allow-incomplete-ranks where some are absent; of it only the ranks that it names "
        "are judged.\n\n" + table(results)
    )
    print(text)
    for one in results:
        if one.mark != "right":
            print(f"{one.mark}: {one.shot} {one.told} {one.answer}", file=sys.stderr)
    if write:
        PAGE.write_text(text.rstrip() + "\n", encoding="utf-8")
    return 0
