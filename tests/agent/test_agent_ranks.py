"""Ranks are found from outside, whatever stands between them and the launcher."""

import contextlib
import os
import subprocess
import sys
import textwrap
import time

import pytest

from fabwatch.watchdog import procfs
from fabwatch.watchdog.agent.watch import output_files
from fabwatch.watchdog.ranks import Finder, PageClaim, claim_of, launches

SLEEP = "import time; print('up', flush=True); time.sleep(120)"


def spawner(body):
    """A launcher that starts what ``body`` says and waits; ``py`` is Python, ``sleep`` a script."""
    return (
        textwrap.dedent(
            f"""
        import os, subprocess, sys
        py, sleep = sys.executable, {SLEEP!r}
        def env(**kw):
            return dict(os.environ, **{{k: str(v) for k, v in kw.items()}})
        kids = []
        """
        )
        + textwrap.dedent(body)
        + "\nprint('all', flush=True)\nfor k in kids: k.wait()\n"
    )


@pytest.fixture
def tree():
    """Start a tree of processes; returns its root once ``lines`` lines were printed by it."""
    started = []

    def start(body, lines, **env):
        clean = {k: v for k, v in os.environ.items() if k not in ("RANK", "WORLD_SIZE")}
        process = subprocess.Popen(
            [sys.executable, "-c", spawner(body)],
            stdout=subprocess.PIPE, env={**clean, **env}, start_new_session=True,
        )  # fmt: skip
        started.append(process)
        for _ in range(lines + 1):
            process.stdout.readline()
        return process.pid

    yield start
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, 9)
        process.wait()
        process.stdout.close()


def found(finder, pages=None, **kw):
    return {(r.rank, r.local_rank, r.world_size): r for r in finder.scan(pages, **kw)}


PLAIN = """
for r in range(3):
    kids.append(subprocess.Popen([py, "-c", sleep], env=env(RANK=r, LOCAL_RANK=r, WORLD_SIZE=3)))
"""


def test_children_with_rank_variables_are_ranks(tree):
    root = tree(PLAIN, 3)
    ranks = found(Finder(root))
    assert sorted(ranks) == [(0, 0, 3), (1, 1, 3), (2, 2, 3)]
    assert all(r.parent == root and r.attempt == 0 for r in ranks.values())


def test_the_launcher_is_the_process_above_all_ranks(tree):
    root = tree(PLAIN, 3)
    finder = Finder(root)
    assert finder.launcher(finder.scan()) == root


def test_a_process_without_rank_variables_is_no_rank(tree):
    root = tree("kids.append(subprocess.Popen([py, '-c', sleep]))", 1)
    assert Finder(root).scan() == ()


def test_a_shell_between_launcher_and_rank_is_not_the_rank(tree):
    root = tree(
        """
        kids.append(subprocess.Popen(["bash", "-c", f'"{py}" -c "$0" & wait', sleep],
            env=env(RANK=5, LOCAL_RANK=1, WORLD_SIZE=8)))
        """,
        1,
    )
    finder = Finder(root)
    (rank,) = finder.scan()
    assert (rank.rank, rank.local_rank, rank.world_size) == (5, 1, 8)
    assert procfs.program(rank.pid).startswith("python")
    assert finder.launcher([rank]) == root, "the shell ends nobody"


def test_workers_that_inherit_the_variables_are_not_ranks(tree):
    worker = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {SLEEP!r}])"
    root = tree(
        f"kids.append(subprocess.Popen([py, '-c', {worker!r}],"
        " env=env(RANK=0, LOCAL_RANK=0, WORLD_SIZE=1)))",
        1,
    )
    (rank,) = Finder(root).scan()
    assert rank.parent == root


def test_ranks_deep_in_the_tree_are_found(tree):
    deep = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]])"
    root = tree(
        f"""
        deep = {deep!r}
        inner = f"import os, subprocess, sys; os.environ.update(RANK='0', LOCAL_RANK='0',"
        inner += f"WORLD_SIZE='1'); subprocess.run([sys.executable, '-c', {{sleep!r}}])"
        middle = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {{inner!r}}])"
        kids.append(subprocess.Popen([py, "-c", deep, middle]))
        """,
        1,
    )
    (rank,) = Finder(root).scan()
    assert rank.rank == 0
    assert rank.parent != root


