"""Facts that need several lines, two looks, or both ends of a link; each with its failing twin."""

from __future__ import annotations

from pathlib import Path

import pytest

from fabwatch.signatures.analysis import analyse
from fabwatch.signatures.diagnose import diagnose
from fabwatch.watchdog.evidence.facts import Fact, Facts
from fabwatch.watchdog.evidence.known import Known
from fabwatch.watchdog.evidence.reading import read

WATCHDOG = (
    "[rank{r}]:[E ProcessGroupNCCL.cpp:563] [Rank {r}] Watchdog caught collective operation "
    "timeout: WorkNCCL(SeqNum=77, OpType={op}, NumelIn={n}, NumelOut={n}, Timeout(ms)={ms}) ran "
    "for {ms} milliseconds before timing out.\n"
)


def late(rank: int, op: str = "ALLREDUCE", numel: int = 8, ms: int = 600000) -> str:
    return WATCHDOG.format(r=rank, op=op, n=numel, ms=ms)


def facts(tmp_path: Path, **files: str) -> Facts:
    for name, text in files.items():
        (tmp_path / name.replace("__", ".")).write_text(text)
    return analyse(read([tmp_path])).facts


def one(found: Facts, name: str) -> Fact:
    (fact,) = found.of(name)
    return fact


@pytest.mark.parametrize(
    ("second", "name"),
    [
        (late(3, "_ALLGATHER_BASE"), "collective.type-mismatched"),
        (late(3, numel=9), "collective.size-mismatched"),
        (late(3), ""),
    ],
)
def test_time_outs_of_one_number_that_differ_are_a_mismatch(
    tmp_path: Path, second: str, name: str
) -> None:
    found = facts(tmp_path, train__log=late(0) + late(1) + second)
    told = {f.name for f in found if f.name.endswith("-mismatched")}
    assert told == ({name} if name else set())
    if name:
        assert one(found, name).where.ranks == (3,)


BAR = "Evaluating:  71%|#######   | 142/200 [{elapsed}<12:13,  7.90it/s]\n"


def test_an_unfinished_bar_that_ran_until_the_time_out_is_rank_0_at_work(tmp_path: Path) -> None:
    log = BAR.format(elapsed="9:58") + late(1) + late(2)
    assert one(facts(tmp_path, train__log=log), "rank0.working").where.ranks == (0,)


@pytest.mark.parametrize(
    "log",
    [
        BAR.format(elapsed="0:58") + late(1),
        BAR.format(elapsed="9:58").replace("71%", "100%") + late(1),
        BAR.format(elapsed="9:58") + late(0) + late(1),
        BAR.format(elapsed="9:58"),
    ],
    ids=["stood early", "finished", "rank 0 timed out too", "nobody timed out"],
)
def test_a_bar_alone_does_not_put_rank_0_to_work(tmp_path: Path, log: str) -> None:
    assert facts(tmp_path, train__log=log).of("rank0.working") == []


def steps(*rates: float) -> str:
    return "".join(f"[train] step {50 * n} {rate} it/s\n" for n, rate in enumerate(rates, 1))


def test_a_loop_that_falls_to_a_third_and_goes_on_has_slowed(tmp_path: Path) -> None:
    found = facts(tmp_path, train__log=steps(500, 510, 505, 490, 40, 41, 40))
    assert float(one(found, "progress.slowed").get("factor") or 0) > 10


def test_a_warm_up_that_gets_faster_has_not_slowed(tmp_path: Path) -> None:
    assert facts(tmp_path, train__log=steps(5, 40, 500, 510, 505)).of("progress.slowed") == []


INIT = "h:{pid}:9 [0] NCCL INFO comm 0x{c} rank 0 nranks 2 cudaDev 0 busId 1a000 - Init {what}\n"


def test_a_communicator_that_was_begun_and_never_completed_is_told(tmp_path: Path) -> None:
    log = INIT.format(pid=1234, c="a1", what="START") + INIT.format(pid=1234, c="b2", what="START")
    done = INIT.format(pid=1234, c="a1", what="COMPLETE")
    assert facts(tmp_path, nccl__log=log + done).known("init.incomplete") is Known.YES
    whole = log + done + INIT.format(pid=1234, c="b2", what="COMPLETE")
    assert facts(tmp_path, nccl__log=whole).known("init.incomplete") is Known.NO


