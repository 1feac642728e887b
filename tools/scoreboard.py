"""Score the matcher on labelled evidence: tools/scoreboard.py [FOLDER...] [--json] [--write].

Each case is a folder with a ``truth.json``. Right is: an acceptable id first and diagnosed; for a
case that evidence cannot decide, no diagnosis (or an acceptable one). ``--shuffle SEED`` changes
hosts, paths, addresses, sizes and sequence numbers of every case at random, consistently within
the case; a score that falls then was learnt by heart. ``--synthetic`` scores generated dumps of
every fault and every culprit, torchfrtrace beside (tools/synthetic.py).
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:] = [p for p in sys.path if Path(p or ".").resolve() != HERE]

from fabwatch.signatures.diagnose import diagnose  # noqa: E402
from fabwatch.signatures.labels import Case, cases, evidence  # noqa: E402
from fabwatch.signatures.verdict import Verdict  # noqa: E402
from fabwatch.watchdog.evidence.reading import read  # noqa: E402

ROOT = HERE.parent
PAGE = ROOT / "docs" / "scoreboard.md"
CORPORA = tuple(ROOT / "tests" / name for name in ("incidents", "recorded", "unseen"))
UNDECIDED = frozenset({"insufficient-evidence", "undecidable", "cannot-tell"})
_KEEP = 4


@dataclass
class Score:
    """How one case came out: ``result`` is right, third, wrong, abstained or silent."""

    name: str
    cause: str
    layer: str
    expected: str
    outcome: str
    result: str
    top: list[str] = field(default_factory=list)
    in_three: bool = False
    notes: list[str] = field(default_factory=list)


def judge(case: Case, verdict: Verdict) -> Score:
    """Compare a verdict with the label."""
    standing = [one.id for one in verdict.signatures if one.grade in ("likely", "confirmed")
                and one.decided]  # fmt: skip
    top = [one.id for one in verdict.signatures][:_KEEP]
    diagnosed = verdict.outcome == "diagnosed" and bool(standing)
    out = Score(case.name, case.cause, case.layer, case.expected, verdict.outcome, "", top)
    out.in_three = any(one in case.right for one in top[:3])
    first_right = bool(top) and top[0] in case.right
    if case.expected == "healthy":
        quiet = verdict.outcome == "cannot-tell" and not diagnosed
        out.result = "right" if verdict.outcome == "healthy" else "abstained" if quiet else "wrong"
    elif case.expected in UNDECIDED:
        if not diagnosed:
            out.result = "silent" if verdict.outcome == "healthy" else "right"
        else:
            out.result = "right" if standing[0] in case.right else "wrong"
        out.in_three = out.in_three or out.result == "right"
    elif verdict.outcome == "cannot-tell" and first_right and not verdict.signatures[0].decided:
        out.result = "right"  # the label itself is a state without a cause
    elif diagnosed:
        out.result = "right" if standing[0] in case.right else "wrong"
    elif verdict.outcome == "healthy":
        out.result = "silent"
    else:
        out.result = "abstained"
        if first_right:
            out.notes.append("first, but not said aloud")
    if case.ranks is not None and set(case.ranks) != set(verdict.culprits.ranks):
        out.notes.append(f"culprits {list(verdict.culprits.ranks)}, not {list(case.ranks)}")
    if case.fabric and verdict.fabric not in case.fabric:
        out.notes.append(f"fabric {verdict.fabric}, not {case.fabric}")
    if case.symptom and case.symptom != verdict.symptom and diagnosed:
        out.notes.append(f"symptom {verdict.symptom}, not {case.symptom}")
    return out


def score(found: Iterable[Case], seed: int | None = None) -> list[Score]:
    """Diagnose every case; with ``seed`` on a copy whose particulars were changed."""
    out = []
    for case in found:
        if seed is None:
            out.append(judge(case, diagnose(read(evidence(case)))))
            continue
        with tempfile.TemporaryDirectory(prefix="fabwatch-shuffle-") as folder:
            from perturb import copy_changed  # type: ignore[import-not-found]

            paths = copy_changed(evidence(case), Path(folder), f"{seed}/{case.name}")
            out.append(judge(case, diagnose(read(paths))))
    return out


def summary(scores: list[Score]) -> dict[str, Any]:
    """The numbers of one corpus."""
    told = [s for s in scores if s.expected not in UNDECIDED]
    asked = [s for s in scores if s.expected in UNDECIDED]
    layers: dict[str, Counter[str]] = defaultdict(Counter)
    for one in scores:
        layers[one.layer or "?"][one.result] += 1
    return {
        "cases": len(scores),
        "right": sum(s.result == "right" for s in scores),
        "in_three": sum(s.result == "right" or s.in_three for s in scores),
        "wrong_confident": sum(s.result == "wrong" for s in scores),
        "abstained": sum(s.result == "abstained" for s in scores),
        "silent": sum(s.result == "silent" for s in scores),
        "to_name": len(told),
        "to_leave_open": len(asked),
        "left_open": sum(s.result == "right" for s in asked),
        "layers": {name: dict(found) for name, found in sorted(layers.items())},
        "confusions": [
            f"{s.cause} -> {s.top[0] if s.top else s.outcome}" for s in scores
            if s.result == "wrong"
        ],
    }  # fmt: skip


def table(title: str, scores: list[Score]) -> str:
    """The page's part about one corpus."""
    total = summary(scores)
    size = max(total["cases"], 1)
    lines = [
        f"## {title}",
        "",
        f"{total['cases']} cases: top-1 {total['right']} ({100 * total['right'] / size:.0f} %), "
        f"top-3 {total['in_three']} ({100 * total['in_three'] / size:.0f} %), "
        f"wrong but confident {total['wrong_confident']}, abstained {total['abstained']}, "
        f"called healthy {total['silent']}; of {total['to_leave_open']} that the evidence cannot "
        f"decide {total['left_open']} were left open.",
        "",
        "| case | cause | layer | outcome | result | first | notes |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for one in scores:
        first = one.top[0] if one.top else ""
        lines.append(
            f"| {one.name} | {one.cause} | {one.layer} | {one.outcome} | {one.result} | {first} | "
            f"{'; '.join(one.notes)} |"
        )
    if total["confusions"]:
        lines += ["", "Confusions: " + "; ".join(total["confusions"]) + "."]
    return "\n".join(lines) + "\n"


def main(argv: list[str]) -> int:
    """Print the board; 2 for a folder without cases."""
    parser = argparse.ArgumentParser(prog="tools/scoreboard.py", description=__doc__)
    parser.add_argument("folders", nargs="*", type=Path)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--shuffle", type=int, metavar="SEED")
    parser.add_argument("--write", action="store_true", help=f"write {PAGE.name} as well")
    parser.add_argument("--only", default="", help="cases whose name or cause holds this text")
    parser.add_argument("--synthetic", action="store_true", help="score generated dumps instead")
    given = parser.parse_args(argv)
    sys.path.append(str(HERE))
    if given.synthetic:
        import synthetic  # type: ignore[import-not-found]

        return int(synthetic.main(given.write))
    boards: dict[str, list[Score]] = {}
    for folder in given.folders or [f for f in CORPORA if f.is_dir()]:
        found = [c for c in cases(folder) if given.only in c.name + " " + c.cause]
        if found:
            boards[folder.name] = score(found, given.shuffle)
    if not boards:
        print("no folder with a truth.json below it", file=sys.stderr)
        return 2
    if given.json:
        print(json.dumps({name: {**summary(b), "scores": [asdict(s) for s in b]}
                          for name, b in boards.items()}, indent=1))  # fmt: skip
    else:
        print("\n".join(table(name, board) for name, board in boards.items()))
    if given.write:
        head = "# Scoreboard\n\n<!-- Made by tools/scoreboard.py --write. -->\n\n"
        PAGE.write_text(head + "\n".join(table(n, b) for n, b in boards.items()), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
