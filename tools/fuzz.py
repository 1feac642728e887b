"""Fuzz every parser: ``python tools/fuzz.py [--seconds N] [--jobs N] [MODULE...]``.

Each module gets a process of its own. atheris (coverage-guided) is used where it loads, else
hypothesis. An input fails when the parser raises, runs longer than 10 s, or makes the process
larger than 500 MB; it is kept in tests/fuzz/<module>/, from which CI replays it.
"""

from __future__ import annotations

import argparse
import faulthandler
import hashlib
import importlib
import io
import os
import resource
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:] = [p for p in sys.path if Path(p or ".").resolve() != ROOT / "tools"]
CORPUS = ROOT / "tests" / "fuzz"
SAMPLES = ROOT / "tests" / "samples"
RSS_MB = 500
HANG_S = 10
MAX_LEN = 64 * 1024
EXTRA = ("sections", "inputs")
"""What reads raw input besides the parsers."""


class Grown(Exception):
    """The process became larger than it may."""


def modules() -> list[str]:
    """Names of all targets: the parsers' files, and EXTRA."""
    from fabwatch.watchdog.evidence.parsers import all_parsers

    return [m.__name__.rsplit(".", 1)[-1] for m in all_parsers()] + list(EXTRA)  # type: ignore[attr-defined]


def target(module: str) -> Callable[[bytes], None]:
    """The function that must take any bytes. Raises for anything but located errors."""
    from fabwatch.watchdog.evidence.artefact import Artefact
    from fabwatch.watchdog.evidence.naming import hint_of
    from fabwatch.watchdog.evidence.observations import Parsed, ReadError
    from fabwatch.watchdog.evidence.settle import settle

    def artefact_of(data: bytes, name: str) -> Artefact:
        base = name.rsplit("/", 1)[-1]
        return Artefact(name, base, lambda: io.BytesIO(data), len(data), None, hint_of(name))

    if module == "sections":
        from fabwatch.watchdog.evidence import sections
        from fabwatch.watchdog.evidence.artefact import decode

        def parts(data: bytes) -> None:
            text = decode(data)
            if sections.may_hold_parts(data):
                last = text.count("\n") + 1
                for part in sections.merged(sections.split(text)):
                    assert 1 <= part.first <= last + 1, part

        return parts
    if module == "inputs":
        from fabwatch.watchdog.evidence.inputs import Budget, standard_input

        def unpack(data: bytes) -> None:
            for found in standard_input("x", io.BytesIO(data), Budget(200)):
                if not isinstance(found, ReadError):
                    try:
                        found.head()
                        for _ in found.blocks():
                            pass
                    except OSError:
                        pass

        return unpack
    parser = importlib.import_module(f"fabwatch.watchdog.evidence.parsers.{module}")
    name = "infiniband/mlx5_0/ports/1/state" if module == "sysfs" else "hosts/n1/x_rank_1.txt"

    def parse(data: bytes) -> None:
        assert 0 <= parser.sniff(data[:MAX_LEN], name) <= 100
        parsed = parser.parse(artefact_of(data, name))
        assert isinstance(parsed, Parsed)
        assert all(isinstance(one, ReadError) and one.path for one in parsed.errors)
        assert len(parsed.observations) <= len(data) + 1
        settle(parsed.observations, parsed.looked, {}, {}, set())

    return parse


def seeds(module: str) -> list[bytes]:
    """Committed inputs of a module, and its samples."""
    files = sorted((CORPUS / module).glob("*")) + sorted(SAMPLES.glob(f"{module}--*.in"))
    if module == "sections":
        files += sorted(SAMPLES.glob("process_facts--*.in"))
    return [path.read_bytes()[:MAX_LEN] for path in files if path.is_file()] or [b""]


def keep(module: str, data: bytes) -> Path:
    """Keep an input that failed; beyond 16 KiB only in the temporary folder."""
    name = f"crash-{hashlib.sha256(data).hexdigest()[:12]}"
    folder = CORPUS / module if len(data) <= 16384 else Path(tempfile.gettempdir())
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(data)
    return folder / name


