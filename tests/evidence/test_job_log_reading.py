"""Mixed job logs: prefixes, tracebacks of several ranks at once, reports, and huge input."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fabwatch.watchdog.evidence.log_lines import unmix
from fabwatch.watchdog.evidence.log_patterns import EVENT_KINDS
from fabwatch.watchdog.evidence.nccl_lines import NCCL_KINDS
from fabwatch.watchdog.evidence.observations import Exit, LogEvent, Parsed, PythonError
from fabwatch.watchdog.evidence.parsers import job_log


def parse(make: Any, text: str | bytes, name: str = "train.log") -> Parsed:
    return job_log.parse(make(text.encode() if isinstance(text, str) else text, name))


def events(parsed: Parsed, kind: str) -> list[LogEvent]:
    return [o for o in parsed.observations if isinstance(o, LogEvent) and o.kind == kind]


def errors(parsed: Parsed) -> list[PythonError]:
    return [o for o in parsed.observations if isinstance(o, PythonError)]


@pytest.mark.parametrize(
    ("text", "rank", "local", "pid", "task", "host"),
    [
        ("[rank3]: ValueError: no", 3, None, None, None, None),
        ("[default3]:[rank7]: ValueError: no", 7, 3, None, None, None),
        ("[1,13]<stderr>:ValueError: no", 13, None, None, None, None),
        ("(WorkerDict pid=40533, ip=10.0.0.7) ValueError: no", None, None, 40533, None, "10.0.0.7"),
        ("\x1b[36m(Trainer pid=7)\x1b[0m ValueError: no", None, None, 7, None, None),
        ("11: ValueError: no", None, None, None, 11, None),
        ("2026-11-30T19:45:01.123Z ValueError: no", None, None, None, None, None),
        ("2026-11-30T19:45:01.123456Z stderr F [rank2]: ValueError: no", 2, None, None, None, None),
        ("Nov 30 19:45:01 node-7 train[99]: ValueError: no", None, None, 99, None, "node-7"),
        ("[pod/trainer-0/main] [rank1]: ValueError: no", 1, None, None, None, "trainer-0"),
        ("[2026-11-30 19:45:01,5] 3: [rank3]: ValueError: no", 3, None, None, 3, None),
    ],
)  # fmt: skip
def test_prefixes_are_taken_off_and_remembered(
    text: str, rank: int | None, local: int | None, pid: int | None, task: int | None,
    host: str | None,
) -> None:  # fmt: skip
    """Launchers, schedulers and log drivers, also several at once."""
    line = unmix(text)
    assert line.body == "ValueError: no"
    assert (line.rank, line.local_rank, line.pid, line.task, line.host) == (
        rank, local, pid, task, host,
    )  # fmt: skip


@pytest.mark.parametrize("text", ["RuntimeError: x", "[0]:", "step 3: 4", "[train] rank 1 warm"])
def test_what_is_no_prefix_stays(text: str) -> None:
    """A line of the program is not eaten."""
    assert unmix(text).body == text


def test_tracebacks_of_two_ranks_that_interleave_are_told_apart(
    make_artefact: Any, samples: Path
) -> None:
    """Each with its own frames and line of citation."""
    parsed = parse(make_artefact, (samples / "job_log--mixed.slurm.out.in").read_bytes())
    by_rank = {e.rank: e for e in errors(parsed)}
    assert by_rank[13].type == "KeyError"
    assert [f.line for f in by_rank[13].frames] == [12]
    assert by_rank[13].cite == "train.log:8"
    assert by_rank[2].frames[0].function == "load"
    assert by_rank[3].type == "RuntimeError" and "Connection closed" in by_rank[3].text


def test_half_a_traceback_still_tells_the_error(make_artefact: Any, samples: Path) -> None:
    """The header is often above the tail that somebody saved."""
    parsed = parse(make_artefact, (samples / "job_log--mixed.slurm.out.in").read_bytes())
    (half,) = [e for e in errors(parsed) if e.rank is None]
    assert half.type == "torch.OutOfMemoryError"
    assert half.frames[0].function == "evaluate"


def test_a_chained_traceback_is_one_exception(make_artefact: Any) -> None:
    """The last one ended the rank; the first is named in its text."""
    text = (
        "[rank1]: Traceback (most recent call last):\n"
        '[rank1]:   File "/job/a.py", line 3, in f\n'
        "[rank1]:     g()\n"
        "[rank1]: KeyError: 'x'\n"
        "[rank1]: \n"
        "[rank1]: During handling of the above exception, another exception occurred:\n"
        "[rank1]: \n"
        "[rank1]: Traceback (most recent call last):\n"
        '[rank1]:   File "/job/b.py", line 9, in h\n'
        "[rank1]: RuntimeError: cannot load\n"
    )
    (one,) = errors(parse(make_artefact, text))
    assert (one.type, one.rank, one.frames[0].file) == ("RuntimeError", 1, "/job/b.py")
    assert "KeyError" in one.text


def test_the_launchers_own_traceback_is_no_exception_of_a_rank(
    make_artefact: Any, samples: Path
) -> None:
    """torchrun's ChildFailedError blames nobody; its report gives exits in order."""
    parsed = parse(make_artefact, (samples / "job_log--torchrun.log.in").read_bytes())
    assert [(e.rank, e.type) for e in errors(parsed)] == [(1, "ValueError")]
    exits = [o for o in parsed.observations if isinstance(o, Exit)]
    assert [(e.rank, e.code, e.signal, e.order, e.ours) for e in exits] == [
        (1, 1, None, 1, False), (0, None, 15, 2, True),
    ]  # fmt: skip