@pytest.mark.parametrize(
    ("names", "how"),
    [
        (("SLURM_PROCID", "SLURM_LOCALID", "SLURM_NTASKS"), "SLURM_PROCID"),
        (
            ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_SIZE"),
            "OMPI_COMM_WORLD_RANK",
        ),
        (("PMI_RANK", "MPI_LOCALRANKID", "PMI_SIZE"), "PMI_RANK"),
    ],
)
def test_names_of_other_launchers_are_known(tree, names, how):
    rank, local, size = names
    root = tree(
        "for r in range(2):\n"
        f"    kids.append(subprocess.Popen([py, '-c', sleep], env=env({rank}=r+4, {local}=r,"
        f" {size}=8)))",
        2,
    )
    ranks = Finder(root).scan()
    assert [(r.rank, r.local_rank, r.world_size, r.how) for r in ranks] == [
        (4, 0, 8, how),
        (5, 1, 8, how),
    ]


def test_a_launcher_that_itself_carries_a_rank_is_not_a_rank(tree):
    root = tree(
        "for r in range(2):\n"
        "    kids.append(subprocess.Popen([py, '-c', sleep], env=env(RANK=2+r, LOCAL_RANK=r,"
        " WORLD_SIZE=4)))",
        2,
        RANK="1", WORLD_SIZE="2",
    )  # fmt: skip
    ranks = Finder(root).scan()
    assert [r.rank for r in ranks] == [2, 3]
    assert root not in {r.pid for r in ranks}


def test_a_job_of_one_process_is_its_own_rank(tree):
    stay = """
        import time
        class Stay:
            def wait(self):
                time.sleep(120)
        kids.append(Stay())
    """
    root = tree(stay, 0, RANK="0", WORLD_SIZE="1", LOCAL_RANK="0")
    finder = Finder(root)
    (rank,) = finder.scan()
    assert rank.pid == root
    assert finder.launcher([rank]) is None


def test_what_a_page_says_wins_over_the_environment(tree):
    root = tree(
        "for r in range(2):\n    kids.append(subprocess.Popen([py, '-c', sleep]))",
        2,
        RANK="0", WORLD_SIZE="1",
    )  # fmt: skip
    finder = Finder(root)
    (before,) = finder.scan()
    assert before.pid == root
    kids = procfs.children(root)
    pages = {pid: PageClaim(pid, rank, 2, rank, 0) for rank, pid in enumerate(kids)}
    ranks = finder.scan(pages)
    assert [(r.rank, r.pid, r.how) for r in ranks] == [(0, kids[0], "page"), (1, kids[1], "page")]
    assert finder.launcher(ranks) == root


def test_a_page_of_a_process_that_is_gone_makes_no_rank(tree):
    root = tree(PLAIN, 3)
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    ranks = Finder(root).scan({gone.pid: PageClaim(gone.pid, 7, 8, 7, 0)})
    assert [r.rank for r in ranks] == [0, 1, 2]


def test_processes_that_left_the_tree_are_found_by_the_run_they_belong_to(tree):
    root = tree(
        """
        middle = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', sys.argv[1]])"
        subprocess.run([py, "-c", middle, sleep], env=env(RANK=0, LOCAL_RANK=0, WORLD_SIZE=1,
            FABWATCH_RUN_ID="orphan-run"))
        """,
        1,
    )
    finder = Finder(root, "orphan-run")
    assert finder.scan() == ()
    (rank,) = finder.scan(full=True)
    assert rank.rank == 0
    assert Finder(root, "another-run").scan(full=True) == ()


