"""Collectors against what they talk to: the probe's thread, RAS, logs, py-spy's output."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fabwatch.watchdog import cgroups, procfs
from fabwatch.watchdog.capture import libraries
from fabwatch.watchdog.collectors import (
    exception,
    exits,
    fr_frames,
    interfaces,
    job_log,
    kernel_log,
    native_stack,
    pg_status,
    process,
    python_stack,
    ras,
)
from fabwatch.watchdog.evidence.ledger import Status
from fabwatch.watchdog.probe import pageformat

# ------------------------------------------------------------------ frames through the probe


class Probe:
    """A control socket as the probe's thread serves it."""

    def __init__(self, path: Path, answer: Callable[[dict[str, Any]], None]) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(str(path))
        self.answer = answer
        threading.Thread(target=self.loop, daemon=True).start()

    def loop(self) -> None:
        while True:
            try:
                order = json.loads(self.socket.recv(65536))
            except OSError:
                return
            self.answer(order)


@pytest.fixture
def probe(stage: Any) -> Iterator[Callable[[Callable[[dict[str, Any]], None]], None]]:
    made: list[Probe] = []

    def start(answer: Callable[[dict[str, Any]], None]) -> None:
        rank = stage.start()
        made.append(Probe(stage.sockets / f"p{rank.pid}.sock", answer))

    yield start
    for one in made:
        one.socket.close()


def dumped(order: dict[str, Any]) -> None:
    assert order["do"] == "fr-pickle" and order["stacks"] is True
    part = Path(order["to"] + ".part")
    part.write_bytes(b"\x80\x02}q\x00." + order["recorder"].encode())
    part.rename(order["to"])


def frames(stage: Any, seconds: float = 20.0) -> list[Any]:
    return list(fr_frames.collect(stage.target(0, seconds), stage.incident / "ranks/0"))


def test_the_probe_writes_both_dumps(stage: Any, probe: Any) -> None:
    probe(dumped)
    assert {one.path.name: (one.status, one.path.read_bytes()) for one in frames(stage)} == {
        "fr_trace_rank_0": (Status.OK, b"\x80\x02}q\x00.cpu"),
        "nccl_trace_rank_0": (Status.OK, b"\x80\x02}q\x00.nccl"),
    }
    assert len(list((stage.incident / "ranks/0").iterdir())) == 2


@pytest.mark.parametrize(("ranks", "cores", "seconds"), [(8, 64, 7), (4, 2, 10), (64, 2, 14)])
def test_more_ranks_on_fewer_processors_get_more_time(
    ranks: int, cores: int, seconds: float
) -> None:
    assert fr_frames.patience(ranks, cores) == seconds


def test_what_the_probe_could_not_do_is_the_reason(stage: Any, probe: Any) -> None:
    def refuse(order: Any) -> None:
        part = Path(order["to"] + ".part")
        part.write_text("torch 2.1 has no recorder\n")
        part.rename(order["to"] + ".err")

    probe(refuse)
    (only,) = frames(stage)
    assert only.status is Status.FAILED and "torch 2.1 has no recorder" in only.reason


def test_a_probe_without_the_gil_times_out(stage: Any, probe: Any) -> None:
    probe(lambda order: None)
    (only,) = frames(stage, 0.5)
    assert only.status is Status.TIMED_OUT and "GIL" in only.reason


def test_a_dump_of_the_jobs_own_is_taken_for_a_dead_rank(stage: Any) -> None:
    stage.start()
    stage.processes[0].kill()
    stage.processes[0].wait(30)
    (stage.run / "fr").mkdir()
    (stage.run / "fr/nccl_trace_rank_0").write_bytes(b"\x80\x02}.")
    (only,) = frames(stage)
    assert only.status is Status.OK and "by the job itself" in only.reason
    assert only.path.read_bytes() == b"\x80\x02}."


def test_without_a_dump_a_dead_rank_is_absent(stage: Any) -> None:
    stage.start()
    stage.processes[0].kill()
    stage.processes[0].wait(30)
    (only,) = frames(stage)
    assert only.status is Status.ABSENT and "has ended" in only.reason