def test_an_error_that_the_job_got_over_is_not_left_unexplained(tmp_path: Path) -> None:
    bad = "2026-01-01 00:00:00 ERROR optional thing not there\n"
    assert facts(tmp_path, train__log=bad + steps(5, 5, 5, 5)).of("error.unexplained") == []
    assert facts(tmp_path, train__log=steps(5, 5, 5, 5) + bad).of("error.unexplained")


LINK = (
    "{n}: {name}: <{flags}> mtu 1500 qdisc {qdisc} state {state} mode DEFAULT group default\n"
    "    link/ether 46:27:c8:52:5c:68 brd ff:ff:ff:ff:ff:ff\n"
    "    RX:  bytes packets errors dropped  missed   mcast\n"
    "    {rx} 100 0 0 0 0\n"
    "    TX:  bytes packets errors dropped carrier collsns\n"
    "    {rx} 100 0 0 0 0\n"
)
UP = "BROADCAST,MULTICAST,UP,LOWER_UP"


def link(name: str, flags: str = UP, state: str = "UP", rx: int = 10**9, qdisc: str = "mq") -> str:
    return LINK.format(n=2, name=name, flags=flags, state=state, rx=rx, qdisc=qdisc)


def test_an_end_that_was_set_down_explains_the_carrier_that_the_other_misses(
    tmp_path: Path,
) -> None:
    found = facts(
        tmp_path,
        iplink__na__txt=link("eth5", "NO-CARRIER,BROADCAST,MULTICAST,UP", "DOWN"),
        iplink__nb__txt=link("eth6", "BROADCAST,MULTICAST", "DOWN"),
    )
    down = one(found, "link.down")
    assert (down.where.hosts, down.get("how")) == (("nb",), "set-down")


def test_a_spare_port_without_carrier_is_no_fault(tmp_path: Path) -> None:
    spare = link("eth5", "NO-CARRIER,BROADCAST,MULTICAST,UP", "DOWN", rx=0)
    assert facts(tmp_path, iplink__na__txt=spare).of("link.down") == []


@pytest.mark.parametrize(("qdisc", "many"), [("tbf", 1), ("netem", 1), ("mq", 0), ("fq", 0)])
def test_a_discipline_that_shapes_limits_a_link(tmp_path: Path, qdisc: str, many: int) -> None:
    found = facts(tmp_path, iplink__na__txt=link("eth5", qdisc=qdisc))
    assert len(found.of("link.limited")) == many


SEND = (
    "h:{pid}:9 [0] NCCL INFO {op}: opCount 0 sendbuff 0x7f1 recvbuff (nil) count 4 datatype 7 op 0 "
    "root {peer} comm 0x{c} [nranks=2] stream 0x55d\n"
)


@pytest.mark.parametrize(("op", "many"), [("Send", 1), ("Recv", 0)])
def test_two_sends_without_a_receive_wait_for_each_other(
    tmp_path: Path, op: str, many: int
) -> None:
    start = INIT.format(pid=1111, c="a1", what="COMPLETE")
    start += INIT.format(pid=2222, c="b2", what="COMPLETE").replace("rank 0", "rank 1")
    calls = SEND.format(pid=1111, c="a1", peer=1, op="Send")
    calls += SEND.format(pid=2222, c="b2", peer=0, op=op)
    assert len(facts(tmp_path, nccl__log=start + calls).of("p2p.deadlocked")) == many


ITERATIONS = "".join(f"Iteration {n}: loss 2.5, 1.6 s\n" for n in range(1100, 1140, 10))
REREGISTERED = "n1:1:9 [0] transport/net_ib.cc:95 NCCL WARN NET/IB : Got async event : {event}\n"


def outcome(tmp_path: Path, **files: str) -> str:
    for name, text in files.items():
        (tmp_path / name.replace("__", ".")).write_text(text)
    return diagnose(read([tmp_path])).outcome


def test_an_alarm_that_steps_followed_is_health_and_steps_alone_are_not(tmp_path: Path) -> None:
    alarm = REREGISTERED.format(event="client reregistration")
    for name, log, expected in (
        ("after", ITERATIONS + alarm + ITERATIONS, "healthy"),
        ("before", ITERATIONS + alarm, "cannot-tell"),
        ("alone", ITERATIONS, "cannot-tell"),
    ):
        (tmp_path / name).mkdir()
        assert outcome(tmp_path / name, train__log=log) == expected, name


