"""Run directories: where they are, what they hold, who may remove them; and no job lost to them."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from fabwatch.watchdog.launch import rundir


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_run_is_private_and_says_what_was_launched(launches):
    launches.run(
        ["sh", "-c", "exit 2", "--api-key=hunter2", "--token", "x1", "--lr", "3"],
        notify="n --token=xyz",
    )
    run = launches.run_dir()
    got = launches.launch_json()
    assert mode_of(run) == 0o700
    assert mode_of(run / "launch.json") == 0o600
    assert got["run_id"].startswith(run.name + "-")  # and a suffix that no other run has
    assert got["schema"] == "fabwatch.launch/1"
    assert got["argv"] == ["sh", "-c", "exit 2", "--api-key=****", "--token", "****", "--lr", "3"]
    assert got["options"]["notify"] == "n --token=****"
    assert got["cwd"] == str(launches.folder)
    assert got["host"] == socket.gethostname()
    assert got["outcome"] == {"code": 2}
    assert got["ended"] >= got["started"]
    assert {"exceptions", "fr", "incidents", "live", "nccl"} <= {p.name for p in run.iterdir()}


def test_sockets_have_a_short_private_directory_that_goes_at_the_end(launches):
    show = "import os; p = os.environ['FABWATCH_SOCKETS']; print(p, oct(os.stat(p).st_mode)[-3:])"
    _, out, _ = launches.run([sys.executable, "-c", show])
    path, mode = out.decode().split()
    assert mode == "700"
    assert len(path) < 70
    assert not Path(path).exists()


def test_two_runs_of_one_second_have_two_directories(launches):
    for _ in range(3):
        launches.run(["true"], job_name="same name/..")
    names = {path.name for path in launches.out.iterdir()}
    assert len(names) == 3
    assert all(name.startswith("same-name-2") for name in names)


@pytest.mark.parametrize("out", ["file/below", "/proc/no/such", "/dev/null"])
def test_where_no_run_can_be_made_the_job_runs_unwatched(launches, out):
    (launches.folder / "file").write_text("")
    job = ["sh", "-c", "echo ran; env | grep -c ^FABWATCH_RUN; kill -TERM $$"]
    code, stdout, err = launches.run(job, out=out)
    assert (code, stdout) == (-15, b"ran\n0\n")
    assert b"fabwatch: " in err
    assert b"the job runs unwatched" in err
    assert launches.run(job, out=out, quiet=True)[2] == b""


def test_a_command_that_is_missing_is_named_also_when_unwatched(launches):
    code, _, err = launches.run(["no-such-thing"], out="/dev/null", quiet=True)
    assert code == 127
    assert err == b"fabwatch: no-such-thing: command not found\n"


def test_unwatched_the_job_is_this_very_process(launches):
    proc = launches.start(["sh", "-c", "echo $$"], out="/dev/null")
    out, _ = proc.communicate(timeout=60)
    assert int(out) == proc.pid


@pytest.fixture
def small_disk(tmp_path):
    """A file system of one page that is full."""
    folder = tmp_path / "small"
    folder.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4k", "none", str(folder)], capture_output=True
    )
    if made.returncode:
        pytest.skip(f"a tmpfs cannot be mounted here: {made.stderr.decode().strip()}")
    try:
        (folder / "fill").write_bytes(b"x" * 4096)
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_costs_the_run_and_not_the_job(launches, small_disk):
    code, out, err = launches.run(["sh", "-c", "echo ran; exit 3"], out=str(small_disk / "runs"))
    assert (code, out) == (3, b"ran\n")
    assert b"No space left on device" in err
    assert list((small_disk / "runs").iterdir()) == []  # no half-made run stays


def test_a_directory_that_never_answers_is_given_up(launches, monkeypatch):
    """A dead network file system: the making of the run happens in a child that is left behind."""
    driver = launches.drive.read_text().replace(
        "options, agent", "from fabwatch.watchdog.launch import rundir, stub\n"
        "import time\nstub.PREPARE_S = 0.3\n"
        "rundir.prepare = lambda *a: time.sleep(600)\noptions, agent", 1
    )  # fmt: skip
    launches.drive.write_text(driver)
    code, out, err = launches.run(["sh", "-c", "echo ran; exit 3"])
    assert (code, out) == (3, b"ran\n")
    assert b"no answer in 0.3 s" in err


def test_inside_another_watched_run_it_runs_unwatched_with_a_note(launches):
    env = launches.environ(FABWATCH_RUN_DIR="/somewhere/outer")
    code, out, err = launches.run(["sh", "-c", "echo $FABWATCH_RUN_DIR; exit 4"], env=env)
    assert (code, out) == (4, b"/somewhere/outer\n")
    assert b"already inside a watched run (/somewhere/outer)" in err
    assert not launches.out.exists()


def make_run(out: Path, name: str, started: float, **more) -> Path:
    path = out / name
    (path / "incidents" / "0001").mkdir(parents=True)
    launch = {"schema": rundir.SCHEMA, "started": started, "host": socket.gethostname(), **more}
    (path / "launch.json").write_text(json.dumps(launch))
    (path / "agent.log").write_text("")
    return path


def test_keep_removes_the_oldest_runs_and_nothing_that_is_not_a_finished_run(tmp_path):
    old = [make_run(tmp_path, f"r{n}", 100.0 + n) for n in range(5)]
    mine = make_run(tmp_path, "mine", 500.0)
    precious = make_run(tmp_path, "no-schema", 1.0, schema="other")
    plain = tmp_path / "plain"
    plain.mkdir()
    (plain / "weights.pt").write_text("")
    elsewhere = tmp_path.parent / "elsewhere"
    make_run(tmp_path.parent, "elsewhere", 1.0)
    (tmp_path / "link").symlink_to(elsewhere)
    remote = make_run(tmp_path, "remote", 2.0, host="another-host")
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "launch.json").write_text("{")
    running = make_run(tmp_path, "running", 3.0)
    with (running / "agent.log").open() as held:
        fcntl.flock(held, fcntl.LOCK_SH)
        gone = rundir.prune(tmp_path, 3, mine)
    assert sorted(gone) == old[:3]
    assert not any(path.exists() for path in old[:3])
    stay = [*old[3:], mine, precious, plain / "weights.pt", elsewhere, remote, broken, running]
    assert all(path.exists() for path in stay)
    assert rundir.prune(tmp_path, 3, mine) == [running]  # its lock is free now


def test_a_finished_run_of_another_host_may_go(tmp_path):
    mine = make_run(tmp_path, "mine", 500.0)
    remote = make_run(tmp_path, "remote", 2.0, host="another-host", ended=3.0)
    assert rundir.prune(tmp_path, 1, mine) == [remote]


def test_keep_spares_a_run_that_is_under_way(launches):
    """The stub and its agent hold the lock that the next launch looks at."""
    first = launches.start(["cat"], popen={"stdin": -1}, keep=1, job_name="first")
    launches.agent_pid()
    assert launches.run(["true"], keep=1, job_name="second")[0] == 0
    assert sorted(p.name.split("-")[0] for p in launches.out.iterdir()) == ["first", "second"]
    first.communicate(b"", timeout=60)
    assert launches.run(["sleep", "0.3"], keep=1, job_name="third")[0] == 0
    assert [p.name.split("-")[0] for p in launches.out.iterdir()] == ["third"]


@pytest.mark.parametrize(
    ("argv", "name"),
    [
        (["torchrun", "--nproc-per-node=4", "/x/train.py", "--out", "y.py"], "train"),
        (["python", "-m", "my.trainer"], "my.trainer"),
        (["python3", "-m", "torch.distributed.run", "job.py"], "job"),
        (["bash", "run it.sh"], "run-it"),
        (["/usr/bin/srun", "-n4", "./solver"], "srun"),
        (["..."], "job"),
    ],
)
def test_a_run_is_named_after_its_script_or_module(argv, name):
    assert rundir.job_name(argv) == name


def test_a_free_port_can_be_bound_and_is_below_the_outgoing_range():
    port = rundir.free_port()
    assert port is not None
    assert 20000 <= port < 32000
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", port))


def test_names_in_nccls_own_files_count_as_the_users(tmp_path):
    conf = tmp_path / ".nccl.conf"
    conf.write_text("# NCCL_RAS_ADDR=x\n NCCL_DEBUG = INFO\nnonsense\n")
    assert "NCCL_DEBUG" in rundir.nccl_conf_names({"HOME": str(tmp_path)})
    assert "NCCL_RAS_ADDR" not in rundir.nccl_conf_names({"HOME": str(tmp_path)})
    other = tmp_path / "other.conf"
    other.write_text("NCCL_RAS_ADDR=y\n")
    env = {"HOME": str(tmp_path), "NCCL_CONF_FILE": str(other)}
    assert "NCCL_RAS_ADDR" in rundir.nccl_conf_names(env)


def test_a_long_temporary_directory_is_not_used_for_sockets(tmp_path, monkeypatch):
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(deep))
    path = rundir.new_sockets(tmp_path)
    try:
        assert len(os.fsencode(path)) <= 70
        assert mode_of(path) == 0o700
    finally:
        path.rmdir()
