"""Logs of jobs that really ran and got through, noisy ones among them, accuse nobody.

README.md says what made each. Each has a twin: the same log with one real fault's documented
lines at its end, which must not pass for a healthy one.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fabwatch.signatures.diagnose import diagnose
from fabwatch.watchdog.evidence.reading import read

HERE = Path(__file__).parent
LOGS = sorted(HERE.glob("*.log"))
README = (HERE / "README.md").read_text(encoding="utf-8")
LARGEST = 30_000
LEAST = 32

WRONG: dict[str, str] = {
    "mpirun-tagged": "rank-exception-peers-wait is likely: behind the tag that mpirun puts before "
    "every line, a traceback that was logged and handled, with steps and a good end after it, is "
    "taken for the rank's death",
}
"""Logs that are judged wrongly as yet: name -> what is said and why that is wrong."""

FAULTS = {
    # torch: c10/cuda/CUDAException.cpp with cudaErrorIllegalAddress
    "illegal-access": "RuntimeError: CUDA error: an illegal memory access was encountered",
    # torch: ProcessGroupNCCL.cpp, WorkNCCL::checkTimeout
    "watchdog": "[rank1]:[E1201 10:00:00.000000000 ProcessGroupNCCL.cpp:633] [Rank 1] Watchdog "
    "caught collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE, NumelIn=64, "
    "NumelOut=64, Timeout(ms)=600000) ran for 600012 milliseconds before timing out.",
    # torch: c10/cuda/CUDACachingAllocator.cpp
    "memory": "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has "
    "a total capacity of 79.15 GiB of which 1.12 GiB is free. Process 4711 has 78.03 GiB memory "
    "in use.",
    # NCCL: src/transport/net_ib
    "ib": "node7:4711:4801 [0] transport/net_ib.cc:1298 NCCL WARN NET/IB : Got completion from "
    "peer 10.0.0.5<45678> with status=12 opcode=0 len=0 vendor err 129 (Recv)",
    # NCCL: src/misc/shmutils.cc
    "shm": "node7:4711:4801 [0] misc/shmutils.cc:72 NCCL WARN Error: failed to extend "
    "/dev/shm/nccl-QfX2pd to 9637892 bytes, error: No space left on device (28)",
    # NVIDIA's Xid documentation
    "xid": "NVRM: Xid (PCI:0000:3b:00): 79, pid=4711, name=python, GPU has fallen off the bus.",
    # Linux: mm/oom_kill.c, as syslog writes it
    "oom": "Dec  1 10:00:00 node7 kernel: [12345.678901] Out of memory: Killed process 4711 "
    "(python) total-vm:812345678kB, anon-rss:498765432kB, file-rss:0kB, shmem-rss:0kB, UID:0 "
    "pgtables:987654kB oom_score_adj:0",
    # torch: elastic/multiprocessing/api.py
    "signal": "E1201 10:00:00.000000 4700 torch/distributed/elastic/multiprocessing/api.py:1002] "
    "failed (exitcode: -11) local_rank: 1 (pid: 4711) of binary: /usr/bin/python",
    # gloo: transport/tcp/pair.cc
    "gloo": "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed "
    "by peer [10.0.0.2]:23456",
}
"""One real fault each, in the words of the software that reports it."""
MISSED: dict[tuple[str, str], str] = {}
"""Twins that pass for healthy as yet, which is wrong: log and fault -> what is overlooked."""
BESIDE_STACKS = {("torch-faulthandler", name) for name in ("watchdog", "oom")}
TWINS = sorted(
    {(p.stem, list(FAULTS)[n % len(FAULTS)]) for n, p in enumerate(LOGS)}
    | {*MISSED}
    | BESIDE_STACKS
)


def judged(path: Path) -> tuple[str, list[str]]:
    verdict = diagnose(read([path]))
    standing = [s.id for s in verdict.signatures if s.grade in ("likely", "confirmed")]
    return verdict.outcome, standing


def marks(wrong: str | None) -> list[pytest.MarkDecorator]:
    return [pytest.mark.xfail(strict=True, reason=wrong)] if wrong else []


def cases() -> list[object]:
    return [pytest.param(p, id=p.stem, marks=marks(WRONG.get(p.stem))) for p in LOGS]


def twins() -> list[object]:
    return [pytest.param(*twin, id="-".join(twin), marks=marks(MISSED.get(twin))) for twin in TWINS]


def test_there_are_logs_to_judge() -> None:
    assert len(LOGS) >= LEAST
    for path in LOGS:
        assert 0 < path.stat().st_size < LARGEST, path.name


def test_the_page_tells_of_every_log_and_of_no_other() -> None:
    told = re.findall(r"^\| `([\w.-]+\.log)` \|", README, re.M)
    assert sorted(told) == [path.name for path in LOGS]


def test_no_log_shows_whose_machine_it_was() -> None:
    for path in LOGS:
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"/(?:work|opt/w|home/\w+)/", text), path.name


@pytest.mark.parametrize("path", cases())
def test_nothing_is_likely_in_the_log_of_a_job_that_got_through(path: Path) -> None:
    outcome, standing = judged(path)
    assert standing == []
    assert outcome not in ("diagnosed", "waiting")


@pytest.mark.parametrize(("log", "fault"), twins())
def test_the_same_log_with_a_fault_at_its_end_is_not_healthy(
    log: str, fault: str, tmp_path: Path
) -> None:
    twin = tmp_path / "job.log"
    text = (HERE / f"{log}.log").read_text(encoding="utf-8")
    twin.write_text(f"{text.rstrip()}\n{FAULTS[fault]}\n", encoding="utf-8")
    outcome, _ = judged(twin)
    assert outcome != "healthy"


def test_the_same_log_with_a_cause_in_it_names_the_cause(tmp_path: Path) -> None:
    broken = tmp_path / "job.log"
    broken.write_text(LOGS[0].read_text() + FAULTS["illegal-access"] + "\n")
    outcome, standing = judged(broken)
    assert outcome == "diagnosed"
    assert "cuda-illegal-access" in standing
