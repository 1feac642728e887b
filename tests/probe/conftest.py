"""A run directory, a socket folder, and processes with the probe's folder on PYTHONPATH."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from fabwatch.watchdog.probe import site_folder
from fabwatch.watchdog.progress.page import Page, read_page

FAKE = Path(__file__).parent / "faketorch"
RANK_NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "SLURM_PROCID", "OMPI_COMM_WORLD_RANK")


class Rig:
    """One run: starts processes, waits with deadlines, and ends what it started."""

    def __init__(self, base: Path) -> None:
        self.base = base
        self.run_dir = base / "run"
        self.sockets = Path(tempfile.mkdtemp(prefix="fw-t-", dir="/tmp"))
        (self.run_dir / "live").mkdir(parents=True)
        self.started: list[subprocess.Popen[bytes]] = []

    def env(self, *, path: list[Path | str] | None = None, **extra: str) -> dict[str, str]:
        """The environment of an armed job; ``path`` follows our folder on PYTHONPATH."""
        dropped = (*RANK_NAMES, "PYTHONPATH", "PYTHONWARNINGS")
        kept = {k: v for k, v in os.environ.items() if k not in dropped}
        entries = [site_folder(), *(path or [])]
        return {
            **kept,
            "FABWATCH_RUN_DIR": str(self.run_dir),
            "FABWATCH_SOCKETS": str(self.sockets),
            "FABWATCH_RUN_ID": "test",
            "PYTHONPATH": os.pathsep.join(map(str, entries)),
            "OMP_NUM_THREADS": "1",
            **extra,
        }

    def script(self, text: str, name: str = "job.py") -> Path:
        """Write a job script."""
        path = self.base / name
        path.write_text(text)
        return path

    def start(self, *argv: object, env: dict[str, str], **options: object) -> subprocess.Popen:
        """Start a process in a session of its own, its output in files."""
        number = len(self.started)
        out = (self.base / f"out-{number}").open("wb")
        err = (self.base / f"err-{number}").open("wb")
        with out, err:
            process = subprocess.Popen(
                [str(word) for word in argv],
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
                cwd=self.base,
                **options,
            )
        process.outputs = (self.base / f"out-{number}", self.base / f"err-{number}")
        self.started.append(process)
        return process

    def run(self, *argv: object, env: dict[str, str], seconds: float = 100):
        """Run to the end: (exit code, stdout, stderr)."""
        process = self.start(*argv, env=env)
        code = process.wait(seconds)
        out, err = (path.read_text() for path in process.outputs)
        return code, out, err

    def python(self, text: str, *, env: dict[str, str], flags: tuple[str, ...] = ()):
        """Run a script to the end."""
        return self.run(sys.executable, *flags, self.script(text), env=env)

    def pages(self) -> list[Page]:
        """All readable pages, by rank."""
        found = [read_page(path) for path in sorted((self.run_dir / "live").glob("*.page"))]
        return sorted((page for page in found if page is not None), key=lambda page: page.rank)

    def page(self, pid: int) -> Page | None:
        """The page of one process."""
        return read_page(self.run_dir / "live" / f"{pid}.page")

    def exceptions(self) -> list[dict]:
        """All exception records."""
        folder = self.run_dir / "exceptions"
        return [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]

    def problems(self) -> str:
        """What the probe could not do."""
        return "".join(p.read_text() for p in sorted((self.run_dir / "live").glob("*.problem")))

    def until(self, look, what: str, seconds: float = 90):
        """The first true value of ``look()``; fails after the deadline."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            found = look()
            if found:
                return found
            time.sleep(0.05)
        errors = "".join(p.outputs[1].read_text()[-2000:] for p in self.started)
        pytest.fail(f"not within {seconds} s: {what}\n{self.problems()}\n{errors}")

    def close(self) -> None:
        """End what was started here, also workers that went into sessions of their own."""
        for process in self.started:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(10)
        mark = f"FABWATCH_RUN_DIR={self.run_dir}".encode()
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if mark in (folder / "environ").read_bytes().split(b"\0"):
                    os.kill(int(folder.name), signal.SIGKILL)
        shutil.rmtree(self.sockets, ignore_errors=True)


@pytest.fixture
def rig(tmp_path):
    made = Rig(tmp_path)
    yield made
    made.close()


@pytest.fixture
def fake():
    """The folder that holds a stand-in for torch."""
    return FAKE
