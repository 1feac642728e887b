"""Wait for torch.distributed without importing it: an import hook that fires once.

The job's modules keep their own loaders and specs; only the loader *instance* of one module gets
a temporary ``exec_module``, gone when it has run.
"""

# This module is loaded at the start of every Python process of the job: it imports nothing that
# Python itself has not loaded by then (hence no typing, and annotations in quotes).
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

TARGET = "torch.distributed.distributed_c10d"


def problem(text: str) -> None:
    """Append one line to ``<run>/live/<pid>.problem``; the job never hears of it."""
    try:
        live = os.path.join(os.environ["FABWATCH_RUN_DIR"], "live")
        path = os.path.join(live, f"{os.getpid()}.problem")
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
        fd = os.open(path, flags, 0o600)
        try:
            if os.fstat(fd).st_size < 16384:
                os.write(fd, (text.replace("\n", " ")[:500] + "\n").encode("utf-8", "replace"))
        finally:
            os.close(fd)
    except Exception:
        return


class WaitForTorch:
    """A meta path finder that answers for one module only, by asking all the others."""

    def __init__(self, fired: "Callable[[], None]") -> None:
        self.fired: Callable[[], None] | None = fired

    def find_spec(
        self, fullname: str, path: "Sequence[str] | None" = None, target: "Any" = None
    ) -> "Any":
        """None for every module but the awaited one; for that the spec that others find."""
        if fullname != TARGET or self.fired is None:
            return None
        spec = None
        for finder in list(sys.meta_path):
            find = getattr(finder, "find_spec", None)
            if finder is self or find is None:
                continue
            spec = find(fullname, path, target)
            if spec is not None:
                break
        if spec is not None and spec.loader is not None:
            try:
                self._watch(spec.loader)
            except Exception as error:
                problem(f"import hook: {error!r}")
        return spec

    def _watch(self, loader: "Any") -> None:
        """Let ``loader`` execute the module as ever, then fire."""
        original = loader.exec_module

        def exec_module(module: "Any") -> "Any":
            if getattr(module, "__name__", None) != TARGET:
                return original(module)
            loader.__dict__.pop("exec_module", None)
            result = original(module)
            self._fire()
            return result

        loader.exec_module = exec_module

    def _fire(self) -> None:
        fired, self.fired = self.fired, None
        self.remove()
        if fired is not None:
            try:
                fired()
            except Exception as error:
                problem(f"start: {error!r}")

    def remove(self) -> bool:
        """Leave ``sys.meta_path`` unless another thread walks it just now; True when gone.

        Removing an entry under a walking thread would make it skip a finder, and the job would
        miss a module that exists. A finder that has fired does nothing, so it may stay a while.
        """
        if self not in sys.meta_path:
            return True
        own = sys._getframe()
        for frame in sys._current_frames().values():
            walker: Any = frame
            while walker is not None and walker is not own:
                if walker.f_code.co_name == "_find_spec" and frame is not own:
                    return False
                walker = walker.f_back
        sys.meta_path.remove(self)
        return True


def _early_exit(pid: int) -> None:
    """Record the exception of a rank that dies before it has imported torch.distributed."""
    try:
        if os.getpid() != pid or not hasattr(sys, "last_value"):
            return
        core: Any = sys.modules.get(__package__ + ".core") if __package__ else None
        if core is not None:
            return
        from . import identity, record

        claim = identity.claim(os.environ)
        if claim is None or not identity.may_claim(claim):
            return
        error = record.uncaught()
        if error is not None:
            record.write(os.environ["FABWATCH_RUN_DIR"], record.describe(error, claim.rank))
    except Exception as error:
        problem(f"early exit: {error!r}")


def _start(finder: "WaitForTorch | None") -> None:
    from . import core

    core.start(finder)


def arm() -> None:
    """Install the hook, or start at once if torch.distributed is there already."""
    names = ("RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK", "PMI_RANK")
    if any(name in os.environ for name in names):
        import atexit

        atexit.register(_early_exit, os.getpid())
    if TARGET in sys.modules:
        _start(None)
        return
    finder = WaitForTorch(lambda: _start(finder))
    sys.meta_path.insert(0, finder)
