"""Arm a job's environment: switch evidence on, override nothing that the user set."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fabwatch.watchdog.launch.options import LaunchOptions
from fabwatch.watchdog.launch.reach import Reach, reach_of

FR_ENTRIES = "2000"
BUFFER = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
DUMP_FILE = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
TIMING = ("TORCH_NCCL_ENABLE_TIMING", "NCCL_ENABLE_TIMING")
PIPE = "TORCH_NCCL_DEBUG_INFO_PIPE_FILE"
OURS = ("FABWATCH_RUN_DIR", "FABWATCH_RUN_ID", "FABWATCH_SOCKETS", "FABWATCH_OLD_NAMES")

_SHOWN = frozenset({*BUFFER, *DUMP_FILE, *TIMING, PIPE, "TORCH_NCCL_DUMP_ON_TIMEOUT"}) | {
    "NCCL_RAS_ADDR",
    "NCCL_DEBUG",
    "NCCL_DEBUG_FILE",
}
"""Names whose user-given value is written down: it says where evidence goes, and is no secret."""


@dataclass(frozen=True)
class Line:
    """Whether one variable is armed; ``reason`` says why not, or what to bear in mind."""

    name: str
    armed: bool
    reason: str = ""
    value: str = ""

    def as_json(self) -> dict[str, str | bool]:
        """The shape that launch.json holds."""
        out: dict[str, str | bool] = {"name": self.name, "armed": self.armed}
        if self.reason:
            out["reason"] = self.reason
        if self.value:
            out["value"] = self.value
        return out


@dataclass(frozen=True)
class Armed:
    """The job's environment, and one line for each variable."""

    environ: dict[str, str]
    lines: tuple[Line, ...]


def probe_site() -> Path:
    """The folder that goes on PYTHONPATH: the probe's sitecustomize.py, nothing else."""
    return Path(__file__).resolve().parent.parent / "probe" / "site"


def run_id_of(run_dir: Path, sockets: Path) -> str:
    """A name that no other run has: two runs of one second in two folders are two runs.

    The agent finds processes that left the launcher's tree by it, so it must not be shared.
    """
    return f"{run_dir.name}-{sockets.name.rpartition('-')[2]}"


def arm(
    environ: Mapping[str, str],
    run_dir: Path,
    sockets: Path,
    options: LaunchOptions,
    *,
    argv: Sequence[str] = (),
    ras_port: int | None = None,
    conf: Collection[str] = (),
) -> Armed:
    """Return the environment of the job and what could not be armed. Touches nothing.

    ``argv``: the launch, to see what cannot be reached. ``ras_port``: a free loopback port.
    ``conf``: names that the user's nccl.conf sets, which an environment variable would override.
    """
    out = dict(environ)
    lines: list[Line] = []

    def user_has(*names: str) -> str:
        """The first of ``names`` that the user set, or ""."""
        return next((n for n in names if n in environ or n in conf), "")

    def kept(name: str, by: str, reason: str = "") -> None:
        where = "the user's nccl.conf" if by not in environ else "the user"
        value = environ.get(by, "") if by in _SHOWN else ""
        lines.append(Line(name, False, reason or f"{by} is set by {where}", value))

    def put(name: str, value: str, reason: str = "") -> None:
        out[name] = value
        lines.append(Line(name, True, reason, value))

    def put_unless(names: Sequence[str], value: str) -> None:
        by = user_has(*names)
        for name in names:
            if by:
                kept(name, by)
            else:
                put(name, value)

    put("FABWATCH_RUN_DIR", str(run_dir))
    put("FABWATCH_RUN_ID", run_id_of(run_dir, sockets))
    put("FABWATCH_SOCKETS", str(sockets))

    # torch 2.7-2.10 gave the two names of the size different defaults (2000 and 0, which writes
    # a file without entries), and 2.8-2.10 makes the pipe only where the OLD name is above 0:
    # both are set, or neither.
    put_unless(BUFFER, FR_ENTRIES)
    if options.probe and not user_has(*BUFFER):
        put("FABWATCH_OLD_NAMES", BUFFER[1], "the probe takes it back where torch warns about it")
    off = next((n for n in BUFFER if environ.get(n, "").strip() in ("0", "00")), "")
    if off:
        reason = f"{off}=0 switches the flight recorder off"
        for name in (*DUMP_FILE, "TORCH_NCCL_DUMP_ON_TIMEOUT", PIPE):
            lines.append(Line(name, False, reason))
    else:
        put_unless(DUMP_FILE, f"{run_dir}/fr/nccl_trace_rank_")
        put_unless(("TORCH_NCCL_DUMP_ON_TIMEOUT",), "1")
        if user_has(PIPE):
            kept(PIPE, PIPE)
        else:
            only_new = BUFFER[0] in environ and BUFFER[1] not in environ
            put(
                PIPE,
                f"{sockets}/fr-pipe-",
                f"torch 2.8 to 2.10 makes no pipe: only {BUFFER[0]} is set" if only_new else "",
            )
    if options.timing:
        by = user_has(*TIMING)
        if by:
            kept(TIMING[0], by)
        else:
            put(TIMING[0], "1")

    if user_has("NCCL_RAS_ADDR"):
        kept("NCCL_RAS_ADDR", "NCCL_RAS_ADDR")
    elif environ.get("NCCL_RAS_ENABLE", "").strip() == "0":
        lines.append(Line("NCCL_RAS_ADDR", False, "NCCL_RAS_ENABLE=0 switches RAS off"))
    elif ras_port is None:
        lines.append(Line("NCCL_RAS_ADDR", False, "no free loopback port was found"))
    else:
        put("NCCL_RAS_ADDR", f"localhost:{ras_port}")

    by = user_has("NCCL_DEBUG", "NCCL_DEBUG_FILE")
    if by:
        kept("NCCL_DEBUG", by)
        kept("NCCL_DEBUG_FILE", by)
    else:
        put("NCCL_DEBUG", "WARN")
        put("NCCL_DEBUG_FILE", f"{str(run_dir).replace('%', '%%')}/nccl/nccl.%h.%p.log")

    if not options.probe:
        lines.append(Line("PYTHONPATH", False, "--no-probe"))
    else:
        users = environ.get("PYTHONPATH", "")
        site = str(probe_site())
        out["PYTHONPATH"] = f"{site}:{users}" if users else site
        lines.append(Line("PYTHONPATH", True, value=site))
    return Armed(out, _reached(lines, reach_of(argv, environ)))


def _reached(lines: list[Line], reach: Reach) -> tuple[Line, ...]:
    """Take back what cannot arrive in the ranks, and say what may not arrive everywhere."""
    out = []
    for line in lines:
        why = reach.nothing or (reach.probe if line.name == "PYTHONPATH" else "")
        if line.armed and why:
            line = Line(line.name, False, why, line.value)
        elif line.armed and reach.note and not line.reason:
            line = Line(line.name, True, reach.note, line.value)
        out.append(line)
    return tuple(out)
