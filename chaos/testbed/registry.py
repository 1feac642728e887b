"""Test beds that stand on their own (`fabwatch testbed up`): one small file each, owner only."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

from fabwatch.chaos.testbed.control import Bed, BedError


def folder() -> Path:
    """Where the files lie; made if need be. Raises BedError if it is somebody else's."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    base = Path(runtime) if runtime else Path(tempfile.gettempdir())
    path = base / ("fabwatch-testbeds" if runtime else f"fabwatch-testbeds-{os.getuid()}")
    path.mkdir(mode=0o700, exist_ok=True)
    about = path.lstat()
    if path.is_symlink() or about.st_uid != os.getuid() or about.st_mode & 0o077:
        raise BedError(f"{path} is not a directory of this user with mode 0700: remove it")
    return path


def save(bed: Bed) -> None:
    """Note a bed."""
    path = folder() / f"{bed.spec.name}.json"
    part = path.with_suffix(f".{os.getpid()}.part")
    part.write_text(json.dumps(bed.as_json()))
    part.rename(path)


def find(name: str) -> Bed:
    """The bed of that name. Raises BedError if none stands."""
    for bed in standing():
        if bed.spec.name == name:
            return bed
    there = ", ".join(bed.spec.name for bed in standing()) or "none"
    raise BedError(f"no test bed {name!r} stands (there: {there}); make one: fabwatch testbed up")


def standing() -> list[Bed]:
    """All beds that stand; files of those that are gone are removed."""
    found = []
    for path in sorted(folder().glob("*.json")):
        try:
            bed = Bed.from_json(json.loads(path.read_text()))
        except FileNotFoundError:
            continue
        except ValueError as err:
            raise BedError(f"{path}: {err}; remove the file") from None
        if bed.alive:
            found.append(bed)
        else:
            path.unlink(missing_ok=True)
    return found
