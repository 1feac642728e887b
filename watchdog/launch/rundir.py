"""Make, describe and prune run directories; runs in a child that may be killed."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import random
import re
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fabwatch.watchdog.launch.arming import arm, run_id_of
from fabwatch.watchdog.launch.options import LaunchOptions

SCHEMA = "fabwatch.launch/1"
FILE = "launch.json"
FOLDERS = ("exceptions", "fr", "incidents", "live", "nccl")
_SOCKET_PATH = 70  # bytes left of sun_path's 108 once the longest name is in
_TAKEN_PORTS = frozenset({28028, 29400, 29500})


@dataclass(frozen=True)
class Prepared:
    """A run that is ready. ``conf``: names that the user's nccl.conf sets."""

    run_dir: Path
    sockets: Path
    conf: tuple[str, ...]
    ras_port: int | None

    def to_json(self) -> bytes:
        """One JSON object; ``from_json`` reads it."""
        values = {**asdict(self), "run_dir": str(self.run_dir), "sockets": str(self.sockets)}
        return json.dumps(values).encode()

    @classmethod
    def from_json(cls, raw: bytes) -> Prepared:
        """Raises ValueError or KeyError."""
        got = json.loads(raw)
        return cls(Path(got["run_dir"]), Path(got["sockets"]), tuple(got["conf"]), got["ras_port"])


def job_name(argv: Sequence[str]) -> str:
    """A short name for a launch: its script or module, else its command."""
    name = argv[0] if argv else "job"
    for index, word in enumerate(argv):
        if word == "-m" and index + 1 < len(argv) and "python" in argv[index - 1 if index else 0]:
            name = argv[index + 1]
            if name not in ("torch.distributed.run", "torch.distributed.launch"):
                break
        elif word.endswith((".py", ".sh")):
            name = Path(word).stem
            break
    return safe_name(name.rsplit("/", 1)[-1])


def safe_name(text: str) -> str:
    """``text`` as a file name of at most 60 characters that starts with no dot or dash."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip(".-")[:60] or "job"


def prepare(
    argv: Sequence[str],
    options: LaunchOptions,
    environ: Mapping[str, str],
    stub_pid: int,
) -> tuple[Prepared, int]:
    """Make the run and sockets directories and launch.json; return them and agent.log's lock.

    Raises OSError; what was made is removed then.
    """
    out = Path(options.out).expanduser().absolute()
    name = safe_name(options.job_name) if options.job_name else job_name(argv)
    out.mkdir(parents=True, exist_ok=True)
    run_dir = _new_run(out, name)
    sockets = None
    try:
        for folder in FOLDERS:
            (run_dir / folder).mkdir(mode=0o700)
        sockets = new_sockets(run_dir)
        ready = Prepared(run_dir, sockets, nccl_conf_names(environ), free_port())
        describe(ready, argv, options, environ, stub_pid, name)
        log = os.open(run_dir / "agent.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        with contextlib.suppress(OSError):  # without locks nobody prunes this run
            fcntl.flock(log, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return ready, log
    except BaseException:
        shutil.rmtree(run_dir, ignore_errors=True)
        if sockets is not None:
            shutil.rmtree(sockets, ignore_errors=True)
        raise


def _new_run(out: Path, name: str) -> Path:
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    for number in range(1, 1000):
        path = out / (f"{name}-{stamp}" if number == 1 else f"{name}-{stamp}-{number}")
        try:
            path.mkdir(mode=0o700)
        except FileExistsError:
            continue
        path.chmod(0o700)
        return path
    raise FileExistsError(f"{out}: a thousand runs named {name}-{stamp}")


def new_sockets(run_dir: Path) -> Path:
    """A directory of mode 0700 whose path is short enough for unix sockets. Raises OSError."""
    last: OSError | None = None
    for parent in ("/tmp", os.environ.get("XDG_RUNTIME_DIR", ""), tempfile.gettempdir()):
        if not parent.startswith("/") or len(os.fsencode(parent)) > _SOCKET_PATH - 18:
            continue
        try:
            return Path(tempfile.mkdtemp(prefix="fabwatch-", dir=parent))
        except OSError as err:
            last = err
    path = run_dir / "s"
    if len(os.fsencode(path)) <= _SOCKET_PATH:
        path.mkdir(mode=0o700)
        return path
    raise last or OSError("no directory has a path short enough for a unix socket")


def describe(
    ready: Prepared,
    argv: Sequence[str],
    options: LaunchOptions,
    environ: Mapping[str, str],
    stub_pid: int,
    name: str,
) -> None:
    """Write launch.json, secrets masked. Raises OSError."""
    armed = arm(
        environ,
        ready.run_dir,
        ready.sockets,
        options,
        argv=argv,
        ras_port=ready.ras_port,
        conf=ready.conf,
    )
    shown = {**asdict(options), "notify": options.notify and _masked([options.notify])[0]}
    write_json(
        ready.run_dir / FILE,
        {
            "schema": SCHEMA,
            "job": name,
            "run_id": run_id_of(ready.run_dir, ready.sockets),
            "argv": _masked(argv),
            "cwd": str(Path.cwd()),
            "host": socket.gethostname(),
            "stub_pid": stub_pid,
            "stub_start_ticks": start_ticks(stub_pid),
            "python": sys.executable,
            "started": time.time(),
            "options": shown,
            "sockets": str(ready.sockets),
            "armed": [line.as_json() for line in armed.lines],
        },
    )


def _masked(argv: Sequence[str]) -> list[str]:
    """``argv`` with secrets hidden: in a word, or in the word after an option that names one."""
    from fabwatch.watchdog.capture.masking import MASK, mask_text, secret_name

    out: list[bytes] = []
    option = b""
    for word in map(os.fsencode, argv):
        hidden = option and secret_name(option) and not word.startswith(b"-")
        out.append(MASK if hidden else mask_text(word)[0])
        option = word if word.startswith(b"-") and b"=" not in word else b""
    return [word.decode("utf-8", "backslashreplace") for word in out]


def write_json(file: Path, value: Mapping[str, Any]) -> None:
    """Replace ``file`` atomically, mode 0600. Raises OSError."""
    part = file.with_name(f".{file.name}.part")
    fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        with os.fdopen(fd, "wb") as out:
            out.write(json.dumps(value, indent=1).encode() + b"\n")
        part.replace(file)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def sync(file: Path) -> None:
    """Put ``file`` on disk; apart from its writing, for a job should not wait for a disk."""
    fd = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def note_end(run_dir: Path, outcome: Mapping[str, int]) -> None:
    """Add ``ended`` and ``outcome`` to launch.json. Raises OSError or ValueError."""
    file = run_dir / FILE
    write_json(
        file, {**json.loads(file.read_bytes()), "ended": time.time(), "outcome": dict(outcome)}
    )


def start_ticks(pid: int) -> int:
    """Field 22 of /proc/<pid>/stat, which tells a reused pid; 0 if it cannot be read."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except (OSError, ValueError, IndexError):
        return 0


