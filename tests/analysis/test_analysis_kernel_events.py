"""What a kernel log tells of the past: links that came back, kills of other scopes."""

from __future__ import annotations

from pathlib import Path

import pytest

from fabwatch.signatures.analysis import analyse
from fabwatch.signatures.diagnose import diagnose
from fabwatch.watchdog.evidence.reading import read

DOWN = "[{at}] mlx5_core 0000:9a:00.0 eth2: Link down\n"
UP = "[{at}] mlx5_core 0000:9a:00.0 eth2: Link up\n"
LATE = (
    "2026-09-05T15:40:00.000Z [rank0]:[E ProcessGroupNCCL.cpp:563] [Rank 0] Watchdog caught "
    "collective operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE, NumelIn=8, NumelOut=8, "
    "Timeout(ms)=600000) ran for 600012 milliseconds before timing out.\n"
)


@pytest.mark.parametrize(
    ("kernel", "told"),
    [
        (DOWN.format(at="Sat Sep  5 15:29:00 2026"), {"link.down"}),
        (DOWN.format(at="Sat Sep  5 15:29:00 2026") + UP.format(at="Sat Sep  5 15:29:09 2026"),
         {"ib-port.flapped"}),
        (DOWN.format(at="Sat Sep  5 09:00:00 2026") + UP.format(at="Sat Sep  5 09:00:09 2026"),
         set()),
        (DOWN.format(at="   12.100000") + UP.format(at="   15.200000"), set()),
        (DOWN.format(at="   12.100000") + UP.format(at="   15.200000")
         + DOWN.format(at="88012.100000"), {"link.down"}),
    ],
    ids=["stayed down", "flapped at the failure", "hours before", "at boot", "went again"],
)  # fmt: skip
def test_a_link_counts_by_whether_it_came_back_and_when(
    tmp_path: Path, kernel: str, told: set[str]
) -> None:
    (tmp_path / "dmesg.txt").write_text(kernel)
    (tmp_path / "train.log").write_text(LATE)
    found = {f.name for f in analyse(read([tmp_path])).facts}
    assert found & {"link.down", "ib-port.flapped"} == told


def test_what_a_line_tells_of_days_ago_is_no_fact_of_this_failure(tmp_path: Path) -> None:
    line = "mlx5_core 0000:9a:00.0 eth2: Link down"
    (tmp_path / "dmesg.txt").write_text(f"[88012.100000] {line}\n")
    assert analyse(read([tmp_path])).facts.of("link.down")
    (tmp_path / "dmesg.txt").write_text(f"[88012.100000] {line} (12 days ago)\n")
    assert not analyse(read([tmp_path])).facts.of("link.down")


OOM = (
    "[88012.100000] oom-kill:constraint={constraint},nodemask=(null),cpuset=/,mems_allowed=0,"
    "{memcg}global_oom,task_memcg=/kubepods/pod1,task=python3,pid=4711,uid=0\n"
    "[88012.200000] {what}: Killed process 4711 (python3) total-vm:1kB, anon-rss:9kB\n"
)


@pytest.mark.parametrize(
    ("constraint", "memcg", "what", "scope"),
    [
        ("CONSTRAINT_NONE", "", "Out of memory", "global"),
        ("CONSTRAINT_MEMCG", "oom_memcg=/kubepods,", "Memory cgroup out of memory", "cgroup"),
    ],
)
def test_a_kill_is_of_the_scope_that_its_constraint_names(
    tmp_path: Path, constraint: str, memcg: str, what: str, scope: str
) -> None:
    text = OOM.format(constraint=constraint, memcg=memcg, what=what)
    (tmp_path / "dmesg.txt").write_text(text)
    (killed,) = analyse(read([tmp_path])).facts.of("process.oom-killed")
    assert killed.get("scope") == scope
    assert diagnose(read([tmp_path])).signatures[0].id == (
        "oom-kill-cgroup" if scope == "cgroup" else "oom-kill-global"
    )
