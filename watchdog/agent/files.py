"""Write the agent's own files so that a reader never sees half of one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec


def write_json(file: Path, value: Any) -> None:
    """Replace ``file`` atomically, mode 0600. Raises OSError."""
    part = file.with_name(f".{file.name}.{os.getpid()}.part")
    fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(fd, "wb") as out:
            out.write(msgspec.json.format(msgspec.json.encode(value), indent=1) + b"\n")
        part.replace(file)
    except BaseException:
        part.unlink(missing_ok=True)
        raise


def read_json(file: Path, cap: int = 8 << 20) -> dict[str, Any]:
    """The object in ``file``; {} when there is none that can be read."""
    try:
        with file.open("rb") as source:
            value = msgspec.json.decode(source.read(cap))
    except (OSError, msgspec.MsgspecError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
