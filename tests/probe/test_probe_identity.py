"""Which processes say that they are a rank: the rank, and nobody who inherited its environment."""

import sys

import pytest

RANK1 = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"}

WAIT = """
import os, time
def wait(path, seconds=60):
    end = time.monotonic() + seconds
    while not os.path.exists(path):
        if time.monotonic() > end:
            raise SystemExit("waited in vain for " + path)
        time.sleep(0.02)
"""


def test_a_rank_has_a_page_before_and_after_its_group_exists(rig, fake):
    text = WAIT + (
        "import torch.distributed as d\n"
        "wait('go')\n"
        "d.init_process_group(1, 2)\n"
        "wait('gone')\n"
        "d.destroy_process_group()\n"
        "wait('end')\n"
    )
    env = rig.env(path=[fake], TORCHELASTIC_RESTART_COUNT="3", **RANK1)
    job = rig.start(sys.executable, rig.script(text), env=env)
    page = rig.until(lambda: rig.page(job.pid), "a page")
    assert (page.rank, page.world_size, page.local_rank, page.attempt) == (1, 2, 1, 3)
    assert (page.initialised, page.proved, page.status) == (False, False, ())
    (rig.base / "go").touch()
    page = rig.until(lambda: (p := rig.page(job.pid)).initialised and p, "a group")
    assert page.proved and page.groups[0].ranks == (0, 1)
    ((key, marks),) = page.status
    assert (key, marks.enqueued, marks.started, marks.completed) == ("gloo:0", 7, -1, 6)
    (rig.base / "gone").touch()
    page = rig.until(lambda: not (p := rig.page(job.pid)).initialised and p, "no group")
    assert page.proved and page.rank == 1
    (rig.base / "end").touch()
    assert job.wait(20) == 0
    page = rig.page(job.pid)
    assert page.exiting
    assert rig.exceptions() == []
    assert job.outputs[1].read_text() == ""


def test_a_page_ticks_once_a_second(rig, fake):
    text = WAIT + "import torch.distributed as d\nd.init_process_group(0, 1)\nwait('end')\n"
    job = rig.start(sys.executable, rig.script(text), env=rig.env(path=[fake]))
    first = rig.until(lambda: rig.page(job.pid), "a page")
    later = rig.until(lambda: (p := rig.page(job.pid)).tick >= first.tick + 3 and p, "ticks")
    assert later.epoch_s - first.epoch_s >= 2.0
    assert later.sequence > first.sequence and later.sequence % 2 == 0


def test_ranks_given_by_argument_are_known_once_their_group_exists(rig, fake):
    """As torch.multiprocessing.spawn does it: no RANK in any environment."""
    text = WAIT + (
        "import multiprocessing, sys\n"
        "def work(rank):\n"
        "    import torch.distributed as d\n"
        "    d.init_process_group(rank, 2)\n"
        "    wait('end')\n"
        "if __name__ == '__main__':\n"
        "    import torch.distributed\n"
        "    context = multiprocessing.get_context(sys.argv[1])\n"
        "    made = [context.Process(target=work, args=(r,)) for r in range(2)]\n"
        "    [p.start() for p in made]\n"
        "    [p.join() for p in made]\n"
    )
    for method in ("spawn", "forkserver", "fork"):
        end = rig.base / "end"
        end.unlink(missing_ok=True)
        for page in (rig.run_dir / "live").glob("*.page"):
            page.unlink()
        script = rig.script(text)
        job = rig.start(sys.executable, script, method, env=rig.env(path=[fake]))
        pages = rig.until(lambda: len(p := rig.pages()) == 2 and p, f"two pages with {method}")
        assert [(p.rank, p.world_size) for p in pages] == [(0, 2), (1, 2)]
        assert job.pid not in [p.pid for p in pages]
        end.touch()
        assert job.wait(20) == 0
        assert all(page.exiting for page in rig.pages()), rig.problems()


@pytest.mark.parametrize("method", ["spawn", "forkserver", "fork"])
def test_helpers_that_inherit_a_ranks_environment_have_no_page(rig, fake, method):
    """Data-loader workers import torch.distributed and carry RANK, but are no rank."""
    text = WAIT + (
        "import multiprocessing, os, sys, time\n"
        "def work(queue):\n"
        "    import torch.distributed as d\n"
        "    time.sleep(2.5)\n"
        "    queue.put(os.getpid())\n"
        "if __name__ == '__main__':\n"
        "    import torch.distributed as d\n"
        "    d.init_process_group(1, 2)\n"
        "    context = multiprocessing.get_context(sys.argv[1])\n"
        "    queue = context.Queue()\n"
        "    made = [context.Process(target=work, args=(queue,)) for _ in range(2)]\n"
        "    [p.start() for p in made]\n"
        "    print(*[queue.get() for _ in made])\n"
        "    [p.join() for p in made]\n"
        "    wait('end')\n"
    )
    env = rig.env(path=[fake], **RANK1)
    job = rig.start(sys.executable, "-u", rig.script(text), method, env=env)
    rig.until(lambda: job.outputs[0].read_text().count(" "), "both helpers")
    assert [page.pid for page in rig.pages()] == [job.pid]
    sockets = sorted(path.name for path in rig.sockets.iterdir())
    assert sockets == [f"p{job.pid}.sock"]
    first = rig.page(job.pid).tick
    rig.until(lambda: rig.page(job.pid).tick > first, "the rank still ticks")
    (rig.base / "end").touch()
    assert job.wait(20) == 0
    assert job.outputs[1].read_text() == ""


