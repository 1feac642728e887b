"""Measure matching: every signature against the facts of a large job, and the library's loading.

    python tools/bench_match.py --ranks 1000

The facts are made up: a hang of many ranks with one culprit, a few kinds of facts about every
single rank, and logs that tell of a hundred different ranks. Nothing passes or fails.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:] = [p for p in sys.path if Path(p or ".").resolve() != HERE]

from fabwatch.signatures.loader import load  # noqa: E402
from fabwatch.signatures.matching import match  # noqa: E402
from fabwatch.watchdog.evidence.facts import Facts, fact  # noqa: E402
from fabwatch.watchdog.evidence.vocabulary import SOURCES, VOCABULARY  # noqa: E402


def made(ranks: int) -> tuple[Facts, dict[int, str]]:
    """Facts of a job of ``ranks`` ranks, eight on each host, and who lives where."""
    everyone = range(ranks)
    facts = Facts(ranks=set(everyone))
    for source in SOURCES:
        facts.look(source, *everyone)
    for rank in everyone:
        mine = {"ranks": [rank], "cites": [f"ranks/{rank}/pyspy_rank_{rank}.txt:3"]}
        facts.add(fact("wait.waiting" if rank % 50 else "wait.root", kind="host-stall", **mine))
        facts.add(fact("stack.in-collective" if rank % 3 else "stack.in-dataloader", **mine))
        facts.add(fact("collective.lagging", lag=rank % 4, **mine))
        if rank % 10 == 0:
            facts.add(fact("exception.consequent", **mine), fact("timeout.reported", **mine))
    for number, name in enumerate(sorted(VOCABULARY)):
        rank = 7 * number % ranks
        facts.add(fact(name, ranks=[rank], cites=[f"job.log:{number}"]))
    return facts, {rank: f"node{rank // 8}" for rank in everyone}


def bench(ranks: int, times: int) -> None:
    """Print the figures."""
    library = load()
    facts, hosts = made(ranks)
    took = []
    for _ in range(times):
        begin = time.process_time()
        found = match(library, facts, hosts)
        took.append(time.process_time() - begin)
    standing = sum(one.grade.stands for one in found)
    print(
        f"match: {len(library)} signatures against {len(facts.facts)} facts of {ranks} ranks: "
        f"{statistics.median(took):.2f} s of CPU (median of {times}; {standing} stand)"
    )
    code = (
        "import time; t = time.process_time()\n"
        "from fabwatch.signatures.loader import load\n"
        "load(); print(time.process_time() - t)"
    )
    for what, cache in (("kept", None), ("parsed", "")):
        environ = {**os.environ, **({} if cache is None else {"FABWATCH_CACHE": cache})}
        done = [
            float(subprocess.run([sys.executable, "-c", code], env=environ, text=True, check=True,
                                 timeout=120, capture_output=True).stdout)
            for _ in range(times)
        ]  # fmt: skip
        print(f"library, {what}: {statistics.median(done):.2f} s of CPU, imports included")
    helps = []
    for _ in range(3 * times):
        begin = time.perf_counter()
        subprocess.run([sys.executable, "-m", "fabwatch", "--help"], check=True, timeout=60,
                       stdout=subprocess.DEVNULL)  # fmt: skip
        helps.append(time.perf_counter() - begin)
    print(f"fabwatch --help: {min(helps) * 1000:.0f} ms at best, "
          f"median {statistics.median(helps) * 1000:.0f} ms")  # fmt: skip


def main(argv: list[str]) -> None:
    """Read the options."""
    parser = argparse.ArgumentParser(prog="tools/bench.py match", description=__doc__)
    parser.add_argument("--ranks", type=int, default=1000)
    parser.add_argument("--times", type=int, default=5)
    given = parser.parse_args(argv)
    bench(given.ranks, given.times)


if __name__ == "__main__":
    main(sys.argv[1:])
