"""The chained sitecustomize and the import hook leave the job's Python as it was."""

import ast
import json
import sys
from pathlib import Path

import pytest

from fabwatch.watchdog import probe
from fabwatch.watchdog.probe import site_folder

# What a job could notice of its interpreter, without what differs from run to run.
LOOK = """
import sys, json, importlib.util, threading
m = sys.modules.get("sitecustomize")
spec = getattr(m, "__spec__", None)
print(json.dumps({
    "path": sys.path,
    "module": m is not None,
    "file": getattr(m, "__file__", None),
    "name": getattr(m, "__name__", None),
    "origin": getattr(spec, "origin", None),
    "loader": type(getattr(m, "__loader__", None)).__name__,
    "initializing": getattr(spec, "_initializing", None),
    "found": getattr(importlib.util.find_spec("sitecustomize"), "origin", None),
    "user": getattr(sys.modules.get("usercustomize"), "__file__", None),
    "mark": getattr(sys, "user_mark", None),
    "modules": sorted(n for n in sys.modules if not n.startswith("_fabwatch_probe")),
    "threads": threading.active_count(),
}, sort_keys=True))
"""


def folder(base, name, text):
    made = base / name
    made.mkdir()
    (made / "sitecustomize.py").write_text(text)
    return made


def without_us(env):
    """The same environment as it would be without the probe."""
    entries = [e for e in env["PYTHONPATH"].split(":") if e != site_folder()]
    kept = {k: v for k, v in env.items() if not k.startswith("FABWATCH_") and k != "PYTHONPATH"}
    return {**kept, "PYTHONPATH": ":".join(entries)} if entries else kept


def both(rig, text, env, flags=()):
    """(exit code, stdout, stderr) with the probe and without it."""
    script = rig.script(text)
    return (
        rig.run(sys.executable, *flags, script, env=env),
        rig.run(sys.executable, *flags, script, env=without_us(env)),
    )


def test_without_a_user_file_the_job_sees_no_sitecustomize_at_all(rig):
    armed, plain = both(rig, LOOK, rig.env())
    assert armed == plain
    assert json.loads(plain[1])["module"] is False


def test_the_users_own_file_after_ours_runs_as_the_real_module(rig):
    user = folder(rig.base, "user", "import sys; sys.user_mark = (__name__, __file__)\n")
    armed, plain = both(rig, LOOK, rig.env(path=[user]))
    assert armed == plain
    assert json.loads(plain[1])["mark"] == ["sitecustomize", str(user / "sitecustomize.py")]


def test_the_users_own_file_before_ours_runs_and_nothing_is_armed(rig):
    user = folder(rig.base, "user", "import sys; sys.user_mark = __file__\n")
    env = rig.env()
    env["PYTHONPATH"] = f"{user}:{site_folder()}"
    code, out, err = rig.python(LOOK, env=env)
    assert (code, err) == (0, "")
    assert json.loads(out)["file"] == json.loads(out)["mark"] == str(user / "sitecustomize.py")


@pytest.mark.parametrize(
    "text",
    [
        "raise RuntimeError('mine')\n",
        "import does_not_exist\n",
        "def broken(:\n",
        "import sys; sys.modules[__name__] = 3\n",
        "import sitecustomize; sitecustomize.again = True\n",
    ],
)
def test_whatever_the_users_file_does_the_job_sees_the_same(rig, text):
    user = folder(rig.base, "user", text)
    armed, plain = both(rig, LOOK, rig.env(path=[user]))
    assert armed == plain


def test_a_users_file_that_ends_python_ends_it_as_before(rig):
    """Only the traceback, which names the frames of the import, is longer."""
    user = folder(rig.base, "user", "raise SystemExit(7)\n")
    armed, plain = both(rig, LOOK, rig.env(path=[user]))
    assert (armed[0], armed[1]) == (plain[0], plain[1])
    assert armed[2].splitlines()[-1] == plain[2].splitlines()[-1]


def test_only_the_import_hook_is_added_and_only_in_a_run(rig):
    text = "import sys; print([n for n in sys.modules if 'fabwatch' in n], len(sys.meta_path))"
    armed, plain = both(rig, text, rig.env())
    count = int(plain[1].split()[-1])
    assert armed[1] == f"['_fabwatch_probe', '_fabwatch_probe.hook'] {count + 1}\n"
    for missing in ("FABWATCH_RUN_DIR", "FABWATCH_SOCKETS"):
        env = rig.env()
        del env[missing]
        assert rig.python(text, env=env)[1] == f"[] {count}\n"


@pytest.mark.parametrize("flag", ["-I", "-E", "-S"])
def test_flags_that_ignore_the_environment_are_simply_not_armed(rig, flag, fake):
    text = """
import sys, torch.distributed as d, threading
d.init_process_group(0, 1)
print([n for n in sys.modules if 'fabwatch' in n], threading.active_count(), len(sys.meta_path))
"""
    text = f"import sys; sys.path.insert(0, {str(fake)!r})\n{text}"
    armed, plain = both(rig, text, rig.env(RANK="0", WORLD_SIZE="1"), flags=(flag,))
    assert armed == plain
    assert armed[1].startswith("[] 1 ")


def test_a_probe_that_cannot_load_is_silent_for_the_job(rig, tmp_path):
    """A copy of the folder whose hook is broken: the job runs, the reason is noted."""
    copy = tmp_path / "probe"
    (copy / "site").mkdir(parents=True)
    text = Path(site_folder(), "sitecustomize.py").read_text()
    (copy / "site" / "sitecustomize.py").write_text(text)
    (copy / "hook.py").write_text("raise OSError('no disk')\n")
    env = rig.env()
    env["PYTHONPATH"] = str(copy / "site")
    assert rig.python("print('job')", env=env) == (0, "job\n", "")
    assert "no disk" in rig.problems()


