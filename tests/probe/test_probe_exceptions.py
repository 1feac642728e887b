"""The exception that ends a rank is on disk afterwards; the job's own words are unchanged."""

import os
import sys
import time

import pytest

RANK1 = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"}
INIT = "import sys, os, time, torch.distributed as d\nd.init_process_group(1, 2)\n"


def ends(rig, fake, text, **variables):
    """Run a rank to its end: (its pid, exit code, stderr)."""
    job = rig.start(
        sys.executable, rig.script(text), env=rig.env(path=[fake], **(variables or RANK1))
    )
    code = job.wait(40)
    return job.pid, code, job.outputs[1].read_text()


def test_an_uncaught_exception_is_recorded_with_its_frames(rig, fake):
    text = INIT + (
        "time.sleep(1.3)\n"
        "def inner(n):\n"
        "    raise ValueError('bad batch %d' % n)\n"
        "def outer():\n"
        "    try:\n"
        "        inner(7)\n"
        "    except ValueError as error:\n"
        "        raise RuntimeError('step failed') from error\n"
        "outer()\n"
    )
    before = time.time()
    pid, code, err = ends(rig, fake, text)
    (made,) = rig.exceptions()
    assert (code, made["pid"], made["rank"]) == (1, pid, 1)
    assert (made["type"], made["message"]) == ("RuntimeError", "step failed")
    assert [frame["function"] for frame in made["frames"]] == ["<module>", "outer"]
    assert made["frames"][-1] == {"function": "outer", "file": str(rig.base / "job.py"), "line": 10}
    assert made["chain"] == [{"type": "ValueError", "message": "bad batch 7"}]
    assert before <= made["when"] <= time.time()
    assert "RuntimeError: step failed" in err
    assert rig.page(pid).exiting
    assert not list((rig.run_dir / "exceptions").glob("*.part"))


def test_stderr_and_exit_code_of_a_failing_rank_are_as_without_the_probe(rig, fake):
    text = INIT + "print('x', file=sys.stderr)\nraise KeyError('k')\n"
    script = rig.script(text)
    env = rig.env(path=[fake], **RANK1)
    armed = rig.run(sys.executable, script, env=env)
    plain = rig.run(sys.executable, script, env={**env, "PYTHONPATH": str(fake)})
    assert armed == plain
    assert len(rig.exceptions()) == 1


@pytest.mark.parametrize(
    ("end", "code", "kind"),
    [
        ("sys.exit(0)", 0, None),
        ("pass", 0, None),
        ("os._exit(3)", 3, None),
        ("raise KeyboardInterrupt", None, "KeyboardInterrupt"),
        ("class E(Exception):\n    def __str__(self): raise OSError\nraise E", 1, "E"),
        ("sys.setrecursionlimit(400)\ndef f(): f()\nf()", 1, "RecursionError"),
        ("raise ValueError('x' * 100_000)", 1, "ValueError"),
        ("exec('a b')", 1, "SyntaxError"),
        ("import json; json.loads('{')", 1, "json.decoder.JSONDecodeError"),
    ],
)
def test_every_way_to_end(rig, fake, end, code, kind):
    _, status, _ = ends(rig, fake, INIT + end + "\n")
    assert code is None or status == code
    found = rig.exceptions()
    assert [made["type"] for made in found] == ([kind] if kind else [])
    for made in found:
        assert len(made["message"].encode()) <= 4096
        assert len(made["frames"]) <= 128


def test_an_exception_that_was_handled_long_ago_is_not_recorded(rig, fake):
    """Shells and test runners leave those in sys.last_value; the rank ended well."""
    text = INIT + (
        "import code\n"
        "shell = code.InteractiveInterpreter()\n"
        "shell.runcode(compile('1 / 0', '<input>', 'exec'))\n"
        "assert sys.last_value is not None\n"
        "def f():\n"
        "    try:\n"
        "        1 / 0\n"
        "    except ZeroDivisionError as error:\n"
        "        sys.last_value = error\n"
        "f()\n"
        "time.sleep(1.5)\n"
    )
    _, code, _ = ends(rig, fake, text)
    assert (code, rig.exceptions()) == (0, [])