def test_watchdog_lines_of_every_version_have_the_same_fields(make_artefact: Any) -> None:
    """1.13 without numel, 2.4 with; status of 2.3, 2.4, 2.6 and 2.13."""
    text = (
        "[E ProcessGroupNCCL.cpp:458] [Rank 0] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum=96120, OpType=ALLREDUCE, Timeout(ms)=1800000) ran for 1800001 milliseconds"
        " before timing out.\n"
        "[rank1]:[E ProcessGroupNCCL.cpp:1537] [PG 0 Rank 1] Timeout at NCCL work: 5, last enqueued"
        " NCCL work: 6, last completed NCCL work: 4.\n"
        "[rank2]:[E626 06:24:44.906457629 ProcessGroupNCCL.cpp:1785] [PG ID 0 PG GUID 0(default_pg)"
        " Rank 2] Exception (either an error or timeout) detected by watchdog at work: 5, last "
        "enqueued NCCL work: 6, last completed NCCL work: 4.\n"
        "[rank3]:[E1 ProcessGroupNCCL.cpp:1] [PG ID 0 PG GUID 0(default_pg) Rank 3]  failure "
        "detected by watchdog at work sequence id: 5 PG status: last enqueued work: 6, last started"
        " work: 5 (_ALLGATHER_BASE), last completed work: 4\n"
    )
    parsed = parse(make_artefact, text)
    (timeout,) = events(parsed, "nccl.watchdog-timeout")
    assert (timeout.rank, timeout.get("seq"), timeout.get("op")) == (0, "96120", "all_reduce")
    status = events(parsed, "nccl.pg-status")
    assert [e.rank for e in status] == [1, 2, 3]
    assert {(e.get("at"), e.get("enqueued"), e.get("completed")) for e in status} == {
        ("5", "6", "4")
    }
    assert status[2].get("started_op") == "all_gather_base"


def test_every_known_line_shape_of_torch_makes_an_event(make_artefact: Any) -> None:
    """One line each, as torch, Gloo, the store and the launcher print them."""
    lines = {
        "detail.mismatch": "[rank2]: RuntimeError: Detected mismatch between collectives on ranks. "
        "Rank 2 is running collective: CollectiveFingerPrint(SequenceNumber=1, OpType=ALLREDUCE, "
        "TensorShape=[4]), but Rank 1 is running collective: CollectiveFingerPrint("
        "SequenceNumber=1, OpType=BROADCAST, TensorShape=[7]).",
        "monitored-barrier.failed": "[Rank 0]: Ranks 1, 2 failed to pass monitoredBarrier in 4 ms",
        "monitored-barrier.victim": "Rank 3 successfully reached monitoredBarrier, but received "
        "errors while waiting for send/recv from rank 0.",
        "gloo.timeout": "[/x/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 25000ms "
        "for recv operation to complete",
        "gloo.closed": "[/x/pair.cc:553] Connection closed by peer [127.0.0.1]:1974.",
        "gloo.reset": "[/x/pair.cc:537] Read error [127.0.0.1]:13546: Connection reset by peer.",
        "gloo.size-mismatch": "op.preamble.length <= op.nbytes. 8 vs 4. Received data size",
        "store.timeout": "DistStoreError: wait timeout after 2000ms, keys: /nokey",
        "store.closed": "Failed to recv, got 0 bytes. Connection was likely closed.",
        "store.io-error": "sendBytes failed on SocketImpl(fd=15, addr=[::1]:6, remote=[::1]:7): "
        "Broken pipe",
        "heartbeat.stuck": "ProcessGroupNCCL's watchdog got stuck for 480 seconds without making",
        "gil.not-acquired": "Could not acquire GIL within 3 ms on exit, possible GIL induced hang",
        "elastic.worker-failed": "failed (exitcode: -9) local_rank: 0 (pid: 12384) of binary: /p",
        "elastic.agent-signal": "Received 15 death signal, shutting down workers",
        "cuda.sticky-error": "CUDA error: an illegal memory access was encountered",
        "cuda.out-of-memory": "CUDA out of memory. Tried to allocate 2.00 GiB.",
        "dataloader.worker-killed": "DataLoader worker (pid(s) 12, 13) exited unexpectedly",
        "memory.host-exhausted": "MemoryError",
        "slurm.cancelled": "slurmstepd: error: *** JOB 6 ON n CANCELLED AT 2022 DUE TO TIME LIMIT "
        "***",
    }
    for kind, line in lines.items():
        found = events(parse(make_artefact, line + "\n"), kind)
        assert len(found) == 1, kind
        assert kind in EVENT_KINDS