def test_nccls_pipe_is_asked_when_the_probe_is_not_there(stage: Any) -> None:
    stage.start()
    (stage.run / "fr").mkdir()
    pipe = stage.sockets / "fr-pipe-0.pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)

    def monitor() -> None:
        stage.eventually(lambda: _read(reader) != b"")
        (stage.run / "fr/nccl_trace_rank_0").write_bytes(b"\x80\x02]." * 10)

    thread = threading.Thread(target=monitor)
    thread.start()
    (only,) = frames(stage)
    thread.join(60)
    os.close(reader)
    assert only.status is Status.OK and "pipe" in only.reason


def _read(fd: int) -> bytes:
    try:
        return os.read(fd, 10)
    except BlockingIOError:
        return b""


# ------------------------------------------------------------------ progress page


def page(stage: Any, payload: bytes, age_s: float = 0.0) -> Any:
    rank = stage.start()
    now = time.monotonic_ns() - int(age_s * 1e9)
    raw = pageformat.pack(pageformat.Raw(2, now, time.time_ns(), 7, payload))
    (stage.run / "live" / f"{rank.pid}.page").write_bytes(raw)
    (only,) = pg_status.collect(stage.target(), stage.incident / "ranks/0")
    return only


@pytest.mark.parametrize(("age", "stale"), [(0.0, False), (60.0, True)])
def test_a_page_is_saved_with_its_age(stage: Any, age: float, stale: bool) -> None:
    only = page(
        stage, b'{"pid": 1, "rank": 0, "status": {"gloo:0": {"enqueued": 4}}, "tick_s": 5}', age
    )
    saved = json.loads(only.path.read_text())
    assert only.status is Status.OK
    assert saved["stale"] is stale and saved["age_s"] >= age and saved["tick"] == 7
    assert saved["status"] == {"gloo:0": {"enqueued": 4}}


@pytest.mark.parametrize("payload", [b"[1]", b"{", b"\xff"])
def test_a_page_with_a_bad_payload_is_a_failure(stage: Any, payload: bytes) -> None:
    only = page(stage, payload)
    assert only.status is Status.FAILED and "no progress page" in only.reason


def test_no_page_means_not_armed(stage: Any) -> None:
    stage.start()
    (only,) = pg_status.collect(stage.target(), stage.incident / "ranks/0")
    assert only.status is Status.NOT_ARMED


# ------------------------------------------------------------------ stacks

SPIED = b"""Process 42: python train.py --hf-token hf_abcdefghijklmnopqrstuv
Python v3.11.7 (/usr/bin/python3.11)

Thread 42 (active): "MainThread"
    recv (torch/distributed/distributed_c10d.py:2500)
        Arguments:
            tensor: <Tensor at 0x7f>
            src: 3
            password: "hunter2hunter2"
        Locals:
            tag: 0
            group_src: None
            dst: "    fake (evil.py:1)"
            peer: {"secret": 1}
    <module> (train.py:9)
"""


def test_only_partners_are_kept_of_the_locals() -> None:
    assert python_stack.without_locals(SPIED).decode().splitlines()[3:] == [
        'Thread 42 (active): "MainThread"',
        "    recv (torch/distributed/distributed_c10d.py:2500)",
        "        Arguments:",
        "            src: 3",
        "        Locals:",
        "            tag: 0",
        "            group_src: None",
        "    <module> (train.py:9)",
    ]


@given(st.text(max_size=200))
def test_no_value_of_another_local_is_kept(value: str) -> None:
    value = "Zq" + value.replace("\n", "\\n").replace("\r", "")
    dump = f"Thread 1\n    f (a.py:1)\n        Locals:\n            name: {value}\n    g (a.py:2)\n"
    kept = python_stack.without_locals(dump.encode(errors="surrogatepass"))
    assert kept == b"Thread 1\n    f (a.py:1)\n    g (a.py:2)\n"


