"""Run the matrix of injected faults and controls through the command line; write docs/matrix.md.

    python -m fabwatch.chaos.drills --out /tmp/matrix --jobs 3            # everything
    python -m fabwatch.chaos.drills --only sigstop,gil --culprits 0,1     # some of it

Trials that are already in <out>/results.jsonl are not run again.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from fabwatch.chaos.drills import cgroups
from fabwatch.chaos.drills.cells import CELLS, ON_GPUS, Cell
from fabwatch.chaos.drills.trial import Setting, run

HEADER = (
    "| fault | culprit | named | outcome | first signature | grade | fabric | frozen after "
    "| right |"
)


def row(result: dict[str, Any]) -> str:
    """One line of the table."""
    frozen = "" if result["frozen_s"] is None else f"{result['frozen_s']:.1f} s"
    right = "yes" if result["right"] else "no: " + "; ".join(result["wrong"])
    who = "" if result["culprit"] is None else result["culprit"]
    named = ", ".join(map(str, result["named"])) or "-"
    return (
        f"| {result['cell']} | {who} | {named} | {result['outcome']} | {result['first'] or '-'} "
        f"| {result['grade'] or '-'} | {result['fabric']} | {frozen} | {right} |"
    )


def report(results: list[dict[str, Any]], argv: list[str]) -> str:
    """The page."""
    results = sorted(
        results, key=lambda r: (list(CELLS).index(r["cell"]), r["culprit"] or 0, r.get("trial", 0))
    )
    faults = [r for r in results if r["culprit"] is not None]
    controls = [r for r in results if r["culprit"] is None]
    frozen = [r["frozen_s"] for r in faults if r["frozen_s"] is not None]
    lines = [
        "# The matrix of injected faults",
        "",
        "Real `torchrun` jobs (4 ranks over Gloo on two CPU cores unless the command says "
        "otherwise), one fault each after 30 s of steady steps, wrapped by the command line.",
        "",
        f"Command: `python -m fabwatch.chaos.drills {' '.join(argv)}`".rstrip(),
        "",
        f"Faults: {sum(r['right'] for r in faults)} of {len(faults)} right. "
        f"Controls without alarm: {sum(r['right'] for r in controls)} of {len(controls)}.",
    ]
    if frozen:
        lines.append(
            f"Evidence frozen after the fault: median {statistics.median(frozen):.1f} s, "
            f"longest {max(frozen):.1f} s."
        )
    lines += ["", HEADER, "| --- " * 9 + "|", *map(row, results), ""]
    return "\n".join(lines)


def main(argv: list[str]) -> int:
    """Run what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only", help="cells, comma between; default: all")
    parser.add_argument("--culprits", default="0,2")
    parser.add_argument("--after", type=float, default=30.0)
    parser.add_argument("--timeout", type=float, default=40.0, help="of the process group, s")
    parser.add_argument("--world", type=int, default=4)
    parser.add_argument("--backend", default="gloo", choices=["gloo", "nccl"])
    parser.add_argument("--trials", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--page", type=Path, help="write the table here")
    options = parser.parse_args(argv)
    out = options.out or Path(tempfile.mkdtemp(prefix="fabwatch-matrix-"))
    out.mkdir(parents=True, exist_ok=True)
    log = out / "results.jsonl"
    done: list[dict[str, Any]] = []
    if log.exists():
        done = [json.loads(line) for line in log.read_text().splitlines()]
    ran = {(r["cell"], r["culprit"], r.get("trial", 0)) for r in done}
    todo: list[tuple[Cell, int | None, int]] = []
    setting = Setting(options.world, options.backend, options.after, options.timeout)
    gpu_only = {cell.name for cell in ON_GPUS} if options.backend == "gloo" else set()
    for name in (options.only or ",".join(CELLS)).split(","):
        if name in gpu_only:
            continue
        cell = CELLS[name]
        missing = [c for c in cell.needs if not cgroups.available(c)]
        if missing:
            print(f"skipped: {name}: no {', '.join(missing)} cgroup can be made", file=sys.stderr)
            continue
        culprits = [None] if cell.control else [int(c) for c in options.culprits.split(",")]
        todo += [
            (cell, c, t)
            for c in culprits
            for t in range(options.trials)
            if (cell.name, c, t) not in ran
        ]

    def one(item: tuple[Cell, int | None, int]) -> dict[str, Any]:
        cell, culprit, trial = item
        where = out / f"{cell.name}-{'none' if culprit is None else culprit}-{trial}"
        result = {**run(cell, culprit, where, setting).as_json(), "trial": trial}
        truth = {"acceptable_cause_ids": cell.accept, "culprit_ranks": result["expected"]}
        (where / "truth.json").write_text(json.dumps(truth))  # for `fabwatch signatures measure`
        with log.open("a") as file:
            file.write(json.dumps(result) + "\n")
        print(row(result), flush=True)
        return result

    with ThreadPoolExecutor(options.jobs) as pool:
        done += pool.map(one, todo)
    if options.page:
        options.page.write_text(report(done, argv))
    wrong = [r for r in done if not r["right"]]
    print(f"{len(done) - len(wrong)} passed, {len(wrong)} failed")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