def watched(run: Callable[[bytes], None]) -> Callable[[bytes], None]:
    """``run`` with its failures kept, its time and the size of the process watched."""

    def one(data: bytes) -> None:
        faulthandler.dump_traceback_later(HANG_S * 6, exit=True)
        began = time.monotonic()
        try:
            run(data)
            if time.monotonic() - began > HANG_S:
                raise TimeoutError(f"took {time.monotonic() - began:.0f} s")
            if resource.getrusage(resource.RUSAGE_SELF).ru_maxrss > RSS_MB * 1024:
                raise Grown(f"more than {RSS_MB} MB")
        finally:
            faulthandler.cancel_dump_traceback_later()

    return one


def load_atheris() -> Any:
    """The module atheris, or None where it cannot load."""
    try:
        return importlib.import_module("atheris")
    except ImportError:
        return None


def with_atheris(atheris: Any, module: str, seconds: float, run: Callable[[bytes], None]) -> None:
    """Fuzz in this process, which ends with it."""
    corpus = tempfile.mkdtemp(prefix=f"fuzz-{module}-")
    for number, data in enumerate(seeds(module)):
        Path(corpus, f"seed-{number}").write_bytes(data)
    crashes = tempfile.mkdtemp(prefix=f"crash-{module}-")
    options = {
        "max_total_time": int(seconds), "rss_limit_mb": RSS_MB, "timeout": HANG_S,
        "max_len": MAX_LEN, "artifact_prefix": f"{crashes}/", "print_final_stats": 1,
    }  # fmt: skip
    print(f"crashes in {crashes}", flush=True)
    flags = [f"-{name}={value}" for name, value in options.items()]
    atheris.Setup([sys.argv[0], *flags, corpus], run)
    atheris.Fuzz()


def with_hypothesis(module: str, seconds: float, run: Callable[[bytes], None]) -> None:
    """Fuzz until the time is up. Raises what the parser raised, shrunk and kept."""
    from hypothesis import HealthCheck, given, seed, settings
    from hypothesis import strategies as st

    known = seeds(module)
    odd = [b"\n", b"\0", b"9" * 30, b"{", b"[" * 50, b" " * 200, b"\xff\xfe", b"-1", b"'", b'"',
           b"\t", b"1e999", b":", b"|", b"\r"]  # fmt: skip
    words = sorted({w for data in known for w in data.split()[:2000] if len(w) < 60})[:4000]
    piece = st.binary(max_size=40) | st.sampled_from(odd + words or [b""])
    change = st.tuples(st.integers(0, MAX_LEN), st.integers(0, 400), piece)

    def changed(data: bytes, changes: list[tuple[int, int, bytes]]) -> bytes:
        raw = bytearray(data)
        for at, length, new in changes:
            at %= len(raw) + 1
            raw[at : at + length] = new
        return bytes(raw)

    inputs = st.builds(changed, st.sampled_from(known), st.lists(change, max_size=12))
    inputs |= st.binary(max_size=3000) | st.lists(st.sampled_from(odd + words or [b""])).map(
        b" ".join
    )
    ends = time.monotonic() + seconds
    total, rounds = 0, 0
    last = b""

    while time.monotonic() < ends:
        rounds += 1

        @seed(rounds * 7919 + os.getpid())
        @settings(
            max_examples=300, deadline=None, database=None,
            suppress_health_check=list(HealthCheck),
        )  # fmt: skip
        @given(inputs)
        def trial(data: bytes) -> None:
            nonlocal total, last
            last = data
            total += 1
            if time.monotonic() < ends + 60:
                run(data)

        try:
            trial()
        except BaseException:
            print(f"kept as {keep(module, last)}", flush=True)
            raise
    print(f"{module}: {total} inputs")