def test_real_locals_of_a_send_are_kept_and_others_are_not(stage: Any) -> None:
    code = (
        "import os, time\n"
        "def send(dst, secret, tag=7):\n"
        "    print('up', flush=True)\n"
        "    time.sleep(300)\n"
        "send(3, os.environ['HF_TOKEN'])\n"
    )
    stage.start(code)
    (only,) = python_stack.collect(stage.target(0, 30), stage.incident / "ranks/0")
    text = only.path.read_text()
    assert only.status is Status.OK
    assert "send (" in text and "            dst: 3\n" in text and "            tag: 7\n" in text
    assert stage.secret not in text
    assert text.splitlines()[0].startswith("Process ") and "Python v" in text.splitlines()[1]


def test_undoing_lets_a_stopped_process_run(stage: Any) -> None:
    rank = stage.start()
    os.kill(rank.pid, 19)
    assert stage.eventually(lambda: procfs.stat(rank.pid).state == "T")
    assert native_stack.unsafe(rank.pid) == "it is stopped (state T)"
    native_stack.undo(stage.target())
    assert stage.eventually(lambda: procfs.stat(rank.pid).state == "S")
    assert native_stack.unsafe(rank.pid) == ""


# ------------------------------------------------------------------ process and exits


def test_children_are_listed_with_their_state(stage: Any) -> None:
    code = (
        "import subprocess, time\n"
        "child = subprocess.Popen(['sleep', '300'])\n"
        "print('up', flush=True)\n"
        "try:\n    time.sleep(300)\nfinally:\n    child.kill()\n"
    )
    rank = stage.start(code)
    (child,) = procfs.children(rank.pid)
    assert stage.eventually(lambda: procfs.stat(child).state == "S"), "it sleeps at last"
    list(process.collect(stage.target(), stage.incident / "ranks/0"))
    text = (stage.incident / "ranks/0/proc_rank_0.txt").read_text()
    os.kill(child, 9)
    assert f"# /proc/{child}/stat\n{child} (sleep) S" in text


def test_cgroups_of_a_dead_rank_are_still_read(stage: Any) -> None:
    rank = stage.start()
    if not any(file.exists() for _, _, file in cgroups.files(rank.cgroups)):
        pytest.skip("no cgroup file can be read here")
    stage.processes[0].kill()
    stage.processes[0].wait(30)
    first, second = process.collect(stage.target(), stage.incident / "ranks/0")
    assert first.status is Status.ABSENT
    assert second.source == "cgroup" and second.status is Status.OK
    assert second.path.name == "cgroup_rank_0.txt"


@given(st.text(max_size=200))
def test_any_text_of_a_membership_is_survived(text: str) -> None:
    for _, _, file in cgroups.files(text):
        assert ".." not in file.parts


def test_exits_are_copied_and_their_absence_was_looked_at(stage: Any) -> None:
    (none,) = exits.collect(stage.target(None), stage.incident)
    assert none.status is Status.OK and none.size == 0
    line = '{"rank": 1, "pid": 4, "code": 1, "order": 1}\n'
    (stage.run / "exits.jsonl").write_text(line)
    (one,) = exits.collect(stage.target(None), stage.incident)
    assert one.path.read_text() == line


def test_exceptions_are_copied_with_secrets_masked(stage: Any) -> None:
    rank = stage.start()
    folder = stage.run / "exceptions"
    folder.mkdir()
    record = {"type": "ValueError", "message": f"bad token={stage.secret}", "frames": []}
    (folder / f"{rank.pid}.json").write_text(json.dumps(record))
    (only,) = exception.collect(stage.target(), stage.incident / "ranks/0")
    assert only.status is Status.OK and "1 secret masked" in only.reason
    assert json.loads(only.path.read_text())["message"] == "bad token=****"


# ------------------------------------------------------------------ logs