def test_every_event_kind_is_documented(make_artefact: Any, samples: Path) -> None:
    """Signatures match kinds by name."""
    known = {*EVENT_KINDS, *NCCL_KINDS, "elastic.launcher-error"}
    for path in samples.glob("job_log--*.in"):
        for one in parse(make_artefact, path.read_bytes(), path.name).observations:
            if isinstance(one, LogEvent) and not one.kind.startswith("shape:"):
                assert one.kind in known


def test_a_healthy_log_makes_no_alarm(make_artefact: Any) -> None:
    """Words such as error rate, timeout=30 and rank do not make events."""
    text = "".join(
        f"[rank{r}]: step {s} loss 1.2 error_rate=0.1 timeout=30 lr=1e-4 ({r} ranks)\n"
        for s in range(50)
        for r in range(4)
    )
    parsed = parse(make_artefact, text)
    assert {one.kind for one in parsed.observations} == {"shape:progress.reported"}
    assert [s.kind for s in parsed.looked] == ["job-log"]


def test_carriage_returns_nulls_and_broken_encodings_are_survived(make_artefact: Any) -> None:
    """Progress bars, binary rubbish and CRLF around the line that matters."""
    data = (
        b"  1%|\x80\x81 | 1/9\r  2%|##| 2/9\r[rank0]: ValueError: inside a bar\r\n"
        + b"\0" * 100
        + b"\xff\xfe\n"
        + b"[rank1]: KeyError: 'x'\r\n"
    )
    assert [(e.rank, e.type) for e in errors(parse(make_artefact, data))] == [
        (0, "ValueError"), (1, "KeyError"),
    ]  # fmt: skip


def test_a_line_of_ten_megabytes_does_not_shift_the_next_ones(make_artefact: Any) -> None:
    """It is cut, in bounded memory, and line numbers stay right."""
    data = b"a\n" + b"x" * 10_000_000 + b"\n[rank1]: KeyError: 'x'\n"
    (one,) = errors(parse(make_artefact, data))
    assert one.cite == "train.log:3"


def test_a_flood_of_one_line_is_thinned_and_says_so(make_artefact: Any) -> None:
    """A million equal warnings do not fill the memory."""
    parsed = parse(
        make_artefact, "[rank0]: x Timed out waiting 5ms for recv operation to complete\n" * 9000
    )
    found = events(parsed, "gloo.timeout")
    assert 2000 < len(found) < 2200
    assert "9000 lines of gloo.timeout of rank 0" in str(parsed.errors[0])


def test_the_stack_of_a_failed_collective_belongs_to_its_rank(
    make_artefact: Any, samples: Path
) -> None:
    """torch prints its frames without a prefix below the line that has one."""
    parsed = parse(make_artefact, (samples / "job_log--stdout.log.in").read_bytes())
    found = events(parsed, "nccl.failed-collective-stack")
    assert {e.rank for e in found} == {0, 1}
    assert all("all_reduce" in e.get("frames") for e in found)


def test_the_proxy_dump_of_nccl_names_peers_and_counts(make_artefact: Any, samples: Path) -> None:
    """Between two dumps these are all that tells who waits for the wire."""
    parsed = parse(make_artefact, (samples / "job_log--stdout.log.in").read_bytes())
    found = events(parsed, "nccl-log.proxy-active")
    assert [(e.get("ops"), e.get("peers"), e.get("opcounts")) for e in found] == [
        ("4", "1", "3892"), ("4", "0", "3892"),
    ]  # fmt: skip


def test_a_traceback_that_nobody_goes_on_with_is_closed(make_artefact: Any) -> None:
    """Its writer died; thousands of lines of others follow, and its exception is not lost."""
    text = (
        "[rank1]: Traceback (most recent call last):\n"
        '[rank1]:   File "/job/a.py", line 3, in f\n'
        "[rank1]: KeyError: 'x'\n" + "[rank0]: step 1\n" * 20_000 + "[rank0]: ValueError: late\n"
    )
    assert [(e.rank, e.type, e.cite) for e in errors(parse(make_artefact, text))] == [
        (1, "KeyError", "train.log:3"), (0, "ValueError", "train.log:20004"),
    ]  # fmt: skip