def test_a_helper_started_before_its_rank_imports_torch_has_no_page(rig, fake):
    text = WAIT + (
        "import subprocess, sys\n"
        "if len(sys.argv) > 1:\n"
        "    import torch.distributed\n"
        "    time.sleep(2.5)\n"
        "    open('helped', 'w').close()\n"
        "else:\n"
        "    subprocess.Popen([sys.executable, __file__, 'helper'])\n"
        "    wait('helped')\n"
        "    import torch.distributed\n"
        "    wait('end')\n"
    )
    job = rig.start(sys.executable, rig.script(text), env=rig.env(path=[fake], **RANK1))
    rig.until(lambda: (rig.base / "helped").exists(), "the helper's end")
    assert rig.pages() == []
    rig.until(lambda: [p.pid for p in rig.pages()] == [job.pid], "the rank's page")


def test_a_shell_around_the_rank_changes_nothing(rig, fake):
    text = WAIT + "import torch.distributed\nwait('end')\n"
    script = rig.script(text)
    env = rig.env(path=[fake], **RANK1)
    rig.start("sh", "-c", f"{sys.executable} {script}; true", env=env)
    assert rig.until(rig.pages, "a page")[0].rank == 1


@pytest.mark.parametrize("variables", [{}, RANK1, {"SLURM_PROCID": "0", "SLURM_NTASKS": "2"}])
def test_a_launcher_is_no_rank_even_if_it_inherited_a_rank(rig, fake, variables):
    """Kubeflow and srun give torchrun itself a RANK: its workers are the ranks."""
    text = WAIT + (
        "import os, subprocess, sys, torch.distributed\n"
        "if len(sys.argv) > 1:\n"
        "    torch.distributed.init_process_group(int(sys.argv[1]), 2)\n"
        "    wait('end')\n"
        "else:\n"
        "    import torch.distributed.launcher.api\n"
        "    made = []\n"
        "    for r in '01':\n"
        "        env = {**os.environ, 'RANK': r, 'WORLD_SIZE': '2', 'TORCHELASTIC_RUN_ID': 'x'}\n"
        "        made.append(subprocess.Popen([sys.executable, __file__, r], env=env))\n"
        "    [p.wait() for p in made]\n"
    )
    env = rig.env(path=[fake], **variables)
    job = rig.start(sys.executable, rig.script(text), env=env)
    pages = rig.until(lambda: len(p := rig.pages()) == 2 and p, "two pages")
    rig.until(lambda: all(rig.page(p.pid).tick > 3 for p in pages), "a few ticks")
    assert [(p.rank, p.proved) for p in rig.pages()] == [(0, True), (1, True)]
    assert rig.page(job.pid) is None
    assert not (rig.sockets / f"p{job.pid}.sock").exists()


def test_a_job_inside_a_rank_is_not_the_job(rig, fake):
    """A rank that runs torchrun for an evaluation: the inner ranks are not ours."""
    text = WAIT + (
        "import os, subprocess, sys, torch.distributed as d\n"
        "if len(sys.argv) > 1:\n"
        "    d.init_process_group(int(sys.argv[1]), 2)\n"
        "    time.sleep(2.5)\n"
        "else:\n"
        "    d.init_process_group(1, 2)\n"
        "    time.sleep(1.2)\n"
        "    for r in '01':\n"
        "        env = {**os.environ, 'RANK': r, 'MASTER_PORT': '1'}\n"
        "        subprocess.run([sys.executable, __file__, r], env=env, check=True)\n"
        "    open('done', 'w').close()\n"
        "    wait('end')\n"
    )
    env = rig.env(path=[fake], TORCHELASTIC_RUN_ID="outer", **RANK1)
    job = rig.start(sys.executable, rig.script(text), env=env)
    rig.until(lambda: (rig.base / "done").exists(), "the inner job")
    assert [page.pid for page in rig.pages()] == [job.pid]
    assert f"inside rank process {job.pid}" in rig.problems()