def test_the_log_behind_a_ranks_stdout_is_found(stage: Any, tmp_path: Path) -> None:
    log = tmp_path / "train.log"
    with log.open("wb") as out:
        child = subprocess.Popen(
            [sys.executable, "-c", "import time; print('step 1', flush=True); time.sleep(300)"],
            stdout=out,
            stderr=out,
        )
    try:
        stage.processes.append(child)
        assert stage.eventually(lambda: log.read_bytes() == b"step 1\n")
        now = procfs.stat(child.pid)
        rank = {"rank": 5, "pid": child.pid, "start_ticks": now.start_ticks}
        stage.ranks.append(msgspec.convert(rank, type=type(stage.start())))
        job = msgspec.structs.replace(stage.job(), launcher_pid=None, ranks=(stage.ranks[-1],))
        target = stage.target(None)
        target = type(target)(job, target.incident, 1, target.budget, target.until)
        (only,) = job_log.collect(target, stage.incident)
    finally:
        child.kill()
    assert only.path.name == "job.rank_5.train.log"
    assert only.path.read_bytes() == b"step 1\n"


def test_a_given_log_is_cut_to_its_end_at_a_line(stage: Any, tmp_path: Path) -> None:
    log = tmp_path / "big.log"
    log.write_bytes(b"".join(b"line %08d\n" % i for i in range(200_000)))
    job = msgspec.structs.replace(stage.job(), launcher_pid=None, logs=(str(log),))
    target = stage.target(None)
    target = type(target)(job, target.incident, 1, target.budget, target.until)
    (only,) = job_log.collect(target, stage.incident)
    text = only.path.read_bytes()
    assert only.path.name == "job.log" and only.size <= 1 << 20
    assert text.startswith(b"line 0") and text.endswith(b"line 00199999\n")
    assert f"of {log.stat().st_size} bytes" in only.reason


def test_output_to_a_pipe_is_absent_and_says_so(stage: Any) -> None:
    stage.start()
    job = msgspec.structs.replace(stage.job(), launcher_pid=None)
    target = stage.target(None)
    target = type(target)(job, target.incident, 1, target.budget, target.until)
    (only,) = job_log.collect(target, stage.incident)
    assert only.status is Status.ABSENT and "a pipe" in only.reason


# ------------------------------------------------------------------ RAS


class RasServer:
    """What NCCL's RAS says, line by line; ``mute`` first connections stay silent."""

    def __init__(self, json_too: bool = True, mute: int = 0) -> None:
        self.json_too, self.mute = json_too, mute
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.port = self.socket.getsockname()[1]
        threading.Thread(target=self.loop, daemon=True).start()
        self.kept: list[socket.socket] = []

    def loop(self) -> None:
        while True:
            try:
                connection, _ = self.socket.accept()
            except OSError:
                return
            if self.mute > 0:
                self.mute -= 1
                self.kept.append(connection)
                continue
            threading.Thread(target=self.serve, args=(connection,), daemon=True).start()

    def serve(self, connection: socket.socket) -> None:
        form = "text"
        with connection, connection.makefile("rwb") as file:
            for line in file:
                said = line.decode().strip()
                if said.startswith("CLIENT PROTOCOL"):
                    file.write(b"SERVER PROTOCOL 2\n")
                elif said == "SET FORMAT json" and self.json_too:
                    form = "json"
                    file.write(b"OK\n")
                elif said.startswith("TIMEOUT"):
                    file.write(b"OK\n")
                elif said.endswith("STATUS"):
                    file.write(b'{"a": 1}\n' if form == "json" else b"Job summary\n")
                    file.flush()
                    return
                else:
                    file.write(b"ERROR: Unknown command " + line)
                file.flush()


