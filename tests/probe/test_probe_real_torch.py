"""The probe in real torch processes: pages, torch's server, pickles, forks, restarts."""

import contextlib
import http.client
import io
import json
import os
import pickle
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="these tests run real torch processes")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]

ALONE = """
import os, sys, time, torch, torch.distributed as d
d.init_process_group("gloo", store=d.HashStore(), rank=0, world_size=1)
def step():
    d.all_reduce(torch.ones(4))
for _ in range(5):
    step()
def wait(path, seconds=90):
    end = time.monotonic() + seconds
    while not os.path.exists(path) and time.monotonic() < end:
        time.sleep(0.02)
"""

TWO = """
import os, sys, time, torch, torch.distributed as d
d.init_process_group("gloo")
rank = d.get_rank()
pair = d.new_group([0, 1])
def steps(path):
    stop = torch.zeros(1)
    while not stop.item():
        stop[0] = float(os.path.exists(path))
        d.all_reduce(stop, op=d.ReduceOp.MAX, group=pair)
        time.sleep(0.01)
"""

RANK0 = {"RANK": "0", "WORLD_SIZE": "1"}


def torchrun(rig, text, *flags, **variables):
    argv = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone")
    return rig.start(*argv, *flags, rig.script(text), env=rig.env(**variables))


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path, timeout):
        super().__init__("rank", timeout=timeout)
        self.path = str(path)

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.path)


def post(path, handler, timeout=20):
    connection = UnixConnection(path, timeout)
    with contextlib.closing(connection):
        connection.request("POST", f"/handler/{handler}")
        answer = connection.getresponse()
        return answer.status, answer.read()


def ask(page, **request):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.sendto(json.dumps(request).encode(), page.control)


class NoGlobals(pickle.Unpickler):
    def find_class(self, module, name):
        raise pickle.UnpicklingError(f"{module}.{name}")

    def persistent_load(self, pid):
        raise pickle.UnpicklingError("persistent id")


def alone(rig, text, **variables):
    """A single rank that has ticked with an initialised group: (process, page)."""
    env = rig.env(**RANK0, **variables)
    job = rig.start(sys.executable, "-u", rig.script(ALONE + text), env=env)

    def look():
        assert job.poll() is None, job.outputs[1].read_text()
        page = rig.page(job.pid)
        return page if page and page.initialised and page.status else None

    return job, rig.until(look, "a page with status")


def test_a_two_rank_job_has_two_pages_with_groups_and_counts(rig):
    """The launcher has none; counts move; the job's output and exit are its own."""
    job = torchrun(
        rig, TWO + "steps('end')\nos.write(1, b'done %d\\n' % rank)\nd.destroy_process_group()\n"
    )
    first = rig.until(
        lambda: len(p := rig.pages()) == 2 and all(q.status for q in p) and p, "pages"
    )
    assert [(p.rank, p.world_size, p.local_rank, p.proved) for p in first] == [
        (0, 2, 0, True),
        (1, 2, 1, True),
    ]
    assert all([g.ranks for g in p.groups] == [(0, 1), (0, 1)] for p in first)
    assert first[0].groups[0].desc == "default_pg"

    def moved(after, before):
        """A later tick that saw later steps; on a loaded machine a tick may see none."""
        steps = after.status[-1][1].completed > before.status[-1][1].completed
        return after.tick > before.tick and steps

    def next_tick():
        pages = rig.pages()
        return pages if all(map(moved, pages, first)) else None

    later = rig.until(next_tick, "the next tick")
    for before, after in zip(first, later, strict=True):
        assert after.status[-1][1].completed > before.status[-1][1].completed
        assert not after.stale
    assert rig.page(job.pid) is None
    (rig.base / "end").touch()
    assert job.wait(60) == 0
    assert sorted(job.outputs[0].read_text().splitlines()) == ["done 0", "done 1"]
    assert "WorkerServer" not in job.outputs[1].read_text()
    assert all(page.exiting for page in rig.pages())
    assert rig.problems() == ""


def test_while_the_gil_is_held_the_page_goes_stale_and_the_server_still_answers(rig):
    text = "import re\nopen('held', 'w').close()\nre.match(r'(a+)+$', 'a' * 60 + 'b')\n"
    job, page = alone(rig, "wait('go')\n" + text)
    (rig.base / "go").touch()
    stale = rig.until(lambda: (p := rig.page(job.pid)).stale and p, "a stale page")
    assert stale.age_s > 3
    status, body = post(page.server, "fr_trace_json")
    answer = json.loads(body)
    assert status == 200
    assert [entry["profiling_name"] for entry in answer["entries"]] == ["gloo:all_reduce"] * 5
    assert rig.page(job.pid).tick == stale.tick
    job.kill()