def test_a_job_that_says_that_it_ended_well_is_healthy_unless_it_fails_after_that(
    tmp_path: Path,
) -> None:
    end = "{'train_runtime': 12.2, 'train_loss': 3.1, 'epoch': 1.0}\n"
    for name, log, expected in (
        ("well", ITERATIONS + end, "healthy"),
        ("badly", ITERATIONS + end + "2026-01-01 ERROR something broke\n", "cannot-tell"),
    ):
        (tmp_path / name).mkdir()
        assert outcome(tmp_path / name, train__log=log) == expected, name


INIT_COMPLETE = (
    "h:{pid}:1 [0] NCCL INFO ncclCommInitRank comm 0x5{pid} rank {r} nranks 2 cudaDev 0 nvmlDev 0 "
    "busId 60 commId 0x7d - Init COMPLETE\n"
)
DESTROY_COMPLETE = (
    "h:{pid}:1 [0] NCCL INFO comm 0x5{pid} rank {r} nranks 2 cudaDev 0 busId 60 "
    "- Destroy COMPLETE\n"
)


def test_a_job_whose_every_process_took_its_communicator_down_has_ended_well(
    tmp_path: Path,
) -> None:
    init = INIT_COMPLETE.format(pid=71, r=0) + INIT_COMPLETE.format(pid=72, r=1)
    ends = [DESTROY_COMPLETE.format(pid=71, r=0), DESTROY_COMPLETE.format(pid=72, r=1)]
    assert facts(tmp_path / ".", nccl__log=init + "".join(ends)).of("job.completed")
    assert not facts(tmp_path / ".", nccl__log=init + ends[0]).of("job.completed")


RAS_POLL = (
    "$ ncclras -v\nNCCL version 2.28.9 compiled with CUDA 13.0\n\nCommunicators... (0.00s)\n\n"
    "    0         1         4         8        32        32   RUNNING  MISMATCH\n\n"
    "#0-0 (5e0c9aa1b2d47c10) MISMATCH\n"
    "  Communicator ranks have different AllGather operation counts\n"
    "  30 ranks have launched up to operation {low}\n"
    "  2 ranks have launched up to operation {high}\n"
    "  Rank 12 -- GPU 4 managed by process 51 on node 10.77.1.3\n"
    "  Rank 13 -- GPU 5 managed by process 52 on node 10.77.1.3\n"
)


def test_polls_pasted_into_one_file_are_several_looks(tmp_path: Path) -> None:
    moved = RAS_POLL.format(low=10, high=11) + RAS_POLL.format(low=80, high=81)
    assert facts(tmp_path, ras__txt=moved).of("progress.advancing")
    stood = RAS_POLL.format(low=10, high=11) * 2
    found = facts(tmp_path, ras__txt=stood)
    assert not found.of("progress.advancing")
    assert one(found, "collective.count-mismatched").get("polls") == 2


HCA = (
    "n1:11:12 [3] NCCL INFO NCCL_IB_HCA set by environment to {value}\n"
    "n1:11:19 [3] NCCL INFO NET/IB : Using [0]mlx5_1:1/IB [1]mlx5_10:1/IB [RO]; OOB eth0\n"
)


@pytest.mark.parametrize(
    ("value", "more"),
    [("mlx5_1", "mlx5_10"), ("=mlx5_1", ""), ("mlx5", ""), ("mlx5_1,mlx5_10", "")],
)
def test_a_device_name_without_an_equals_sign_takes_in_longer_names(
    tmp_path: Path, value: str, more: str
) -> None:
    found = facts(tmp_path, nccl__log=HCA.format(value=value)).of("ib-hca.prefix-matched")
    assert [f.get("taken") for f in found] == ([more] if more else [])


STEP = "Epoch: [12]  [{n}/1251]  loss: 3.1 (3.2)  time: {time:.4f}  data: {data:.4f}  max mem: 18\n"


@pytest.mark.parametrize(("data", "percent"), [(3.0, 75), (0.04, 1)])
def test_the_share_of_steps_that_waits_for_data_is_told_without_the_first(
    tmp_path: Path, data: float, percent: int
) -> None:
    log = STEP.format(n=0, time=90.0, data=89.0)
    log += "".join(STEP.format(n=n, time=4.0, data=data) for n in range(20, 140, 20))
    assert one(facts(tmp_path, train__log=log), "step.data-bound").get("percent") == percent


def test_a_few_steps_say_nothing_of_the_wait_for_data(tmp_path: Path) -> None:
    log = "".join(STEP.format(n=n, time=4.0, data=3.0) for n in range(3))
    assert not facts(tmp_path, train__log=log).of("step.data-bound")
