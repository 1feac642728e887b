"""Keeps what was read of the built-in library, so that the next command need not parse it again.

The kept file is data of known types (msgpack), found by a hash of every library file and of the
code that reads them: anything that changes makes another name. Whatever is wrong with it, it is
as if it were not there. ``FABWATCH_CACHE`` names another folder; empty, nothing is kept.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

import msgspec

from fabwatch.signatures.model import Signature
from fabwatch.watchdog.evidence.shapes import Shape

_FILES = 4
"""How many kept libraries may lie in the folder, of other versions and installations."""


class Kept(msgspec.Struct, frozen=True, array_like=True):
    """A library as it was read. ``shapes`` maps a file to what it declares."""

    signatures: tuple[Signature, ...]
    shapes: dict[str, tuple[Shape, ...]]


_encode = msgspec.msgpack.Encoder().encode


def key_of(files: Iterable[Path]) -> str:
    """A hash of the files' paths and contents. Raises OSError."""
    whole = hashlib.blake2b(digest_size=20)
    for path in files:
        data = path.read_bytes()
        whole.update(f"{path}\0{len(data)}\0".encode())
        whole.update(data)
    return whole.hexdigest()


def folder() -> Path | None:
    """Where libraries are kept; None: nowhere."""
    said = os.environ.get("FABWATCH_CACHE")
    if said is not None:
        return Path(said) if said else None
    home = os.environ.get("XDG_CACHE_HOME") or os.environ.get("HOME")
    if not home or not os.path.isabs(home):  # noqa: PTH117 - text from the environment
        return None
    return Path(home, *(() if os.environ.get("XDG_CACHE_HOME") else (".cache",)), "fabwatch")


def get(key: str) -> Kept | None:
    """What was kept under ``key``; None if there is nothing that can be trusted."""
    where = folder()
    if where is None:
        return None
    try:
        with (where / f"library-{key}.msgpack").open("rb") as file:
            if os.fstat(file.fileno()).st_uid != os.geteuid():
                return None
            return msgspec.msgpack.decode(file.read(), type=Kept)
    except (OSError, msgspec.MsgspecError, ValueError):
        return None


def put(key: str, kept: Kept) -> None:
    """Keep it, whole or not at all; a folder that cannot be written is no error."""
    where = folder()
    if where is None:
        return
    with contextlib.suppress(OSError, msgspec.MsgspecError):
        where.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=".library.", dir=where)
        part = Path(name)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(_encode(kept))
            part.replace(where / f"library-{key}.msgpack")
        except BaseException:
            part.unlink(missing_ok=True)
            raise
        _forget(where)


def _forget(where: Path) -> None:
    """Remove all but the newest few."""
    found = sorted(where.glob("library-*.msgpack"), key=lambda p: p.stat().st_mtime, reverse=True)
    for old in found[_FILES:]:
        old.unlink(missing_ok=True)