def test_a_stopped_process_goes_stale_and_recovers(rig):
    job, _ = alone(rig, "wait('end')\n")
    os.kill(job.pid, signal.SIGSTOP)
    stopped = rig.until(lambda: (p := rig.page(job.pid)).stale and p, "a stale page")
    os.kill(job.pid, signal.SIGCONT)
    rig.until(lambda: not (p := rig.page(job.pid)).stale and p.tick > stopped.tick, "fresh pages")
    (rig.base / "end").touch()
    assert job.wait(30) == 0


def test_a_pickle_with_frames_is_written_on_request_and_needs_no_globals(rig):
    _, page = alone(rig, "wait('end')\n")
    place = rig.run_dir / "incident"
    place.mkdir()
    target = place / "fr_trace_rank_0"
    ask(page, do="fr-pickle", to=str(target), recorder="cpu", stacks=True)
    rig.until(target.exists, "the pickle")
    found = NoGlobals(io.BytesIO(target.read_bytes())).load()
    frames = [frame for entry in found["entries"] for frame in entry["frames"]]
    assert len(found["entries"]) == 5
    assert any(f["name"] == "step" and Path(f["filename"]).name == "job.py" for f in frames)
    ask(page, do="fr-pickle", to=str(place / "bare"), recorder="cpu", stacks=False)
    rig.until((place / "bare").exists, "the pickle without frames")
    bare = NoGlobals(io.BytesIO((place / "bare").read_bytes())).load()
    assert not any(entry.get("frames") for entry in bare["entries"])
    assert not list(place.glob("*.part"))


def test_requests_that_cannot_be_met_say_why_and_write_nowhere_else(rig):
    job, page = alone(rig, "wait('end')\n")
    outside = rig.base / "outside"
    (rig.run_dir / "link").symlink_to(rig.base)
    for path in (outside, rig.run_dir / ".." / "outside", rig.run_dir / "link" / "outside"):
        ask(page, do="fr-pickle", to=str(path), recorder="cpu")
    ask(page, do="rm")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.sendto(b"\xff\xfe", page.control)
    missing = rig.run_dir / "there"
    ask(page, do="fr-pickle", to=str(missing), recorder="tpu")
    text = rig.until(lambda: (p := Path(f"{missing}.err")).exists() and p.read_text(), "a reason")
    assert "unknown recorder" in text and text.count("\n") == 1
    assert not missing.exists() and not list(rig.base.glob("outside*"))
    for word in ("not inside the run", "unknown request 'rm'", "unreadable request"):
        assert word in rig.problems()
    tick = rig.page(job.pid).tick
    rig.until(lambda: rig.page(job.pid).tick > tick, "it still ticks")


NOISE = """
import threading
line = b"%06d " + b"x" * 90 + b"\\n"
def shout(start):
    for n in range(start, start + 2000):
        os.write(2, line % n)
        if n % 10 == 0:
            time.sleep(0.01)
threads = [threading.Thread(target=shout, args=(n,)) for n in (0, 10_000, 20_000)]
[t.start() for t in threads]
[t.join() for t in threads]
sys.stderr.write("the end\\n")
"""


def test_a_job_that_prints_all_the_time_loses_no_byte_and_gains_none(rig):
    """The server starts while three threads write to stderr; sorted, because they race."""
    env = rig.env(**RANK0)
    script = rig.script(ALONE + NOISE)
    code, out, err = rig.run(sys.executable, script, env=env)
    plain = {k: v for k, v in env.items() if k != "PYTHONPATH"}
    code0, out0, err0 = rig.run(sys.executable, script, env=plain)
    assert (code, out) == (code0, out0) == (0, "")
    assert sorted(err.splitlines()) == sorted(err0.splitlines())
    assert len(err0) == 6000 * 98 + 8
    (page,) = rig.pages()
    assert page.server.endswith(f"w{page.pid}.sock"), rig.problems()


def test_a_rank_that_forks_helpers_which_exit_lives_on_and_its_server_too(rig):
    """The server's destructor in a child would shut down the parent's socket: SIGABRT.

    Forked before the group exists: after that Gloo itself hangs in such a child.
    """
    text = """
import os, sys, time, torch.distributed
def wait(path, seconds=90):
    end = time.monotonic() + seconds
    while not os.path.exists(path) and time.monotonic() < end:
        time.sleep(0.02)
wait('go')
for n in range(10):
    pid = os.fork()
    if not pid:
        sys.exit(n)
    assert os.waitpid(pid, 0)[1] == n << 8
open('forked', 'w').close()
wait('end')
"""
    job = rig.start(sys.executable, rig.script(text), env=rig.env(**RANK0))
    page = rig.until(lambda: (p := rig.page(job.pid)) and p.server and p, "a server")
    assert post(page.server, "ping")[0] == 200
    (rig.base / "go").touch()
    rig.until(lambda: (rig.base / "forked").exists() or job.poll() is not None, "the forks")
    assert job.poll() is None
    assert post(page.server, "fr_trace_json")[0] == 200
    (rig.base / "end").touch()
    assert job.wait(30) == 0
    assert job.outputs[1].read_text() == ""