def free_port() -> int | None:
    """A loopback port that nobody holds, below the range that outgoing connections draw from."""
    draw = random.SystemRandom()
    for _ in range(20):
        port = draw.randrange(20000, 32000)
        if port not in _TAKEN_PORTS and _can_bind(port):
            return port
    return None


def _can_bind(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def nccl_conf_names(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Names that NCCL's configuration files set: a variable would override them."""
    files = ["/etc/nccl.conf"]
    if environ.get("NCCL_CONF_FILE"):
        files.append(environ["NCCL_CONF_FILE"])
    elif environ.get("HOME"):
        files.append(environ["HOME"] + "/.nccl.conf")
    names = set()
    for file in files:
        try:
            with open(file, "rb") as text:  # noqa: PTH123 - may hold any bytes
                lines = text.read(65536).decode("utf-8", "replace").splitlines()
        except OSError:
            continue
        for line in lines:
            name, equals, _ = line.partition("=")
            if equals and not line.lstrip().startswith("#"):
                names.add(name.strip())
    return tuple(sorted(names))


def prune(out: Path, keep: int, mine: Path) -> list[Path]:
    """Remove the oldest runs in ``out`` beyond ``keep`` (``mine`` counts); return what went.

    Only directories that hold a launch.json of ours and in which nobody works any more: on this
    host the lock on agent.log says so, on another one only the `ended` that its stub wrote.
    """
    runs = []
    for entry in os.scandir(out):
        path = Path(entry.path)
        if path == mine or not entry.is_dir(follow_symlinks=False):
            continue
        launch = _launch_of(path)
        if launch is not None:
            started = launch.get("started")
            runs.append((started if isinstance(started, (int, float)) else 0.0, path, launch))
    runs.sort(key=lambda run: run[0], reverse=True)
    gone = []
    for _, path, launch in runs[max(0, keep - 1) :]:
        if _finished(path, launch):
            try:
                _remove_run(path)
            except OSError:
                continue  # launch.json goes last: the next prune tries again
            gone.append(path)
    return gone


def _launch_of(path: Path) -> dict[str, Any] | None:
    file = path / FILE
    try:
        if file.is_symlink() or not file.is_file() or file.stat().st_size > 8 << 20:
            return None
        got = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return None
    return got if isinstance(got, dict) and got.get("schema") == SCHEMA else None


def _finished(path: Path, launch: Mapping[str, Any]) -> bool:
    if launch.get("host") != socket.gethostname() and "ended" not in launch:
        return False
    try:
        fd = os.open(path / "agent.log", os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    finally:
        os.close(fd)
    return True


def _remove_run(path: Path) -> None:
    for entry in os.scandir(path):
        if entry.name != FILE:
            if entry.is_dir(follow_symlinks=False):
                shutil.rmtree(entry.path)
            else:
                Path(entry.path).unlink()
    (path / FILE).unlink()
    path.rmdir()