def test_a_restarted_rank_has_a_page_of_its_own(rig, fake):
    text = (
        "import sys, time, torch.distributed as d\n"
        "d.init_process_group(1, 2)\ntime.sleep(1.5)\nsys.exit(0)\n"
    )
    script, found = rig.script(text), []
    for attempt in "01":
        env = rig.env(path=[fake], TORCHELASTIC_RESTART_COUNT=attempt, **RANK1)
        job = rig.start(sys.executable, script, env=env)
        assert job.wait(30) == 0
        found.append(rig.page(job.pid))
    assert [(p.rank, p.attempt, p.exiting) for p in found] == [(1, 0, True), (1, 1, True)]
    assert found[0].pid != found[1].pid


def test_a_rank_that_executes_itself_anew_keeps_one_page(rig, fake):
    """The same pid, a new interpreter: stale sockets and page are taken over."""
    text = WAIT + (
        "import os, sys, torch.distributed as d\n"
        "d.init_process_group(1, 2)\n"
        "time.sleep(1.5)\n"
        "if len(sys.argv) < 2:\n"
        "    os.execv(sys.executable, [sys.executable, __file__, 'again'])\n"
        "open('again', 'w').close()\n"
        "wait('end')\n"
    )
    job = rig.start(sys.executable, rig.script(text), env=rig.env(path=[fake], **RANK1))
    rig.until(lambda: (rig.base / "again").exists(), "the second program")
    page = rig.until(lambda: (p := rig.page(job.pid)) and not p.stale and p, "a fresh page")
    rig.until(lambda: rig.page(job.pid).tick > page.tick, "ticks")
    assert rig.problems() in ("", "worker server: this torch has no _WorkerServer\n" * 2)


def test_fork_and_exit_leaves_the_ranks_page_and_sockets_alone(rig, fake):
    """The child ends by sys.exit, with all callbacks: the parent's page never says exiting."""
    text = WAIT + (
        "import os, sys, torch.distributed as d\n"
        "d.init_process_group(1, 2)\n"
        "time.sleep(1.2)\n"
        "for n in range(20):\n"
        "    pid = os.fork()\n"
        "    if not pid:\n"
        "        if n % 2:\n"
        "            raise ValueError('in the child')\n"
        "        sys.exit(3)\n"
        "    os.waitpid(pid, 0)\n"
        "open('forked', 'w').close()\n"
        "wait('end')\n"
    )
    job = rig.start(sys.executable, rig.script(text), env=rig.env(path=[fake], **RANK1))
    rig.until(lambda: (rig.base / "forked").exists(), "the forks")
    first = rig.page(job.pid)
    later = rig.until(lambda: (p := rig.page(job.pid)).tick > first.tick + 1 and p, "ticks")
    assert not later.exiting and not later.stale
    assert [page.pid for page in rig.pages()] == [job.pid]
    assert rig.exceptions() == []
    assert (rig.sockets / f"p{job.pid}.sock").exists()


def test_a_job_that_closes_all_descriptors_loses_nothing_and_hurts_nothing(rig, fake):
    """What the job opens under our numbers afterwards is never written, read or closed."""
    text = WAIT + (
        "import os, torch.distributed as d\n"
        "d.init_process_group(1, 2)\n"
        "time.sleep(2)\n"
        "os.closerange(3, 64)\n"
        "fds = [os.open(f'own-{n}', os.O_RDWR | os.O_CREAT) for n in range(20)]\n"
        "time.sleep(4)\n"
        "for n, fd in enumerate(fds):\n"
        "    os.write(fd, b'mine')\n"
        "    assert os.pread(fd, 100, 0) == b'mine', n\n"
        "open('checked', 'w').close()\n"
        "wait('end')\n"
    )
    job = rig.start(sys.executable, rig.script(text), env=rig.env(path=[fake], **RANK1))
    rig.until(lambda: (rig.base / "checked").exists() or job.poll() is not None, "the check")
    assert job.poll() is None, job.outputs[1].read_text()
    first = rig.page(job.pid)
    rig.until(lambda: rig.page(job.pid).tick > first.tick, "ticks after that")


@pytest.mark.parametrize(
    ("age", "status", "problem"),
    [("ancient", 0, ""), ("stubborn", 0, "_dump_fr_trace_json"), ("wordy", 1, "")],
)
def test_other_torch_versions_give_what_they_have(rig, fake, age, status, problem):
    """No recorder; a recorder with other arguments; one that renders everything each time."""
    text = WAIT + (
        "import sys, torch.distributed as d\n"
        "d.init_process_group(1, 2)\n"
        "wait('count')\n"
        "calls = sys.modules['torch._C._distributed_c10d'].calls\n"
        "print(len(calls), flush=True)\n"
        "wait('end')\n"
    )
    env = rig.env(path=[fake], FAKE_TORCH=age, **RANK1)
    job = rig.start(sys.executable, rig.script(text), env=env)
    page = rig.until(lambda: (p := rig.page(job.pid)) and p.proved and p.tick > 4 and p, "ticks")
    assert len(page.status) == status
    assert problem in rig.problems()
    (rig.base / "count").touch()
    count = rig.until(lambda: job.outputs[0].read_text(), "the count")
    assert int(count) == status  # the wordy one is asked once, not at every tick