def test_forks_at_any_moment_are_safe(rig):
    """300 forks while the probe's thread ticks as fast as it can."""
    text = """
core = sys.modules["_fabwatch_probe.core"]
core.pageformat.TICK_S = 0.001
wait('go', 3)
for n in range(300):
    pid = os.fork()
    if not pid:
        import json, threading
        json.dumps({"n": n})
        thread = threading.Thread(target=time.sleep, args=(0,))
        thread.start()
        thread.join()
        os._exit(0)
    deadline = time.monotonic() + 20
    while os.waitpid(pid, os.WNOHANG) == (0, 0):
        assert time.monotonic() < deadline, "a child hangs"
        time.sleep(0.0005)
"""
    job, _ = alone(rig, text)
    assert job.wait(90) == 0, job.outputs[1].read_text()


def links(folder):
    """What the descriptors of a process or thread point to, by number."""
    found = {}
    for entry in folder.iterdir():
        with contextlib.suppress(OSError):
            found[entry.name] = str(entry.readlink())
    return found


def listening(path):
    """The inode of the socket that listens at ``path`` (accepted connections bear its name too)."""
    table = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()]
    (inode,) = [row[6] for row in table if row[-1] == path and row[3] == "00010000"]
    return inode


def test_the_servers_threads_hold_no_file_of_the_job_and_take_no_signal(rig):
    """Else a pipe would never end, and a signal's wake-up byte would be lost."""
    job, page = alone(rig, "ends = os.pipe()\nwait('end')\n")
    process = Path("/proc", str(job.pid))
    private = []
    for task in (process / "task").iterdir():
        files = links(task / "fd")
        if files.get("0") == files.get("1") == files.get("2") == "/dev/null":
            private.append(task)
            others = [target for target in files.values() if not target.startswith("socket:")]
            assert others == ["/dev/null"] * 3
            blocked = (task / "status").read_text().split("SigBlk:\t")[1].split()[0]
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGCHLD, 64):
                assert int(blocked, 16) >> (number - 1) & 1
            assert not int(blocked, 16) >> (signal.SIGSEGV - 1) & 1
    assert private, rig.problems()
    inode = listening(page.server)
    assert f"socket:[{inode}]" not in links(process / "fd").values()


@pytest.mark.parametrize(
    ("patch", "private"),
    [
        ("quiet._CLOSE_RANGE = 100_000", True),
        ("quiet._own_files = lambda libc: False", False),
    ],
    ids=["kernel before 5.9", "unshare forbidden"],
)
def test_on_old_kernels_and_under_filters_the_server_is_as_quiet(rig, patch, private):
    """Without a file table of its own it is torch's log level that keeps it quiet."""
    text = f"""
import sys, time, torch.distributed as d
quiet = sys.modules["_fabwatch_probe.quiet"]
{patch}
d.init_process_group("gloo", store=d.HashStore(), rank=0, world_size=1)
time.sleep(60)
"""
    job = rig.start(sys.executable, rig.script(text), env=rig.env(**RANK0))
    page = rig.until(lambda: (p := rig.page(job.pid)) and p.server and p, "a server")
    assert post(page.server, "ping")[0] == 200
    assert ("shares the job's file table" in rig.problems()) is not private
    inode = listening(page.server)
    mine = links(Path("/proc", str(job.pid), "fd")).values()
    assert (f"socket:[{inode}]" in mine) is not private
    assert job.outputs[1].read_text() == ""


def test_signals_wake_the_jobs_event_loop_as_ever(rig):
    text = """
import asyncio, signal
async def main():
    seen = 0
    event = asyncio.Event()
    def handler():
        nonlocal seen
        seen += 1
        event.set()
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, handler)
    open('ready', 'w').close()
    while seen < 50:
        await asyncio.wait_for(event.wait(), 20)
        event.clear()
        open(f'seen-{seen}', 'w').close()
asyncio.run(main())
"""
    job, _ = alone(rig, "wait('go')\n" + text)
    (rig.base / "go").touch()
    rig.until((rig.base / "ready").exists, "the handler")
    for n in range(1, 51):
        os.kill(job.pid, signal.SIGUSR1)
        rig.until((rig.base / f"seen-{n}").exists, f"signal {n}", 30)
    assert job.wait(30) == 0, job.outputs[1].read_text()


