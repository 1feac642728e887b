"""Both axes on NCCL: who never enqueued, and whose device lags; and what cannot be told."""

from __future__ import annotations

from fabwatch.signatures.analysis import analyse
from fabwatch.watchdog.evidence.observations import Gpu, GpuReport, GroupStatus, Source


def only(analysis):
    assert len(analysis.hang.roots) == 1, analysis.hang.roots
    return analysis.hang.roots[0]


def job(world, pending, size=4, **more):
    w = world(size=size, backend="nccl")
    for rank in range(size):
        w.trace(rank, [*[("all_reduce", True)] * 3, *pending(rank)], **more)
    return w


def test_all_entered_and_none_finished_blames_nobody_and_asks(world):
    a = analyse(job(world, lambda r: [("all_reduce", False)]).read())
    assert (only(a).kind, only(a).ranks, only(a).suspects) == ("in-collective", (), (0, 1, 2, 3))
    assert a.facts.of("collective.incomplete")
    asked = " ".join(str(ask) for ask in a.asks)
    assert "power" in asked and "NIC" in asked and "proxy" in asked
    assert a.facts.known("collective.not-started").value == "unknown"


def test_nothing_pending_is_healthy(world):
    a = analyse(job(world, lambda r: []).read())
    assert a.hang.roots == () and not a.facts.of("collective.pending")


def test_the_rank_that_alone_did_not_finish_lags(world):
    w = job(world, lambda r: [("all_reduce", r != 2)])
    a = analyse(w.read())
    assert (only(a).kind, only(a).ranks) == ("completion-lag", (2,))
    assert a.facts.of("collective.completion-lagging")[0].where.ranks == (2,)


def test_who_finishes_a_broadcast_first_proves_nothing(world):
    w = job(world, lambda r: [("broadcast", r != 2)])
    a = analyse(w.read())
    assert (only(a).kind, only(a).ranks) == ("in-collective", ())


def test_with_timing_the_rank_whose_device_never_started_is_told(world):
    def pending(rank):
        return [{"op": "all_reduce", "finished": False, "started": rank != 1}]

    a = analyse(job(world, pending).read())
    assert (only(a).kind, only(a).ranks) == ("gpu-stalled", (1,))
    assert a.facts.of("collective.not-started")[0].where.ranks == (1,)


def test_with_timing_and_all_started_nobody_is_told(world):
    def pending(rank):
        return [{"op": "all_reduce", "finished": False, "started": True}]

    assert only(analyse(job(world, pending).read())).ranks == ()


def test_a_host_ahead_of_its_dead_device_is_found_on_the_completion_axis(world):
    """Rank 3 has enqueued more than anybody and finished least."""
    w = world(backend="nccl")
    for rank in (0, 1, 2):
        w.trace(rank, [*[("all_reduce", True)] * 6, ("all_reduce", False)])
    w.trace(3, [*[("all_reduce", True)] * 3, *[("all_reduce", False)] * 8])
    a = analyse(w.read())
    assert (only(a).kind, only(a).ranks, only(a).seq) == ("completion-lag", (3,), 4)


def test_a_host_stuck_in_its_own_device_with_nothing_in_flight_is_a_gpu(world):
    w = world(backend="nccl")
    for rank in (0, 1, 3):
        w.trace(rank, [("all_reduce", True), ("all_reduce", False)])
    w.trace(2, [("all_reduce", True)])
    w.stack(2, ("synchronize", "torch/cuda/__init__.py", 1162), ("step", "/job/train.py", 9))
    assert (only(analyse(w.read())).kind, only(analyse(w.read())).ranks) == ("gpu-stalled", (2,))


def test_a_rank_whose_ring_forgot_is_placed_by_its_status(world):
    w = world(backend="nccl")
    for rank in (0, 1, 3):
        w.trace(
            rank,
            [
                {"op": "all_reduce", "finished": True, "seq": 900},
                {"op": "all_reduce", "finished": False, "seq": 901},
            ],
            wrapped=True,
        )
    w.trace(2, [], wrapped=True, status=(("0", GroupStatus(900, -1, 900)),))
    a = analyse(w.read())
    assert (only(a).kind, only(a).ranks, only(a).sure) == ("host-stall", (2,), True)
    assert a.facts.of("collective.lagging")[0].get("lag") == 1


def test_gloo_status_is_never_compared(world):
    """Gloo counts sends and receives too: a rank that looks ahead by status is still behind."""
    w = world()
    for rank in (0, 1, 3):
        w.trace(
            rank,
            [("all_reduce", True), ("all_reduce", False)],
            status=(("0", GroupStatus(2, -1, 1)),),
        )
    w.trace(2, [("all_reduce", True)], status=(("0", GroupStatus(50, -1, 50)),))
    w.in_loader(2)
    assert only(analyse(w.read())).ranks == (2,)


def test_recorded_sends_pass_blame_on_to_the_rank_that_everything_waits_for(world):
    """Stage 0 sends to stage 1, which waits in a collective for a rank that never came."""
    w = world(backend="nccl")
    w.groups = {"tp": (1, 2, 3)}
    w.trace(
        0, [("all_reduce", True), {"op": "send", "finished": False, "is_p2p": True, "peer": (0, 1)}]
    )
    for rank in (1, 3):
        w.trace(
            rank, [("all_reduce", True), {"op": "all_gather", "group": "tp", "finished": False}]
        )
    w.trace(2, [("all_reduce", True)])
    a = analyse(w.read())
    assert (only(a).ranks, only(a).others) == ((2,), (0, 1, 3))


def test_matching_send_and_receive_in_flight_accuse_nobody(world):
    w = world(size=2, backend="nccl")
    w.trace(0, [{"op": "send", "finished": False, "is_p2p": True, "peer": (0, 1)}])
    w.trace(1, [{"op": "recv", "finished": False, "is_p2p": True, "peer": (0, 1)}])
    assert all(root.ranks == () for root in analyse(w.read()).hang.roots)


def test_recorded_receives_from_each_other_are_a_cycle(world):
    w = world(size=2, backend="nccl")
    w.trace(0, [{"op": "recv", "finished": False, "is_p2p": True, "peer": (1, 0)}])
    w.trace(1, [{"op": "recv", "finished": False, "is_p2p": True, "peer": (0, 1)}])
    assert (only(analyse(w.read())).kind, only(analyse(w.read())).ranks) == ("p2p-cycle", (0, 1))


def test_a_busy_gpu_without_power_is_said_and_blames_nobody(world):
    for power, said in ((120.0, True), (600.0, False)):
        w = job(world, lambda r: [("all_reduce", False)])
        gpus = (Gpu(0, utilisation=100, power_w=power, power_cap_w=700.0, pids=(1000,)),)
        w.add("gpus", GpuReport(Source("nvidia-smi.txt", "gpu"), "580", gpus))
        a = analyse(w.read())
        assert bool(a.facts.of("gpu.spinning")) is said
        assert only(a).ranks == ()