def test_a_rank_that_dies_before_it_has_imported_torch_is_recorded_too(rig, fake):
    text = "import time\nraise ModuleNotFoundError('No module named my_model')\n"
    pid, code, _ = ends(rig, fake, text)
    assert code == 1
    (made,) = rig.exceptions()
    assert (made["pid"], made["rank"], made["type"]) == (pid, 1, "ModuleNotFoundError")


def test_a_process_that_is_no_rank_records_nothing(rig, fake):
    pid, code, _ = ends(rig, fake, "import torch.distributed\n1 / 0\n", OTHER="1")
    assert (code, rig.exceptions()) == (1, [])
    assert rig.page(pid) is None


def test_the_exception_is_recorded_although_the_exit_hangs(rig, fake):
    """A thread that is not a daemon keeps the process: the peers wait, the cause is on disk."""
    text = INIT + (
        "import threading\n"
        "threading.Thread(target=time.sleep, args=(60,)).start()\n"
        "raise OSError('disk gone')\n"
    )
    job = rig.start(sys.executable, rig.script(text), env=rig.env(path=[fake], **RANK1))
    (made,) = rig.until(rig.exceptions, "a record")
    assert (made["type"], job.poll()) == ("OSError", None)
    page = rig.until(lambda: not (p := rig.page(job.pid)).main_alive and p, "the main thread's end")
    assert not page.exiting


def test_another_excepthook_sees_the_exception_as_ever(rig, fake):
    text = INIT + "sys.excepthook = lambda *a: print('mine', a[0].__name__)\n1 / 0\n"
    job = rig.start(sys.executable, rig.script(text), env=rig.env(path=[fake], **RANK1))
    assert job.wait(30) == 1
    assert job.outputs[0].read_text() == "mine ZeroDivisionError\n"
    assert rig.exceptions()[0]["type"] == "ZeroDivisionError"


WORKER = (
    "import multiprocessing, sys\n"
    "def work():\n"
    "    import torch.distributed as d\n"
    "    d.init_process_group(1, 2)\n"
    "    import time; time.sleep(1.5)\n"
    "    try:\n"
    "        raise ValueError('in the worker')\n"
    "    except Exception:\n"
    "        {end}\n"
    "if __name__ == '__main__':\n"
    "    p = multiprocessing.get_context(sys.argv[1]).Process(target=work)\n"
    "    p.start(); p.join(); print(p.exitcode)\n"
)


@pytest.mark.parametrize("method", ["spawn", "fork"])
@pytest.mark.parametrize(
    ("end", "kind", "code"),
    [("raise", "ValueError", 1), ("sys.exit(4)", "ValueError", 4), ("sys.exit(0)", None, 0)],
)
def test_ranks_that_multiprocessing_started_are_recorded(rig, fake, method, end, kind, code):
    """There the exception never reaches the interpreter; torch's spawn exits with 1 instead."""
    script = rig.script(WORKER.format(end=end))
    status, out, _ = rig.run(sys.executable, script, method, env=rig.env(path=[fake]))
    assert (status, out.split()) == (0, [str(code)])
    found = rig.exceptions()
    assert [made["type"] for made in found] == ([kind] if kind else [])
    assert all(made["frames"][-1]["function"] == "work" for made in found)


def test_sys_exit_in_a_worker_without_a_cause_is_recorded_with_its_code(rig, fake):
    text = WORKER.format(end="pass") + ""
    text = text.replace("    try:\n", "    sys.exit(9)\n    try:\n")
    rig.run(sys.executable, rig.script(text), "spawn", env=rig.env(path=[fake]))
    (made,) = rig.exceptions()
    assert (made["type"], made["code"], made["rank"]) == ("SystemExit", 9, 1)


def test_an_exit_is_not_held_up_by_a_probe_that_cannot_write(rig, fake):
    """The record's file is a pipe that nobody reads: opening it would block for ever."""
    text = INIT + "time.sleep(1.3)\nopen('before', 'w').close()\nraise ValueError\n"
    exceptions = rig.run_dir / "exceptions"
    exceptions.mkdir()
    job = rig.start(sys.executable, rig.script(text), env=rig.env(path=[fake], **RANK1))
    os.mkfifo(exceptions / f"{job.pid}.json.part")
    assert job.wait(30) == 1
    assert [page.rank for page in rig.pages()] == [1]
    assert rig.exceptions() == []
