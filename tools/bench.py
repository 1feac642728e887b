"""Measure fabwatch: what watching costs the job, how fast it starts and how fast it matches.

    python tools/bench.py overhead --pairs 12
    python tools/bench.py startup
    python tools/bench.py match --ranks 1000

Figures of overhead and startup come from processes run alternately on the same machine in the
same run, and are printed with their interval. Nothing here passes or fails: the reader judges.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

# This script's folder holds fabwatch/ without its other halves; the installed package is meant.
HERE = Path(__file__).resolve().parent
sys.path[:] = [p for p in sys.path if Path(p or ".").resolve() != HERE]

if TYPE_CHECKING:
    from fabwatch.watchdog.evidence.facts import Facts

ENQUEUE = ["-m", "fabwatch.chaos.workloads.enqueue"]
TRAIN = ["-m", "fabwatch.chaos.workloads.train"]
TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


def interval(values: list[float], of: Callable[[list[float]], float]) -> tuple[float, float]:
    """A 95 % bootstrap interval (10,000 resamples, seeded) of a statistic."""
    rng = random.Random(1)
    drawn = sorted(of(rng.choices(values, k=len(values))) for _ in range(10_000))
    return drawn[249], drawn[9749]


def environment() -> dict[str, str]:
    """The environment of both sides: torchrun of this interpreter first on PATH."""
    environ = {k: v for k, v in os.environ.items() if not k.startswith("FABWATCH_")}
    environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{environ.get('PATH', '')}"
    return environ


def job(wrapped: bool, ranks: int, arguments: list[str], extra: dict[str, str]) -> tuple[str, str]:
    """Run one job to its end (at most 5 minutes): its standard output and error."""
    with tempfile.TemporaryDirectory() as folder:
        wrap = [sys.executable, "-m", "fabwatch", "--out", folder] if wrapped else []
        done = subprocess.run(
            [*wrap, "torchrun", "--nproc-per-node", str(ranks), *arguments],
            env={**environment(), **extra},
            capture_output=True,
            text=True,
            timeout=300,
            check=True,
            cwd=folder,
        )
    return done.stdout, done.stderr


def pairs(
    count: int, measure: Callable[[bool], float], name: str
) -> tuple[list[float], list[float]]:
    """``count`` values of each side, the order swapped from pair to pair."""
    bare: list[float] = []
    wrapped: list[float] = []
    for number in range(count):
        for watched in (False, True) if number % 2 else (True, False):
            (wrapped if watched else bare).append(measure(watched))
        print(f"\r{name}: pair {number + 1} of {count}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return bare, wrapped


def per_collective(count: int, backend: str, ranks: int) -> None:
    """Cost of one collective's call, with the torch version's own defaults on both sides."""

    def measure(watched: bool) -> float:
        out, _ = job(watched, ranks, [*ENQUEUE, "--backend", backend], {})
        line = next(line for line in out.splitlines() if line.startswith("{"))
        return float(json.loads(line)["enqueue_p5"])

    bare, wrapped = pairs(count, measure, "per collective")
    added = [w - b for b, w in zip(bare, wrapped, strict=True)]
    low, high = interval(added, statistics.median)
    print(
        f"per collective ({backend}, {ranks} rank(s), 5th percentile of enqueue, {count} pairs): "
        f"bare {statistics.median(bare) / 1000:.2f} us, wrapped "
        f"{statistics.median(wrapped) / 1000:.2f} us, added {statistics.median(added) / 1000:+.2f} "
        f"us (95 % {low / 1000:+.2f} .. {high / 1000:+.2f})"
    )


def step_ratio(count: int, seconds: float, backend: str, ranks: int) -> None:
    """Step time of the training job, wrapped over bare."""

    def measure(watched: bool) -> float:
        options = ["--seconds", str(seconds), "--step-seconds", "0", "--backend", backend]
        _, err = job(watched, ranks, [*TRAIN, *options], {})
        found = re.findall(r"^train: (\d+) steps in ([\d.]+) s", err, re.M)
        steps, took = found[-1]
        return float(took) / float(steps)

    bare, wrapped = pairs(count, measure, "step time")
    ratios = [w / b for b, w in zip(bare, wrapped, strict=True)]
    low, high = interval(ratios, statistics.median)
    print(
        f"step time ({backend}, {ranks} ranks, {count} pairs of {seconds:.0f} s): bare "
        f"{statistics.median(bare) * 1000:.2f} ms, wrapped/bare {statistics.median(ratios):.3f} "
        f"(95 % {low:.3f} .. {high:.3f})"
    )


def _parent(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return int(fields[1])


def _cpu_and_memory(pids: list[int]) -> tuple[float, int]:
    """CPU seconds so far and resident KiB of some processes together."""
    ticks = resident = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        ticks += int(fields[11]) + int(fields[12])
        found = re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())
        resident += int(found[1]) if found else 0
    return ticks / TICKS_PER_SECOND, resident


def agent_cost(seconds: float, backend: str, ranks: int) -> None:
    """CPU share and memory of the agent and the stub while a job trains."""
    with tempfile.TemporaryDirectory() as folder:
        wrapped = subprocess.Popen(
            [
                *(sys.executable, "-m", "fabwatch", "--out", folder),
                *("torchrun", "--nproc-per-node", str(ranks), *TRAIN),
                *("--seconds", str(seconds + 20), "--backend", backend),
            ],
            env=environment(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=folder,
        )

        def ours() -> dict[str, list[int]]:
            """Pids: the stub, and the agent with its helpers (the holder, the warm capture)."""
            agents: list[int] = []
            for entry in Path("/proc").glob("[0-9]*"):
                with contextlib.suppress(OSError):
                    words = (entry / "cmdline").read_bytes().split(b"\0")
                    agent = b"fabwatch.watchdog.agent" in words and any(
                        word.startswith(folder.encode()) for word in words
                    )
                    if agent or _parent(int(entry.name)) in agents:
                        agents.append(int(entry.name))
            return {"stub": [wrapped.pid], "agent and helpers": agents}

        time.sleep(15)
        watched = ours()
        before = {name: _cpu_and_memory(pids) for name, pids in watched.items()}
        begin = time.monotonic()
        time.sleep(seconds)
        took = time.monotonic() - begin
        after = {name: _cpu_and_memory(pids) for name, pids in watched.items()}
        wrapped.wait(timeout=120)
        for name, (cpu, resident) in after.items():
            share = (cpu - before[name][0]) / took
            print(
                f"{name}: {share * 100:.2f} % of one core over {took:.0f} s, "
                f"{resident / 1024:.0f} MB resident in {len(watched[name])} process(es)"
            )


def probe_tick(count: int) -> None:
    """CPU of the probe: of a rank that only sleeps after joining, with and without the probe."""
    script = (
        "import resource, threading, time, torch, torch.distributed as d\n"
        "d.init_process_group('gloo'); time.sleep(3)\n"
        "t = resource.getrusage(resource.RUSAGE_SELF); a = t.ru_utime + t.ru_stime\n"
        "time.sleep(10)\n"
        "t = resource.getrusage(resource.RUSAGE_SELF); print((t.ru_utime + t.ru_stime - a) / 10)\n"
        "d.destroy_process_group()\n"
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "sleeper.py"
        path.write_text(script)

        def measure(watched: bool) -> float:
            out, _ = job(watched, 1, [str(path)], {})
            return float(out.split()[-1])

        bare, wrapped = pairs(count, measure, "probe")
    added = [w - b for b, w in zip(bare, wrapped, strict=True)]
    low, high = interval(added, statistics.median)
    print(
        f"probe in a rank ({count} pairs): {statistics.median(added) * 1e6:+.0f} us CPU a second "
        f"(95 % {low * 1e6:+.0f} .. {high * 1e6:+.0f})"
    )


def overhead(options: argparse.Namespace) -> None:
    """All of it."""
    ranks = 1 if options.backend == "gloo" else options.ranks
    wanted = options.only.split(",")
    if "collective" in wanted:
        per_collective(options.pairs, options.backend, ranks)
    if "probe" in wanted:
        probe_tick(max(3, options.pairs // 3))
    if "agent" in wanted:
        agent_cost(30, options.backend, options.ranks)
    if "step" in wanted:
        step_ratio(options.pairs, options.seconds, options.backend, options.ranks)


# ---------------------------------------------------------------------- starting


def _once(words: list[str]) -> tuple[float, float]:
    """Milliseconds by the clock and of CPU that one command takes."""
    begin, before = time.perf_counter(), os.times()
    subprocess.run(words, check=True, timeout=60, stdout=subprocess.DEVNULL)
    took, after = time.perf_counter() - begin, os.times()
    cpu = after.children_user + after.children_system
    cpu -= before.children_user + before.children_system
    return took * 1000, cpu * 1000


def startup(options: argparse.Namespace) -> None:
    """``fabwatch --help`` beside an interpreter that does nothing, in turn."""
    commands = {
        "python -c pass": [sys.executable, "-c", "pass"],
        "fabwatch --help": [sys.executable, "-m", "fabwatch", "--help"],
    }
    took: dict[str, list[tuple[float, float]]] = {name: [] for name in commands}
    for _ in range(options.times):
        for name, words in commands.items():
            took[name].append(_once(words))
    for name, each in took.items():
        clock, cpu = zip(*each, strict=True)
        low, high = interval(list(clock), statistics.median)
        print(
            f"{name}: {min(clock):.0f} ms at best, median {statistics.median(clock):.0f} ms "
            f"(95 % {low:.0f} .. {high:.0f}), {statistics.median(cpu):.0f} ms of CPU "
            f"({len(each)} times)"
        )


# ---------------------------------------------------------------------- matching


def made(ranks: int) -> tuple[Facts, dict[int, str]]:
    """Facts of a job of ``ranks`` ranks, eight on each host, and who lives where.

    Made up: a hang of many ranks with one culprit, a few kinds of facts about every single rank,
    and logs that tell of a hundred different ranks.
    """
    from fabwatch.watchdog.evidence.facts import Facts, fact
    from fabwatch.watchdog.evidence.vocabulary import SOURCES, VOCABULARY

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


def matching(options: argparse.Namespace) -> None:
    """Every signature against the facts of a large job, and the library's loading."""
    from fabwatch.signatures.loader import load
    from fabwatch.signatures.matching import match

    library = load()
    facts, hosts = made(options.ranks)
    took = []
    for _ in range(options.times):
        begin = time.process_time()
        found = match(library, facts, hosts)
        took.append(time.process_time() - begin)
    standing = sum(one.grade.stands for one in found)
    print(
        f"match: {len(library)} signatures against {len(facts.facts)} facts of {options.ranks} "
        f"ranks: {statistics.median(took):.2f} s of CPU (median of {options.times}; "
        f"{standing} stand)"
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
            for _ in range(options.times)
        ]  # fmt: skip
        print(f"library, {what}: {statistics.median(done):.2f} s of CPU, imports included")


def main() -> None:
    """Choose the measurement."""
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(required=True)
    command = commands.add_parser("overhead", help="what watching costs the job")
    command.add_argument("--only", default="collective,probe,agent,step")
    command.add_argument("--pairs", type=int, default=12)
    command.add_argument("--seconds", type=float, default=8.0)
    command.add_argument("--backend", default="gloo", choices=["gloo", "nccl"])
    command.add_argument("--ranks", type=int, default=4)
    command.set_defaults(call=overhead)
    command = commands.add_parser("startup", help="how long the command line takes to begin")
    command.add_argument("--times", type=int, default=20)
    command.set_defaults(call=startup)
    command = commands.add_parser("match", help="all signatures against a large job's facts")
    command.add_argument("--ranks", type=int, default=1000)
    command.add_argument("--times", type=int, default=5)
    command.set_defaults(call=matching)
    options = parser.parse_args()
    options.call(options)


if __name__ == "__main__":
    main()