def one(module: str, seconds: float, engine: str) -> int:
    """The child: fuzz one module. 0 when nothing was found."""
    atheris = load_atheris() if engine in ("auto", "atheris") else None
    if atheris is None and engine == "atheris":
        print("atheris cannot be loaded")
        return 2
    if atheris is not None:
        with atheris.instrument_imports(include=["fabwatch.watchdog.evidence"]):
            run = watched(target(module))
    else:
        run = watched(target(module))
    for data in seeds(module):
        try:
            run(data)
        except Exception:
            print(f"seed failed: {keep(module, data)}")
            traceback.print_exc()
            return 1
    if atheris is not None:
        with_atheris(atheris, module, seconds, run)
        return 0
    try:
        with_hypothesis(module, seconds, run)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def rss_mb(pid: int) -> int:
    """Resident size of a process in MB; 0 when it is gone."""
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    found = [line for line in text.split("\n") if line.startswith("VmRSS:")]
    return int(found[0].split()[1]) // 1024 if found else 0


def _crashers(module: str, output: str) -> list[Path]:
    """Inputs that libFuzzer wrote down, kept with the others."""
    out = []
    for line in output.split("\n"):
        if line.startswith("crashes in "):
            out += [keep(module, p.read_bytes()) for p in sorted(Path(line[11:]).glob("*"))]
    return out


def main() -> int:
    """Run the children, some at a time; 1 when any found something."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("modules", nargs="*", metavar="MODULE")
    parser.add_argument("--seconds", type=float, default=60.0, help="for each module")
    parser.add_argument("--jobs", type=int, default=1, help="modules at a time")
    parser.add_argument("--engine", choices=("auto", "atheris", "hypothesis"), default="auto")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        return one(given.modules[0], given.seconds, given.engine)
    known = modules()
    if unknown := sorted(set(given.modules) - set(known)):
        parser.error(f"no module is called {', '.join(unknown)}; there are {', '.join(known)}")
    waiting = list(given.modules or known)
    running: dict[str, tuple[subprocess.Popen[bytes], Path, float, int]] = {}
    failed: list[str] = []
    logs = Path(tempfile.mkdtemp(prefix="fuzz-logs-"))
    while waiting or running:
        while waiting and len(running) < max(given.jobs, 1):
            name = waiting.pop(0)
            log = logs / name
            command = [sys.executable, __file__, "--child", "--seconds", str(given.seconds),
                       "--engine", given.engine, name]  # fmt: skip
            with log.open("wb") as out:
                child = subprocess.Popen(command, stdout=out, stderr=subprocess.STDOUT)
            running[name] = (child, log, time.monotonic(), 0)
        time.sleep(0.2)
        for name, (child, log, began, most) in list(running.items()):
            most = max(most, rss_mb(child.pid))
            running[name] = (child, log, began, most)
            late = time.monotonic() - began > given.seconds * 1.5 + 180
            big = most > RSS_MB + 100
            if child.poll() is None and not late and not big:
                continue
            if child.poll() is None:
                child.kill()
            code = child.wait()
            del running[name]
            text = log.read_text("utf-8", "replace")
            kept = _crashers(name, text)
            said = "nothing found"
            if code or kept or late or big:
                failed.append(name)
                why = "too slow" if late else "too large" if big else f"exit {code}"
                said = f"FAILED ({why}); kept {', '.join(map(str, kept)) or 'see the log'}; {log}"
            took = time.monotonic() - began
            print(f"{name}: {said}, at most {most} MB, {took:.0f} s, {_count(text)}", flush=True)
    print(f"{len(failed)} failed: {', '.join(failed)}" if failed else "no crash")
    return 1 if failed else 0


def _count(text: str) -> str:
    """How many inputs were tried, as the engine says."""
    for line in reversed(text.split("\n")):
        if line.startswith("stat::number_of_executed_units:"):
            return f"{line.split(':')[-1].strip()} inputs (atheris)"
        if line.endswith(" inputs"):
            return f"{line.split(': ')[-1]} (hypothesis)"
    return "? inputs"


if __name__ == "__main__":
    sys.exit(main())
