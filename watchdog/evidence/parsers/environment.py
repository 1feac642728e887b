"""Read the environment of a process: env, printenv, ``export -p``, /proc/PID/environ.

Only variables that change how a job runs are kept; values of others are never stored.

Example::

    NCCL_IB_HCA=mlx5_0,mlx5_1
    RANK=3
"""

from __future__ import annotations

import re

from fabwatch.watchdog.evidence.artefact import LINE_BYTES, Artefact
from fabwatch.watchdog.evidence.measuring import Looks
from fabwatch.watchdog.evidence.observations import Parsed

NAME = "environment"
MAKES = ("environment",)
PASTED = True

_LINE = re.compile(
    r"^(?:export |declare -x |setenv )?(?P<key>[A-Za-z_][A-Za-z0-9_]{0,100})[= ](?P<value>.*)$"
)
_KEPT = re.compile(
    r"^(?:NCCL|GLOO|TORCH|PYTORCH|CUDA|UCX|FI|OFI|OMPI_COMM|PMI|PMIX|SLURM|RANK$|WORLD_SIZE$|"
    r"LOCAL_|"
    r"MASTER_|GROUP_|ROLE_|OMP_|MKL_|NVIDIA_|NVSHMEM|RDMAV|MLX|IBV|LD_LIBRARY_PATH$|LD_PRELOAD$|"
    r"HOSTNAME$|PYTHON|KMP_|RAY_|NODE_RANK$|TORCHELASTIC|HSA_|RCCL|MPI)"
)
_SECRET = re.compile(r"token|secret|passw|credential|_key$|apikey|api_key|auth", re.I)
_SNIFF = re.compile(
    rb"(?:^|[\n\0])(?:export |declare -x )?(?:PATH|HOME|PWD|NCCL_\w+|MASTER_ADDR|"
    rb"CUDA_VISIBLE_DEVICES|"
    rb"RANK|WORLD_SIZE|LOCAL_RANK|SLURM_\w+)=[^\n\0]*"
)


def sniff(head: bytes, name: str) -> int:
    """Mostly assignments, among them such as every environment or job has."""
    if not _SNIFF.search(head):
        return 0
    lines = [line for line in re.split(rb"[\n\0]", head[:32768]) if line.strip()]
    fit = sum(
        1 for line in lines if re.match(rb"(?:export |declare -x )?[A-Za-z_][A-Za-z0-9_]*=", line)
    )
    return 87 if fit >= 3 and fit * 10 >= len(lines) * 8 else 0


def parse(artefact: Artefact) -> Parsed:
    """One environment look, named by its rank, host or file."""
    data, _ = artefact.read(16 * 1024 * 1024)
    text = data.replace(b"\0", b"\n").decode("utf-8", "replace")
    kept: dict[str, tuple[str, int]] = {}
    nul = b"\0" in data
    for number, line in enumerate(text.split("\n"), 1):
        match = _LINE.match(line[:LINE_BYTES].rstrip("\r"))
        if match is None or not _KEPT.match(match["key"]) or _SECRET.search(match["key"]):
            continue
        value = match["value"].strip()
        if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"":
            value = value[1:-1]
        kept[match["key"]] = (value, 1 if nul else number)
    rank = None
    for key in ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"):
        value = kept.get(key, ("", 0))[0]
        if value.isdigit() and len(value) < 8:
            rank = int(value)
            break
    host = next(
        (kept[k][0] for k in ("SLURMD_NODENAME", "HOSTNAME") if kept.get(k, ("", 0))[0]), None
    )
    source = artefact.source("environment", rank=rank, host=host[:200] if host else None)
    looks = Looks(source)
    name = f"rank {source.rank}" if source.rank is not None else host or artefact.path
    for key, (value, number) in kept.items():
        looks.put("environment", name, key, value, number)
    return Parsed(looks.out(), (), (source,))
