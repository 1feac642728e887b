"""Flight-recorder JSON from sockets that answer well, badly, slowly, or not at all."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fabwatch.watchdog.capture.unixhttp import Answer, Unanswered, post
from fabwatch.watchdog.collectors import fr_json
from fabwatch.watchdog.evidence.ledger import Status

NO_HANDLER = b"HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\n\r\nnope"
ENTRY = {"collective_seq_id": 1, "profiling_name": "gloo:all_reduce", "retired": True}


def ok(body: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)


def dump(entries: int, filler: int = 0) -> bytes:
    """A flight-recorder answer, keys sorted as torch writes them, newest entry last."""
    made = [{**ENTRY, "record_id": i, "thread_name": "x" * filler} for i in range(entries)]
    body = {"comm_lib_version": "", "entries": made, "pg_status": {"0": {}}, "version": "2.10"}
    return json.dumps(body, separators=(",", ":")).encode()


def request(connection: socket.socket) -> bytes:
    raw = b""
    while b"\r\n\r\n" not in raw:
        raw += connection.recv(4096)
    return raw.split()[1]


def recorder(answers: dict[bytes, bytes]) -> Callable[[socket.socket], None]:
    def answer(connection: socket.socket) -> None:
        connection.sendall(answers.get(request(connection).rpartition(b"/")[2], NO_HANDLER))

    return answer


@pytest.fixture
def ask(stage: Any, serve: Any) -> Callable[..., Any]:
    """Serve one function on rank 0's worker socket and run the collector against it."""

    def run(answer: Callable[[socket.socket], None], seconds: float = 20.0, **options: int) -> Any:
        rank = stage.start()
        (stage.run / "live" / f"{rank.pid}.page").write_bytes(b"")
        serve(stage.sockets / f"w{rank.pid}.sock", answer)
        target = stage.target(0, seconds, **options)
        return list(fr_json.collect(target, stage.incident / "ranks/0"))

    return run


def test_both_recorders_are_saved_as_they_came(ask: Any) -> None:
    cpu, nccl = dump(3), dump(5)
    outcomes = ask(recorder({b"fr_trace_json": ok(cpu), b"dump_nccl_trace_json": ok(nccl)}))
    assert [one.status for one in outcomes] == [Status.OK, Status.OK]
    assert {one.path.name: one.path.read_bytes() for one in outcomes} == {
        "fr_trace_rank_0.json": cpu,
        "nccl_trace_rank_0.json": nccl,
    }


def test_a_build_without_nccl_is_no_gap(ask: Any) -> None:
    (only,) = ask(recorder({b"fr_trace_json": ok(dump(1))}))
    assert only.status is Status.OK


def test_a_build_without_any_recorder_is_absent(ask: Any) -> None:
    (only,) = ask(recorder({}))
    assert only.status is Status.ABSENT and "no CPU flight recorder" in only.reason


def test_a_server_that_accepts_and_is_mute_times_out(ask: Any) -> None:
    (only,) = ask(lambda connection: time.sleep(60), seconds=0.5)
    assert only.status is Status.TIMED_OUT and "did not answer" in only.reason


def test_a_stopped_process_that_never_accepts_times_out(stage: Any) -> None:
    rank = stage.start()
    path = stage.sockets / f"w{rank.pid}.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(0)
        with socket.socket(socket.AF_UNIX) as fills_the_backlog:
            fills_the_backlog.connect(str(path))
            (only,) = fr_json.collect(stage.target(0, 0.5), stage.incident / "ranks/0")
    assert only.status is Status.TIMED_OUT


