"""The job as a capture sees it: who the ranks are and where their evidence lies."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

FILE = "job.json"
"""Name of the saved view inside an incident directory."""


class RankProcess(msgspec.Struct, frozen=True, kw_only=True):
    """One rank's process. ``start_ticks`` is field 22 of /proc/<pid>/stat: it tells pid reuse.

    ``ended``: the process was seen to end (its evidence that outlives it is still gathered).
    ``cgroups``: text of /proc/<pid>/cgroup as last seen while it lived ("" unknown): without it
    nobody can look up the OOM counters of a process that is gone.
    """

    rank: int
    pid: int
    start_ticks: int
    local_rank: int = -1
    attempt: int = 0
    ended: bool = False
    cgroups: str = ""


class Options(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a capture may cost. ``budget``: bytes per incident of this host. ``skip``: collectors.

    ``native``: take stacks that pause the target (py-spy --native). ``workers``: how many
    collector children run at once; 0 chooses by the number of cores.
    """

    budget: int = 64 << 20
    native: bool = True
    skip: tuple[str, ...] = ()
    workers: int = 0


class JobView(msgspec.Struct, frozen=True, kw_only=True):
    """Everything a capture must be told. Paths are absolute; ``host`` names hosts/<host>/.

    ``sockets``: the directory of w<pid>.sock and p<pid>.sock, "" when nothing was armed.
    ``logs``: files that hold the job's own output, beyond what fd 1 and 2 of the ranks and
    the launcher show (those are found by the capture itself).
    """

    run_dir: str
    sockets: str
    host: str
    ranks: tuple[RankProcess, ...]
    launcher_pid: int | None = None
    launcher_start_ticks: int | None = None
    logs: tuple[str, ...] = ()
    options: Options = Options()

    def save(self, incident: Path) -> Path:
        """Write INCIDENT/job.json atomically, mode 0600. Raises OSError."""
        file = incident / FILE
        part = file.with_name(f".{FILE}.{os.getpid()}.part")
        fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(fd, "wb") as out:  # noqa: PTH123
            out.write(msgspec.json.format(msgspec.json.encode(self), indent=1) + b"\n")
        part.replace(file)
        return file

    @classmethod
    def load(cls, incident: Path) -> JobView:
        """Read INCIDENT/job.json. Raises OSError, or ValueError that names the file."""
        file = incident / FILE
        try:
            return msgspec.json.decode(file.read_bytes(), type=cls)
        except msgspec.MsgspecError as err:
            raise ValueError(f"{file}: {err}; written by another version?") from err