def test_an_elastic_restart_gives_each_attempt_its_pages(rig):
    """Rank 1 fails once: its exception is recorded, the second attempt has new pids.

    A store of its own for each attempt: in torchrun's, Gloo finds the first attempt's addresses
    and often fails or hangs in the second, also without us.
    """
    text = """
import os, time, torch.distributed as d
rank, attempt = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
store = d.FileStore(os.path.abspath(f"store-{attempt}"), 2)
d.init_process_group("gloo", store=store, rank=rank, world_size=2)
for n in range(40):
    d.barrier()
    time.sleep(0.05)
    if (rank, attempt, n) == (1, 0, 30):
        raise ValueError("first attempt")
time.sleep(1)
os._exit(0)
"""
    job = torchrun(rig, text, "--max-restarts=1")
    assert job.wait(110) == 0, job.outputs[1].read_text()
    pages = rig.pages()
    assert {(page.rank, page.attempt) for page in pages} == {(0, 0), (1, 0), (0, 1), (1, 1)}
    assert len({page.pid for page in pages}) == 4
    made = {record["rank"]: record for record in rig.exceptions()}
    assert (made[1]["type"], made[1]["message"]) == ("ValueError", "first attempt")
    assert made[1]["pid"] in [p.pid for p in pages if (p.rank, p.attempt) == (1, 0)]


def test_an_exception_in_torchs_spawn_is_recorded_for_its_rank(rig):
    text = """
import os, sys, time, torch, torch.distributed as d, torch.multiprocessing as mp
def work(rank):
    store = "file://" + os.path.abspath("store")
    d.init_process_group("gloo", init_method=store, rank=rank, world_size=2)
    d.barrier()
    time.sleep(2)
    if rank == 1:
        raise ValueError("spawned")
    time.sleep(60)
if __name__ == "__main__":
    mp.spawn(work, nprocs=2)
"""
    code, _, err = rig.run(sys.executable, rig.script(text), env=rig.env())
    assert code == 1 and "ValueError: spawned" in err
    made = {record["rank"]: record for record in rig.exceptions()}
    assert (made[1]["type"], made[1]["message"]) == ("ValueError", "spawned")
    assert made[1]["frames"][-1]["function"] == "work"
    assert [page.rank for page in rig.pages()] == [0, 1]


def test_data_loader_workers_are_no_ranks(rig):
    text = """
import os, time, torch, torch.distributed as d
class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 40
    def __getitem__(self, n):
        time.sleep(0.05)
        return torch.tensor([os.getpid()])
if __name__ == "__main__":
    d.init_process_group("gloo", store=d.HashStore(), rank=0, world_size=1)
    for how in ("fork", "spawn"):
        loader = torch.utils.data.DataLoader(Data(), num_workers=2, multiprocessing_context=how)
        print(*{int(item) for item in loader}, flush=True)
    open("loaded", "w").close()
    time.sleep(60)
"""
    env = rig.env(**RANK0)
    job = rig.start(sys.executable, "-u", rig.script(text), env=env)
    rig.until(lambda: (rig.base / "loaded").exists() or job.poll() is not None, "both loaders")
    assert job.poll() is None, job.outputs[1].read_text()
    assert len(job.outputs[0].read_text().split()) == 4
    assert [page.pid for page in rig.pages()] == [job.pid]


def test_measured_what_the_probe_costs(rig, capsys):
    """Printed, not asserted: import of torch with and without, ticks, server, exit."""
    text = (
        "import time; a = time.perf_counter()\n"
        "import torch.distributed\n"
        "print(time.perf_counter() - a)\n"
    )
    env = rig.env(**RANK0)
    plain = {k: v for k, v in env.items() if k != "PYTHONPATH"}
    with_us, without, start = [], [], []
    for _ in range(3):
        with_us.append(float(rig.python(text, env=env)[1]))
        without.append(float(rig.python(text, env=plain)[1]))
    for chosen in (env, plain):
        before = time.perf_counter()
        for _ in range(10):
            subprocess.run([sys.executable, "-c", "pass"], env=chosen, check=True)
        start.append((time.perf_counter() - before) / 10)
    job, page = alone(rig, "wait('end')\n")
    costs = {}
    while len(costs) < 5:
        page = rig.until(lambda: rig.page(job.pid), "a page")
        costs[page.tick] = page.cost_us
        time.sleep(0.2)
    threads = len(list(Path("/proc", str(job.pid), "task").iterdir()))
    with capsys.disabled():
        print(f"\nimport torch.distributed: {min(with_us):.3f} s, without {min(without):.3f} s")
        print(f"start of python: {start[0] * 1e3:.1f} ms, without {start[1] * 1e3:.1f} ms")
        print(f"CPU time of a tick: {sorted(costs.values())} us; threads of the rank: {threads}")
    assert min(with_us + without) > 0
