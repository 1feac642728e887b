"""Test beds: hosts that are apart, reach each other, and leave nothing behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fabwatch.chaos.testbed import Bed, BedError, Spec, open_bed, why_not
from fabwatch.chaos.testbed.spec import share

REASON = why_not()
REASON_ROOTLESS = why_not(rootless=True)
needs_bed = pytest.mark.skipif(REASON is not None, reason=f"no test bed here: {REASON}")
needs_rootless = pytest.mark.skipif(
    REASON_ROOTLESS is not None, reason=f"no user namespaces here: {REASON_ROOTLESS}"
)

HELLO = """
import os, socket, sys
import torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.ones(50_000) * dist.get_rank()
dist.all_reduce(total)
line = f"rank {dist.get_rank()} {socket.gethostname()} {int(total[0])}\\n"
os.write(1, line.encode())
dist.barrier()
dist.destroy_process_group()
sys.exit(int(os.environ.get("FAIL_WITH", 0)) if dist.is_available() and "host1" in line else 0)
"""


@pytest.fixture(scope="module")
def bed() -> Iterator[Bed]:
    with open_bed(hosts=2, rails=2) as made:
        yield made


def eventually(what: Callable[[], bool], within: float = 30.0) -> bool:
    until = time.monotonic() + within
    while time.monotonic() < until:
        if what():
            return True
        time.sleep(0.05)
    return what()


def network_namespaces() -> set[int]:
    found = set()
    for path in Path("/proc").glob("[0-9]*/ns/net"):
        try:
            found.add(path.stat().st_ino)
        except OSError:
            continue
    return found


def test_gpus_are_shared_out_in_neighbours_and_doubled_when_they_do_not_suffice() -> None:
    gpus = tuple("01234567")
    assert [share(gpus, 4, i) for i in range(4)] == [("0", "1"), ("2", "3"), ("4", "5"), ("6", "7")]
    assert [share(("3",), 2, i) for i in range(2)] == [("3",), ("3",)]
    assert share((), 2, 0) == ()


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"hosts": 0}, "0 hosts"),
        ({"rails": 9}, "9 rails"),
        ({"name": "a/b"}, "the name"),
        ({"subnet": "10.77.1"}, "the subnet"),
        ({"seconds": -1}, "seconds to live"),
    ],
)
def test_a_bed_that_cannot_be_is_refused_with_the_number(wrong: dict[str, int], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        Spec(**wrong)  # type: ignore[arg-type]


def test_what_the_user_set_stays_but_addresses_and_identity_are_the_hosts() -> None:
    host = Spec(hosts=2, rails=2, gpus=("4", "5")).plan()[1]
    made = host.environment("x", {"NCCL_IB_DISABLE": "0", "NCCL_SOCKET_IFNAME": "ens5"})
    assert "NCCL_IB_DISABLE" not in made
    assert made["NCCL_SOCKET_IFNAME"] == "eth0,eth1"
    assert made["NCCL_HOSTID"] == "x-host1"
    assert made["CUDA_VISIBLE_DEVICES"] == "5"


@needs_bed
def test_hosts_have_names_addresses_and_interfaces_of_their_own(bed: Bed) -> None:
    said = bed.run(1, ["sh", "-c", "hostname; cat /proc/net/dev; ls /sys/class/net"]).stdout
    assert said.startswith("host1\n")
    assert "eth0:" in said and "eth1:" in said
    assert said.split()[-3:] == ["eth0", "eth1", "lo"]
    switch = bed.run("switch", ["cat", "/proc/net/dev"]).stdout
    assert all(port in switch for port in ("rail0:", "rail1:", "h0r0:", "h1r1:"))


@needs_bed
@pytest.mark.parametrize("rail", [0, 1])
def test_hosts_reach_each_other_by_name_on_every_rail(bed: Bed, rail: int) -> None:
    name = "host0" if rail == 0 else "host0-rail1"
    listen = (
        "import socket; s = socket.create_server(('0.0.0.0', 6000)); print('up', flush=True); "
        "s.settimeout(30); c, who = s.accept(); c.sendall(who[0].encode())"
    )
    ask = f"import socket; print(socket.create_connection(('{name}', 6000), 20).recv(99).decode())"
    server = bed.popen(0, [sys.executable, "-c", listen], stdout=subprocess.PIPE)
    try:
        assert server.stdout is not None
        assert server.stdout.readline() == b"up\n"
        assert bed.run(1, [sys.executable, "-c", ask]).stdout.strip() == f"10.77.{rail}.2"
    finally:
        server.kill()
        server.wait()
        server.stdout.close()


@needs_bed
def test_the_machine_itself_is_not_reachable_and_shows_no_new_interface(bed: Bed) -> None:
    try_out = "import socket; socket.create_connection(('192.0.2.1', 80), 5)"
    done = bed.run(0, [sys.executable, "-c", try_out])
    assert "Network is unreachable" in done.stderr
    assert "h0r0:" not in Path("/proc/net/dev").read_text()


@needs_bed
def test_a_host_that_does_not_exist_is_named_with_those_that_do(bed: Bed) -> None:
    with pytest.raises(KeyError, match="no host 'host7'; there are host0, host1"):
        bed.argv("host7", ["true"])


@needs_bed
def test_the_exit_status_and_the_signal_of_a_command_come_through(bed: Bed) -> None:
    assert bed.run(0, ["sh", "-c", "exit 7"]).returncode == 7
    assert bed.run(0, ["sh", "-c", "kill -TERM $$"]).returncode == -signal.SIGTERM
    missing = bed.run(0, ["no-such-program"])
    assert missing.returncode == 127
    assert "cannot run no-such-program" in missing.stderr


@needs_bed
def test_a_command_dies_with_the_one_who_asked_for_it(bed: Bed) -> None:
    asked = bed.popen(0, ["sleep", "4567"])
    shows = lambda: "sleep\x004567" in everything(bed)  # noqa: E731
    assert eventually(shows)
    asked.kill()
    asked.wait()
    assert eventually(lambda: not shows())


def everything(bed: Bed) -> str:
    return bed.run("switch", ["sh", "-c", "cat /proc/[0-9]*/cmdline 2>/dev/null"]).stdout


@needs_bed
def test_the_end_of_the_block_ends_what_runs_on_the_hosts_daemons_too() -> None:
    before = network_namespaces()
    with open_bed(hosts=2) as bed:
        assert len(network_namespaces() - before) == 3
        daemon = "setsid sleep 4568 >/dev/null 2>&1 & echo $!"
        assert bed.run(0, ["sh", "-c", daemon]).returncode == 0
    assert not bed.alive
    assert eventually(lambda: not network_namespaces() - before)
    assert not running("4568")


def running(word: str) -> bool:
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if word.encode() in path.read_bytes().split(b"\0"):
                return True
        except OSError:
            continue
    return False


OWNER = """
import sys, time
from fabwatch.chaos.testbed import open_bed
with open_bed(hosts=3, rootless=sys.argv[1] == "rootless") as bed:
    bed.popen(0, ["setsid", "sleep", sys.argv[2]])
    bed.popen(1, ["sleep", sys.argv[2]])
    print(bed.init, flush=True)
    time.sleep(600)