def test_a_run_directory_that_is_gone_is_silent_for_the_job(rig, fake):
    env = rig.env(path=[fake], RANK="0", WORLD_SIZE="1", FABWATCH_RUN_DIR="/nonexistent/run")
    text = """
import time, torch.distributed as d
d.init_process_group(0, 1)
time.sleep(1.5)
raise ValueError("job's own")
"""
    armed, plain = both(rig, text, env)
    assert armed == plain
    assert armed[0] == 1 and "job's own" in armed[2]


def test_the_hook_leaves_the_module_and_the_finders_as_they_were(rig, fake):
    text = """
import sys, json, importlib, importlib.util, importlib.metadata, inspect, pickle, pkgutil, threading
before = threading.active_count()
name = "torch.distributed.distributed_c10d"
early = importlib.util.find_spec(name)   # imports torch.distributed, hence the module
import torch.distributed.distributed_c10d as c10d
spec = c10d.__spec__
finders = [getattr(f, "__name__", type(f).__name__) for f in sys.meta_path]
importlib.reload(c10d)
print(json.dumps({
    "origin": early.origin, "loader": type(spec.loader).__name__,
    "own": sorted(vars(spec.loader)), "same": c10d.__loader__ is spec.loader,
    "finders": finders, "reloaded": importlib.reload(c10d) is c10d,
    "source": len(inspect.getsource(c10d)),
    "pickle": pickle.loads(pickle.dumps(c10d.ProcessGroup)) is c10d.ProcessGroup,
    "walk": sorted(m.name for m in pkgutil.walk_packages(sys.modules["torch"].__path__, "torch.")),
    "dist": importlib.metadata.version("pytest"), "before": before,
}, sort_keys=True))
"""
    armed, plain = both(rig, text, rig.env(path=[fake]))
    assert armed == plain
    assert plain[0] == 0


def test_a_module_that_fails_to_import_is_watched_again_at_the_next_try(rig, fake):
    text = """
import sys, builtins
builtins.fail = True
name = "torch.distributed.distributed_c10d"
class Break:
    def find_spec(self, fullname, path=None, target=None):
        if fullname == "torch._C._distributed_c10d" and builtins.fail:
            raise ImportError("libnccl.so.2: cannot open shared object file")
sys.meta_path.insert(0, Break())
try:
    import torch.distributed
except ImportError as error:
    print(error, name in sys.modules)
builtins.fail = False
import threading, torch.distributed
print([t.name for t in threading.enumerate() if t.name.startswith("fab")])
"""
    code, out, err = rig.python(text, env=rig.env(path=[fake]))
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "libnccl.so.2: cannot open shared object file False",
        "['fabwatch-probe']",
    ]


def test_no_thread_before_torch_distributed_is_imported_and_one_after(rig, fake):
    text = """
import os, threading
names = lambda: sorted(t.name for t in threading.enumerate())
print(names(), len(os.listdir("/proc/self/task")))
import torch
print(names(), len(os.listdir("/proc/self/task")))
import torch.distributed
print(names(), [t.daemon for t in threading.enumerate() if t.name == "fabwatch-probe"])
"""
    env = rig.env(path=[fake], RANK="0", WORLD_SIZE="1")
    code, out, err = rig.python(text, env=env)
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "['MainThread'] 1",
        "['MainThread'] 1",
        "['MainThread', 'fabwatch-probe'] [True]",
    ]


def test_process_wide_state_is_untouched(rig, fake):
    """Signal handlers, masks, wake-up fd, warnings, locale, random state, switch interval, gc."""
    text = """
import asyncio, gc, json, locale, os, random, signal, sys, time, warnings
random.seed(4)
def state():
    return {
        "handlers": [str(signal.getsignal(s)) for s in range(1, 65) if s in signal.valid_signals()],
        "mask": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, [])),
        "wakeup": signal.set_wakeup_fd(-1),
        "warnings": repr(warnings.filters), "locale": locale.setlocale(locale.LC_ALL),
        "random": hash(random.getstate()), "interval": sys.getswitchinterval(),
        "gc": [gc.isenabled(), gc.get_threshold()], "hook": sys.excepthook is sys.__excepthook__,
        "loop": asyncio.get_event_loop_policy()._local.__dict__ == {},
        "environ": sorted(k for k in os.environ if not k.startswith("FABWATCH_")),
        "trace": [sys.gettrace(), sys.getprofile()],
    }
before = state()
import torch.distributed as d
d.init_process_group(0, 1)
time.sleep(1.3)
print(before == state(), [k for k, v in state().items() if before[k] != v])
"""
    env = rig.env(path=[fake], RANK="0", WORLD_SIZE="1")
    assert rig.python(text, env=env) == (0, "True []\n", "")


def test_the_probe_is_standard_library_only_and_python_3_9():
    """It runs in the ranks' interpreter, which may be old and has no fabwatch."""
    here = Path(probe.__file__).parent
    files = [*here.glob("*.py"), *here.glob("site/*.py")]
    assert len(files) > 6
    for file in files:
        tree = ast.parse(file.read_text(), feature_version=(3, 9))
        for node in ast.walk(tree):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module]
            assert all(n.split(".")[0] in sys.stdlib_module_names for n in names), (file, names)