@pytest.fixture
def nccl(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Let ranks seem to have an NCCL of a version mapped."""

    def pretend(version: str) -> None:
        monkeypatch.setattr(ras, "_nccl", lambda pid: "/x/libnccl.so.2")
        monkeypatch.setattr(ras, "version", lambda path: version)

    return pretend


def ask_ras(stage: Any, port: int, seconds: float = 20.0) -> list[Any]:
    stage.start(NCCL_RAS_ADDR=f"127.0.0.1:{port}")
    return list(ras.collect(stage.target(None, seconds), stage.incident / "hosts/node-a"))


def test_ras_is_saved_as_json_and_text(stage: Any, nccl: Any) -> None:
    nccl("2.28.9")
    server = RasServer(mute=1)  # a stopped process took the first connection
    found = {o.path.name: o.path.read_bytes() for o in ask_ras(stage, server.port)}
    server.socket.close()
    assert found == {"ras.json": b'{"a": 1}\n', "ras.txt": b"Job summary\n"}


def test_an_old_ras_gives_text_alone(stage: Any, nccl: Any) -> None:
    nccl("2.27.7")
    server = RasServer(json_too=False)
    (only,) = ask_ras(stage, server.port)
    server.socket.close()
    assert only.path.name == "ras.txt" and only.status is Status.OK


def test_a_refused_ras_is_absent_and_written_down(stage: Any, nccl: Any) -> None:
    nccl("2.28.9")
    with socket.create_server(("127.0.0.1", 0)) as gone:
        port = gone.getsockname()[1]
    (only,) = ask_ras(stage, port)
    assert only.status is Status.ABSENT and "connection refused" in only.reason
    assert (stage.incident / "hosts/node-a/ras.json").read_text().startswith("RAS failed: ")


def test_a_mute_ras_times_out(stage: Any, nccl: Any) -> None:
    nccl("2.28.9")
    server = RasServer(mute=100)
    outcomes = ask_ras(stage, server.port, 2.5)
    server.socket.close()
    assert {o.status for o in outcomes} == {Status.TIMED_OUT}


def test_an_old_nccl_is_not_asked_before_it_has_finished_anything(stage: Any, nccl: Any) -> None:
    nccl("2.26.2")
    server = RasServer()
    (only,) = ask_ras(stage, server.port)
    assert only.status is Status.ABSENT and "not asked" in only.reason
    payload = b'{"pid": 1, "rank": 0, "status": {"nccl:0": {"completed": 3}}}'
    raw = pageformat.pack(pageformat.Raw(2, time.monotonic_ns(), time.time_ns(), 7, payload))
    (stage.run / "live" / f"{stage.ranks[0].pid}.page").write_bytes(raw)
    target = stage.target(None, 20)
    outcomes = list(ras.collect(target, stage.incident / "hosts/node-a"))
    server.socket.close()
    assert [o.status for o in outcomes] == [Status.OK, Status.OK]


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("localhost:28028", ("localhost", 28028)),
        ("[::1]:5", ("::1", 5)),
        ("10.0.0.1", None),
        ("a:b", None),
        ("", None),
    ],
)
def test_addresses(text: str, place: tuple[str, int] | None) -> None:
    assert ras.address(text) == place


# ------------------------------------------------------------------ host


def test_interfaces_can_be_read_without_ip() -> None:
    lines = interfaces.from_sysfs(Path("/sys/class/net")).decode().splitlines()
    assert any(line.startswith("lo/statistics/rx_bytes ") for line in lines)
    assert interfaces.from_sysfs(Path("/nonexistent")) == b""


def test_the_kernel_log_can_be_read_without_dmesg() -> None:
    try:
        text = kernel_log.kmsg()
    except OSError as err:
        pytest.skip(f"/dev/kmsg: {err}")
    assert b";" in text


def test_versions_come_from_package_name_or_file_name(tmp_path: Path) -> None:
    site = tmp_path / "lib/site-packages"
    (site / "nvidia/nccl/lib").mkdir(parents=True)
    (site / "nvidia_nccl_cu13-2.28.9.dist-info").mkdir()
    assert libraries.version(str(site / "nvidia/nccl/lib/libnccl.so.2")) == "2.28.9"
    real = tmp_path / "libibverbs.so.1.14.50"
    real.write_bytes(b"")
    (tmp_path / "libibverbs.so.1").symlink_to(real)
    assert libraries.version(str(tmp_path / "libibverbs.so.1")) == "1.14.50"
    own = tmp_path / "libnccl.so.2"
    own.write_bytes(b"\0" * 5000 + b"NCCL version 2.19.3+cuda12.3\0")
    assert libraries.version(str(own)) == "2.19.3"
    assert libraries.version(str(tmp_path / "nothing.so")) == ""
