"""Arm the probe, then hand over to the sitecustomize that Python would have imported without us.

Only what must happen before the job's first line is here. Nothing in this file may raise for a
reason of ours, and after it no trace of this folder is left on ``sys.path``.
"""

import os
import sys

_HERE = os.path.dirname(os.path.abspath(__file__))


def _leave_path():  # type: () -> None
    """Take this folder off ``sys.path``: the job sees the path that it would have had."""
    for entry in list(sys.path):
        if isinstance(entry, str) and entry and os.path.abspath(entry) == _HERE:
            sys.path.remove(entry)
            sys.path_importer_cache.pop(entry, None)


def _arm():  # type: () -> None
    """Load the import hook as ``_fabwatch_probe.hook``; without a run there is nothing to arm."""
    run = os.environ.get("FABWATCH_RUN_DIR")
    if not run or not os.environ.get("FABWATCH_SOCKETS") or "_fabwatch_probe" in sys.modules:
        return
    try:
        package = type(sys)("_fabwatch_probe", "What fabwatch runs inside a rank.")
        package.__path__ = [os.path.dirname(_HERE)]
        sys.modules["_fabwatch_probe"] = package
        __import__("_fabwatch_probe.hook").hook.arm()
    except Exception as error:
        try:
            path = os.path.join(run, "live", "%d.problem" % os.getpid())
            with open(path, "a") as out:
                out.write("sitecustomize: %r\n" % (error,))
        except Exception:
            pass


def _chain():  # type: () -> None
    """Execute the next sitecustomize as the real one; raise as the import would if there is none.

    ``site`` swallows an ImportError that names sitecustomize, and reports whatever the user's own
    file raises: both reach it through here unchanged.
    """
    spec = None
    for finder in list(sys.meta_path):
        find = getattr(finder, "find_spec", None)
        spec = find("sitecustomize", None) if find is not None else None
        if spec is not None:
            break
    if spec is None or spec.loader is None:
        raise ModuleNotFoundError("No module named 'sitecustomize'", name="sitecustomize")
    sys.modules["_frozen_importlib"]._load(spec)  # as the import statement would


_leave_path()
_arm()
_chain()