"""


@needs_bed
@pytest.mark.parametrize("kind", ["root", pytest.param("rootless", marks=needs_rootless)])
def test_sigkill_of_the_owner_leaves_no_process_and_no_namespace(kind: str) -> None:
    before = network_namespaces()
    word = f"4569.{os.getpid()}{len(kind)}"
    owner = subprocess.Popen([sys.executable, "-c", OWNER, kind, word], stdout=subprocess.PIPE)
    assert owner.stdout is not None
    init = int(owner.stdout.readline())
    assert eventually(lambda: running(word))
    owner.kill()
    owner.wait()
    owner.stdout.close()
    assert eventually(lambda: not Path(f"/proc/{init}").exists())
    assert eventually(lambda: not running(word))
    assert eventually(lambda: not network_namespaces() - before)


@needs_bed
def test_a_bed_with_a_time_limit_ends_by_itself() -> None:
    with open_bed(hosts=1, seconds=1.0) as bed:
        assert eventually(lambda: not bed.alive)
        gone = subprocess.run(bed.argv(0, ["true"]), capture_output=True, text=True, timeout=30)
        assert gone.returncode == 125
        assert "the test bed is gone" in gone.stderr


@needs_rootless
def test_a_user_without_rights_gets_a_bed_too() -> None:
    with open_bed(hosts=2, rootless=True) as bed:
        assert (
            Path(f"/proc/{bed.init}/ns/user").stat().st_ino
            != Path("/proc/self/ns/user").stat().st_ino
        )
        assert bed.run(1, ["hostname"]).stdout == "host1\n"


@needs_bed
def test_what_cannot_be_set_up_is_said_not_thrown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "")
    with pytest.raises(BedError, match="ended while it was being set up"):
        monkeypatch.setattr(sys, "executable", "/bin/false")
        with open_bed(hosts=1):
            pass


def fabwatch(*words: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "fabwatch", "testbed", *words],
        env={**os.environ, **(env or {})},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=110,
    )


@needs_bed
@pytest.mark.slow
def test_a_bed_that_stands_on_its_own_goes_when_told(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    env = {"XDG_RUNTIME_DIR": str(tmp_path)}
    try:
        assert "host1 eth0=10.77.0.2" in fabwatch("--name", "t1", "up", env=env).stdout
        assert "stands already" in fabwatch("--name", "t1", "up", env=env).stderr
        assert fabwatch("--name", "t1", "exec", "host1", "hostname", env=env).stdout == "host1\n"
        (found,) = json.loads(fabwatch("status", "--json", env=env).stdout)
        assert "no host 'x'" in fabwatch("--name", "t1", "exec", "x", "true", env=env).stderr
    finally:
        down = fabwatch("down", "--all", env=env)
    assert down.stdout == "test bed t1 is gone\n"
    assert not Path(f"/proc/{found['init']}").exists()
    again = fabwatch("--name", "t1", "down", env=env)
    assert again.returncode == 1
    assert "no test bed 't1' stands" in again.stderr


@needs_bed
@pytest.mark.slow
@pytest.mark.parametrize("status", [0, 3])
def test_torchrun_across_two_hosts_reduces_over_the_wire(tmp_path: Path, status: int) -> None:
    pytest.importorskip("torch")
    script = tmp_path / "hello.py"
    script.write_text(HELLO)
    done = fabwatch(
        "--hosts", "2", "--nproc", "2", "--", str(script), env={"FAIL_WITH": str(status)}
    )
    assert sorted(done.stdout.splitlines()) == [
        "rank 0 host0 6",
        "rank 1 host0 6",
        "rank 2 host1 6",
        "rank 3 host1 6",
    ]
    assert (done.returncode != 0) == (status != 0), done.stderr
