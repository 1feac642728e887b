"""Real processes that play a launcher and its ranks, without torch."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

RANK = textwrap.dedent(
    '''
    """A rank: writes a progress page like the probe's, steps, and does what a file tells it."""
    import json, mmap, os, signal, struct, sys, time
    live = os.environ["PLAY_DIR"]
    rank = int(os.environ["RANK"])
    orders = os.path.join(live, f"order-{rank}-{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}")
    page = os.path.join(os.environ["PLAY_RUN"], "live", f"{os.getpid()}.page")
    paged = os.environ.get("PLAY_PAGES", "1") == "1"
    tick, done, exiting, waiting = 0, 0, False, False
    if paged:
        with open(page + ".part", "wb") as out:
            out.truncate(65536)
        file = open(page + ".part", "r+b")
        shown = mmap.mmap(file.fileno(), 65536)
    def write():
        global tick
        tick += 1
        if not paged:
            return
        body = json.dumps({"pid": os.getpid(), "rank": rank, "initialised": True,
            "world_size": int(os.environ["WORLD_SIZE"]), "local_rank": rank,
            "attempt": int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")),
            "torch": "2.13", "python": "3.11", "groups": [{"name": "0", "desc": "", "ranks": [0]}],
            "status": {"gloo:0": {"enqueued": done + waiting, "started": -1, "completed": done}},
            "tick_s": 0.25, "exiting": exiting}).encode()
        shown[8:12] = struct.pack("<I", 2 * tick - 1)
        shown[64:64 + len(body)] = body
        shown[12:40] = struct.pack("<IQQQ", len(body), time.monotonic_ns(), time.time_ns(), tick)
        shown[0:8] = b"FABWPG1" + bytes(1)
        shown[8:12] = struct.pack("<I", 2 * tick)
    write()
    if paged:
        os.rename(page + ".part", page)
    print("rank", rank, "up", flush=True)
    while True:
        order = open(orders).read() if os.path.exists(orders) else ""
        if order.startswith("exit"):
            code = int(order.split()[1])
            exiting = "rudely" not in order
            write()
            time.sleep(0.05)
            os._exit(code)
        if order.startswith("kill"):
            os.kill(os.getpid(), int(order.split()[1]))
        waiting = order.startswith("wait")
        if order.startswith("spin"):
            while True:
                pass
        if not waiting:
            done += 1
            sum(range(20000))
        write()
        time.sleep(0.05)
    '''
)

LAUNCHER = textwrap.dedent(
    '''
    """A launcher like torchrun: looks at its ranks ten times a second, ends them when one fails."""
    import os, signal, subprocess, sys, time
    world = int(sys.argv[1]); restarts = int(sys.argv[2]); script = sys.argv[3]
    attempt = 0
    while True:
        ranks = []
        for r in range(world):
            env = dict(os.environ, RANK=str(r), LOCAL_RANK=str(r), WORLD_SIZE=str(world),
                       TORCHELASTIC_RESTART_COUNT=str(attempt))
            ranks.append(subprocess.Popen([sys.executable, script], env=env))
        while True:
            time.sleep(0.1)
            codes = [p.poll() for p in ranks]
            if any(codes) or all(c == 0 for c in codes):
                break
        for p in ranks:
            if p.poll() is None:
                p.terminate()
        for p in ranks:
            p.wait()
        if not any(codes):
            sys.exit(0)
        if attempt >= restarts:
            sys.exit(1)
        attempt += 1
    '''
)


def eventually(true: Callable[[], Any], seconds: float = 30.0) -> Any:
    """What ``true`` returns once it is true; its last value when time is over."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        found = true()
        if found:
            return found
        time.sleep(0.02)
    return true()


class Play:
    """One run directory, one agent, one job of fake ranks."""

    eventually = staticmethod(eventually)

    def __init__(self, root: Path) -> None:
        self.root = root
        self.run = root / "run"
        for folder in ("live", "exceptions", "incidents"):
            (self.run / folder).mkdir(parents=True)
        self.sockets = Path(tempfile.mkdtemp(prefix="fabwatch-"))
        self.rank_script = root / "rank.py"
        self.rank_script.write_text(RANK)
        self.launcher_script = root / "launcher.py"
        self.launcher_script.write_text(LAUNCHER)
        self.processes: list[subprocess.Popen[bytes]] = []
        self.agent: subprocess.Popen[bytes] | None = None
        self.line: socket.socket | None = None
        self.heard: list[dict[str, Any]] = []
        self.agents_env: dict[str, str] = {}
        self.agents_limit: int | None = None  # of open files
        self.began = time.time()
        self._buffer = b""
        self._pids: set[int] = set()

    # ---- the job

    def env(self, **more: str) -> dict[str, str]:
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("RANK", "FABWATCH"))}
        return {**kept, "PLAY_DIR": str(self.root), "PLAY_RUN": str(self.run), **more}

    def start(self, command: list[str], **more: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            command, env=self.env(**more), stdout=subprocess.PIPE, start_new_session=True
        )
        self.processes.append(process)
        return process

    def launch(self, world: int = 3, restarts: int = 0, **more: str) -> subprocess.Popen[bytes]:
        """Start a launcher with ranks; they are up when this returns."""
        process = self.start(
            [sys.executable, str(self.launcher_script), str(world), str(restarts),
             str(self.rank_script)],
            FABWATCH_RUN_ID="the-run", **more,
        )  # fmt: skip
        assert process.stdout is not None
        for _ in range(world):
            process.stdout.readline()
        self._pids |= set(self.children(process.pid))
        return process

    def order(self, rank: int, what: str, attempt: int = 0) -> None:
        file = self.root / f"order-{rank}-{attempt}"
        part = file.with_suffix(".part")
        part.write_text(what)
        part.replace(file)

    @staticmethod
    def children(pid: int) -> list[int]:
        try:
            return [int(x) for x in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
        except OSError:
            return []

    # ---- the agent

    def watch(self, job: int | None, **options: Any) -> subprocess.Popen[bytes]:
        """Start an agent on the run, and tell it of the job."""
        (self.run / "launch.json").write_text(
            json.dumps(
                {
                    "job": "play", "run_id": "the-run", "sockets": str(self.sockets),
                    "started": self.began,
                    "options": {"stall_after": "auto", "on_stall": "report", "grace": 30.0,
                                **options},
                }
            )
        )  # fmt: skip
        ours, theirs = socket.socketpair()
        with (self.run / "agent.log").open("ab") as log:
            self.agent = subprocess.Popen(
                [sys.executable, "-m", "fabwatch.watchdog.agent", str(self.run),
                 str(theirs.fileno())],
                pass_fds=(theirs.fileno(),), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True, env=self.env(**self.agents_env), preexec_fn=self._limit,
            )  # fmt: skip
        theirs.close()
        self.line = ours
        self.line.settimeout(0.05)
        if job is not None:
            self.tell({"job_pid": job})
        return self.agent

    def _limit(self) -> None:
        if self.agents_limit is not None:
            resource.setrlimit(resource.RLIMIT_NOFILE, (self.agents_limit,) * 2)

    def tell(self, message: dict[str, Any]) -> None:
        assert self.line is not None
        self.line.sendall(json.dumps(message).encode() + b"\n")

    def hear(self) -> list[dict[str, Any]]:
        """All that the agent has said so far."""
        assert self.line is not None
        with contextlib.suppress(TimeoutError, ConnectionError):
            while data := self.line.recv(65536):
                self._buffer += data
        *lines, self._buffer = self._buffer.split(b"\n")
        self.heard += [json.loads(line) for line in lines]
        return self.heard

    def said(self) -> str:
        return "\n".join(str(m["say"]) for m in self.hear() if "say" in m)

    def log(self, event: str) -> list[dict[str, Any]]:
        """Events of that name in agent.log."""
        found = []
        for line in (self.run / "agent.log").read_text().splitlines():
            if line.startswith("{"):
                value = json.loads(line)
                if value.get("event") == event:
                    found.append(value)
        return found

    def knows(self, world: int) -> bool:
        """Whether the agent watches that many ranks by now."""
        logged = self.log("ranks")
        return bool(logged) and len(logged[-1]["ranks"]) >= world

    def ready(self) -> bool:
        """Whether the process that waits for an order to capture has done its imports."""
        assert self.agent is not None
        for pid in self.children(self.agent.pid):
            with contextlib.suppress(OSError):
                if b"--wait-fd" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    before = Path(f"/proc/{pid}/schedstat").read_text()
                    time.sleep(0.5)
                    waits = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
                    return waits == "S" and before == Path(f"/proc/{pid}/schedstat").read_text()
        return False

    def exits(self) -> list[dict[str, Any]]:
        file = self.run / "exits.jsonl"
        if not file.exists():
            return []
        return [json.loads(line) for line in file.read_text().splitlines()]

    def incidents(self) -> list[dict[str, Any]]:
        found = []
        for folder in sorted((self.run / "incidents").iterdir()):
            with contextlib.suppress(OSError, ValueError):
                found.append(json.loads((folder / "incident.json").read_text()))
        return found

    def verdict(self, folder: str = ".") -> dict[str, Any]:
        """verdict.json of the run, or of a folder of it; {} while there is none."""
        try:
            return dict(json.loads((self.run / folder / "verdict.json").read_text()))
        except OSError:
            return {}

    def finish(self, process: subprocess.Popen[bytes], seconds: float = 40.0) -> int:
        """Wait for the job, tell the agent as the stub does, wait for it to be done and gone."""
        code = process.wait(seconds)
        self.tell({"job_ended": {"code": code} if code >= 0 else {"signal": -code}})
        assert eventually(lambda: any(m.get("done") for m in self.hear()), seconds), self.tail()
        assert self.agent is not None
        assert self.agent.wait(seconds) == 0, self.tail()
        return code

    def tail(self) -> str:
        return (self.run / "agent.log").read_text()[-3000:]

    def close(self) -> None:
        pids = set(self._pids)
        for process in (*self.processes, *([self.agent] if self.agent else [])):
            if process.poll() is None:
                pids |= set(self.children(process.pid))
                with contextlib.suppress(OSError):
                    os.killpg(process.pid, signal.SIGKILL)
            process.wait(10)
            if process.stdout is not None:
                process.stdout.close()
        if self.line is not None:
            self.line.close()
        shutil.rmtree(self.sockets, ignore_errors=True)


@pytest.fixture
def play(tmp_path: Path) -> Iterator[Play]:
    stage = Play(tmp_path)
    yield stage
    stage.close()
