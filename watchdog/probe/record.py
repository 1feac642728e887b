"""Write down the exception that ends a rank, without touching ``sys.excepthook``."""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

MESSAGE_BYTES = 4096
OUTER_FRAMES, INNER_FRAMES = 32, 96


def uncaught() -> BaseException | None:
    """The exception that the interpreter printed because nobody caught it, else None.

    Debuggers and test runners leave handled exceptions in ``sys.last_value`` too; only one whose
    traceback starts in the main program ended it.
    """
    error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    if not isinstance(error, BaseException):
        return None
    trace = error.__traceback__ or getattr(sys, "last_traceback", None)
    if trace is None:
        return error if isinstance(error, SyntaxError) else None
    frame = trace.tb_frame
    main = sys.modules.get("__main__")
    by_script = main is not None and frame.f_globals is main.__dict__
    by_module = frame.f_code.co_filename in ("<frozen runpy>", _runpy())
    outermost = frame.f_code.co_name in ("<module>", "_run_module_as_main")
    return error if outermost and (by_script or by_module) else None


def in_flight() -> BaseException | None:
    """The exception that unwinds a multiprocessing child just now, else None.

    torch's spawn turns an exception into ``sys.exit(1)``: the cause is worth more than that.
    """
    error = sys.exc_info()[1]
    if isinstance(error, SystemExit):
        if error.code is None or error.code == 0:
            return None
        cause = error.__cause__ or error.__context__
        return cause if isinstance(cause, Exception) else error
    return error


def _runpy() -> str:
    return getattr(sys.modules.get("runpy"), "__file__", None) or ""


def _text(error: BaseException) -> str:
    try:
        text = str(error.code) if isinstance(error, SystemExit) else str(error)
    except Exception as failure:
        text = f"<message could not be made: {type(failure).__name__}>"
    return text.encode("utf-8", "replace")[:MESSAGE_BYTES].decode("utf-8", "ignore")


def _name(error: BaseException) -> str:
    kind = type(error)
    module = "" if kind.__module__ in ("builtins", "__main__") else kind.__module__ + "."
    return module + kind.__qualname__


def _frames(error: BaseException) -> list[dict[str, Any]]:
    """Outermost first; the middle of a deep recursion is left out."""
    frames: list[dict[str, Any]] = []
    trace = error.__traceback__
    while trace is not None:
        code = trace.tb_frame.f_code
        frames.append(
            {"function": code.co_name, "file": code.co_filename, "line": trace.tb_lineno or 0}
        )
        if len(frames) > OUTER_FRAMES + INNER_FRAMES:
            del frames[OUTER_FRAMES]
        trace = trace.tb_next
    return frames


def describe(error: BaseException, rank: int) -> dict[str, Any]:
    """The record of docs/interfaces.md; ``chain`` lists causes, nearest first."""
    chain: list[dict[str, str]] = []
    seen = {id(error)}
    cause = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    while cause is not None and id(cause) not in seen and len(chain) < 8:
        seen.add(id(cause))
        chain.append({"type": _name(cause), "message": _text(cause)[:512]})
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
    made: dict[str, Any] = {
        "pid": os.getpid(),
        "rank": rank,
        "type": _name(error),
        "message": _text(error),
        "frames": _frames(error),
        "when": time.time(),
        "chain": chain,
    }
    if isinstance(error, SystemExit):
        made["code"] = error.code if isinstance(error.code, int) else 1
    return made


def write(run: str, made: dict[str, Any]) -> str:
    """Put the record into ``<run>/exceptions``, whole or not at all; returns its path."""
    folder = os.path.join(run, "exceptions")
    os.makedirs(folder, mode=0o700, exist_ok=True)
    path = os.path.join(folder, f"{made['pid']}.json")
    with open(path + ".part", "w", encoding="utf-8") as out:
        json.dump(made, out)
    os.replace(path + ".part", path)
    return path