def test_what_outlives_the_rank_that_started_it_is_no_rank(tree):
    """A program that a training step runs has the rank's variables, and no part in the job."""
    body = """
        run = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', sys.argv[1]]).wait()"
        kids.append(subprocess.Popen([py, '-c', run, sleep], env=env(RANK=3, WORLD_SIZE=4)))
    """
    root = tree(body, 1, FABWATCH_RUN_ID="outlived")
    finder = Finder(root, "outlived")
    (rank,) = finder.scan(full=True)
    (child,) = procfs.children(rank.pid)
    os.kill(rank.pid, 9)
    deadline = time.monotonic() + 20
    while (stat := procfs.stat(rank.pid)) and stat.state not in "ZX":
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert procfs.stat(child) is not None
    for _ in range(2):
        assert child not in {one.pid for one in finder.scan(full=True)}


def test_the_newest_attempt_of_a_rank_counts(tree):
    root = tree(
        "for a in range(2):\n"
        "    kids.append(subprocess.Popen([py, '-c', sleep], env=env(RANK=0, LOCAL_RANK=0,"
        " WORLD_SIZE=1, TORCHELASTIC_RESTART_COUNT=a)))",
        2,
    )
    (rank,) = Finder(root).scan()
    assert rank.attempt == 1


def test_a_rank_is_known_by_its_start_and_not_by_its_number(tree):
    root = tree(PLAIN, 3)
    rank = Finder(root).scan()[0]
    assert rank.start_ticks == procfs.stat(rank.pid).start_ticks
    assert rank.start_ticks > procfs.stat(1).start_ticks


def test_our_own_processes_are_skipped(tree):
    root = tree(PLAIN, 3)
    first = Finder(root).scan()[0].pid
    assert [r.rank for r in Finder(root, skip={first}).scan()] == [1, 2]


def test_looking_only_at_what_may_have_changed_gives_the_same_ranks(tree):
    finder = Finder(tree(PLAIN, 3))
    deep = finder.scan()
    assert finder.scan(deep=False) == deep
    assert set(finder.living()) >= {r.pid for r in deep}


@pytest.mark.parametrize(
    ("environ", "claim"),
    [
        ({"RANK": "3", "LOCAL_RANK": "1", "WORLD_SIZE": "8"}, ("RANK", 3, 1, 8, 0)),
        ({"RANK": "3", "WORLD_SIZE": "8"}, ("RANK", 3, -1, 8, 0)),
        ({"RANK": "3"}, None),
        ({"RANK": "gold", "WORLD_SIZE": "8"}, None),
        ({"RANK": "-1", "WORLD_SIZE": "8"}, None),
        ({"RANK": "9" * 30, "WORLD_SIZE": "8"}, None),
        ({"RANK": "²", "WORLD_SIZE": "8"}, None),
        (
            {"SLURM_PROCID": "0", "RANK": "2", "LOCAL_RANK": "0", "WORLD_SIZE": "4"},
            ("RANK", 2, 0, 4, 0),
        ),
        (
            {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "TORCHELASTIC_RESTART_COUNT": "2"},
            ("RANK", 0, 0, 1, 2),
        ),
    ],
)
def test_an_environment_claims_a_rank_or_does_not(environ, claim):
    assert claim_of(environ) == claim


@pytest.mark.parametrize(
    ("argv", "is_launcher"),
    [
        (["/usr/bin/python3", "/opt/bin/torchrun", "train.py"], True),
        (["python", "-m", "torch.distributed.run", "train.py"], True),
        (["python", "-u", "-m", "accelerate.commands.launch", "x.py"], True),
        (["python", "train.py"], False),
        (["python", "train.py", "--name", "x", "--mode", "torchrun"], False),
        ([], False),
    ],
)
def test_launchers_written_in_python_are_told_by_their_command(argv, is_launcher):
    assert launches(argv) is is_launcher


def test_the_files_that_hold_a_jobs_output_are_known_from_its_start(tmp_path):
    out = tmp_path / "out.log"
    sleeper = [sys.executable, "-c", "import time; time.sleep(60)"]
    with out.open("wb") as file:
        filed = subprocess.Popen(sleeper, stdout=file, stderr=file)
    piped = subprocess.Popen(sleeper, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    try:
        assert output_files(filed.pid) == (str(out),)
        assert output_files(piped.pid) == ()
        assert output_files(None) == ()
    finally:
        for one in (filed, piped):
            one.kill()
            one.wait()
        piped.stdout.close()