def test_a_server_that_drips_is_given_up_at_the_deadline(ask: Any) -> None:
    def drip(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
        while True:
            connection.sendall(b"x")
            time.sleep(0.05)

    began = time.monotonic()
    (only,) = ask(drip, seconds=0.6)
    assert time.monotonic() - began < 30
    assert only.status is Status.TIMED_OUT and "of 100000 bytes came in time" in only.reason


def test_nobody_listening_is_absent(stage: Any) -> None:
    rank = stage.start()
    with socket.socket(socket.AF_UNIX) as closed:
        closed.bind(str(stage.sockets / f"w{rank.pid}.sock"))
    (only,) = fr_json.collect(stage.target(), stage.incident / "ranks/0")
    assert only.status is Status.ABSENT and "refused" in only.reason


@pytest.mark.parametrize(
    "garbage",
    [
        b"",
        b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
        b"HTTP/1.1 abc\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: many\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nshort",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        b"HTTP/1.1 500 Oops\r\nContent-Length: 9\r\n\r\nexploded!",
        b"\x00" * 200_000,
    ],
)
def test_garbage_is_a_failure_that_says_what_came(ask: Any, garbage: bytes) -> None:
    def answer(connection: socket.socket) -> None:
        request(connection)
        connection.sendall(garbage)

    (only,) = [one for one in {o.reason: o for o in ask(answer)}.values()][:1]
    assert only.status is Status.FAILED and only.path is None
    assert "worker server" in only.reason


def test_a_hundred_megabytes_become_the_newest_entries(ask: Any) -> None:
    big = dump(100_000, filler=950)
    assert len(big) > 100_000_000
    outcomes = ask(recorder({b"fr_trace_json": ok(big)}), seconds=60, budget=12 << 20)
    (only,) = outcomes
    assert only.status is Status.PARTIAL and "oldest entries were dropped" in only.reason
    assert only.size <= (2 << 20) + 4096
    kept = json.loads(only.path.read_bytes())
    assert kept["version"] == "2.10" and "pg_status" in kept
    ids = [entry["record_id"] for entry in kept["entries"]]
    assert ids == list(range(100_000 - len(ids), 100_000))


def test_a_large_answer_that_is_no_dump_is_cut_in_its_middle(ask: Any) -> None:
    (only,) = ask(recorder({b"fr_trace_json": ok(b"z" * (8 << 20))}), budget=6 << 20)
    assert only.status is Status.PARTIAL and "the middle was cut out" in only.reason
    assert b"[fabwatch: " in only.path.read_bytes()


@pytest.mark.parametrize("sockets", ["", None])
def test_a_job_without_the_probe_was_not_armed(stage: Any, sockets: str | None) -> None:
    stage.start()
    (stage.run / "launch.json").write_text(
        json.dumps({"armed": [{"name": "PYTHONPATH", "armed": False, "reason": "--no-probe"}]})
    )
    (only,) = fr_json.collect(stage.target(), stage.incident / "ranks/0")
    assert only.status is Status.NOT_ARMED
    assert only.reason == "PYTHONPATH: --no-probe"


def test_a_rank_that_the_probe_never_reached_was_not_armed(stage: Any) -> None:
    stage.start()
    (only,) = fr_json.collect(stage.target(), stage.incident / "ranks/0")
    assert only.status is Status.NOT_ARMED and "no progress page" in only.reason


def test_a_rank_with_a_page_and_no_socket_is_absent(stage: Any) -> None:
    rank = stage.start()
    (stage.run / "live" / f"{rank.pid}.page").write_bytes(b"")
    (only,) = fr_json.collect(stage.target(), stage.incident / "ranks/0")
    assert only.status is Status.ABSENT and "no socket" in only.reason


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.binary(max_size=300) | st.binary(max_size=200).map(lambda b: b"HTTP/1.1 " + b))
def test_any_bytes_give_an_answer_or_unanswered(tmp_path: Path, raw: bytes) -> None:
    path = tmp_path / f"s{time.monotonic_ns()}"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.fspath(path))
        listener.listen(1)

        def answer() -> None:
            connection, _ = listener.accept()
            with connection, contextlib.suppress(OSError):
                request(connection)
                connection.sendall(raw)

        thread = threading.Thread(target=answer)
        thread.start()
        try:
            got = post(path, "/", until=time.monotonic() + 30, keep=4096)
            assert isinstance(got, Answer) and 100 <= got.status <= 999
        except Unanswered as err:
            assert str(err)
        thread.join(30)
