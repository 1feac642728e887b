"""Start torch's own worker server in a rank, without a byte on the job's stderr.

The server's threads live in a file table of their own that holds nothing but /dev/null and the
server's sockets. So its chatter goes nowhere while every other thread's stderr is untouched, the
job's forks inherit no socket of ours, the job closing "all" descriptors closes none of them, and
no pipe of the job is kept open by us. Its threads block all signals: a handler that ran there
would write the job's wake-up byte into the wrong table.
"""

from __future__ import annotations

import _thread
import gc
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

from . import c10d, hook

_CLOSE_RANGE = 436  # the same number on all architectures
_CLOSE_RANGE_UNSHARE = 2
_CLONE_FILES = 0x400
_SYNCHRONOUS = ("SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL", "SIGABRT", "SIGTRAP", "SIGSYS")
_PATH_BYTES = 107  # sun_path less the final NUL


def block_signals() -> None:
    """Let this thread take none of the job's signals; faults of its own still kill as ever."""
    keep = {getattr(signal, name) for name in _SYNCHRONOUS if hasattr(signal, name)}
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals() - keep)


def _libc() -> Any:
    """Libc whose calls keep the GIL, so that no other thread runs in between."""
    import ctypes

    return ctypes.PyDLL(None, use_errno=True)


def _own_files(libc: Any) -> bool:
    """Give this thread an empty file table; False where the kernel or a filter refuses."""
    import ctypes

    everything = ctypes.c_uint(0xFFFFFFFF)
    flag = ctypes.c_uint(_CLOSE_RANGE_UNSHARE)
    if libc.syscall(ctypes.c_long(_CLOSE_RANGE), ctypes.c_uint(0), everything, flag) == 0:
        return True
    if libc.unshare(ctypes.c_int(_CLONE_FILES)) != 0:  # kernel before 5.9
        return False
    for name in os.listdir("/proc/thread-self/fd"):
        libc.close(ctypes.c_int(int(name)))
    return True


def _null_files(libc: Any) -> None:
    """/dev/null as 0, 1 and 2 of this thread's table."""
    libc.open(b"/dev/null", os.O_RDWR)
    libc.dup(0)
    libc.dup(0)


def _leak(thing: Any) -> None:
    """Keep one reference for ever: the destructor would shut down a socket at a fork's exit."""
    import ctypes

    ctypes.pythonapi.Py_IncRef(ctypes.py_object(thing))


def _log_level() -> Any:
    """Torch's log level as a C int, or None: the second best way to keep the server quiet."""
    import ctypes

    folder = os.path.join(os.path.dirname(sys.modules["torch"].__file__ or ""), "lib")
    try:
        library = ctypes.CDLL(os.path.join(folder, "libc10.so"))
        return ctypes.c_int.in_dll(library, "FLAGS_caffe2_log_level")
    except (OSError, ValueError):
        return None


class _Start:
    """One attempt, in a thread that ends at once: no other Python code may run in its table."""

    def __init__(self, make: Callable[[str], Any], path: str) -> None:
        self.make = make
        self.path = path
        self.error = ""
        self.private = False
        self.libc = _libc()
        self.ended = _thread.allocate_lock()
        self.ended.acquire()

    def __call__(self) -> None:
        try:
            block_signals()
            self._quietly()
        except BaseException as error:
            self.error = repr(error)
        self.ended.release()

    def _quietly(self) -> None:
        # A garbage collection in here would close the job's files in the wrong table. The GIL
        # was taken an instant ago, so nobody asks for it back before this is over.
        time.sleep(0)
        collecting = gc.isenabled()
        gc.disable()
        try:
            self.private = _own_files(self.libc)
            if self.private:
                _null_files(self.libc)
                _leak(self.make(self.path))
                return
        finally:
            if collecting:
                gc.enable()
        level = _log_level()
        if level is None:
            raise RuntimeError("no way to keep torch's worker server quiet here")
        before = level.value
        level.value = 3
        try:
            _leak(self.make(self.path))
        finally:
            level.value = before


def serve(path: str) -> str:
    """Open torch's worker server on the unix socket ``path``; "" or the reason why not."""
    make: Callable[[str], Any] | None = getattr(c10d.native(), "_WorkerServer", None)
    if make is None:
        return "this torch has no _WorkerServer"
    if len(os.fsencode(path)) > _PATH_BYTES:
        return f"socket path longer than {_PATH_BYTES} bytes: {path}"
    try:
        os.unlink(path)
    except OSError:
        pass
    try:
        start = _Start(make, path)
        # Not threading.Thread: its book-keeping would run in the thread after its table is gone.
        _thread.start_new_thread(start, ())
        ended = start.ended.acquire(timeout=10)
    except Exception as error:
        return repr(error)
    if not ended:
        return "torch's worker server did not start within 10 s"
    if not start.error and not start.private:
        hook.problem("worker server: shares the job's file table (kernel before 5.9 or a filter)")
    return start.error
