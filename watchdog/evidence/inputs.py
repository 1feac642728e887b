"""Turn paths into artefacts: directories, single files, stdin and archives, safely and bounded.

Nothing is ever written to a place that an archive names, no link leads out of what was given,
nothing but regular files is opened, and no archive can grow without bounds.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import stat
import struct
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import BinaryIO, cast

from fabwatch.watchdog.evidence.artefact import Artefact
from fabwatch.watchdog.evidence.naming import hint_of
from fabwatch.watchdog.evidence.observations import ReadError

MAX_FILES = 500_000
MAX_DEPTH = 64
MAX_NESTING = 3
MAX_STREAM = 16 * 1024**3
BOMB_BYTES = 64 * 1024**2
BOMB_RATIO = 250
_BROKEN = (
    ValueError, IndexError, KeyError, OverflowError, RuntimeError, struct.error,
)  # fmt: skip
"""What the standard library raises beside its own errors when an archive lies about itself."""
_IN_MEMORY = 8 * 1024**2


class Bomb(OSError):
    """An archive member unpacks to far more than its size explains."""


@dataclass
class Budget:
    """How much may still be opened in one reading."""

    files: int = MAX_FILES

    def take(self) -> bool:
        """Count one file; False when there are too many."""
        self.files -= 1
        return self.files >= 0


class _Bounded(io.RawIOBase):
    """A stream that refuses to unpack without end. ``packed`` is the packed size in bytes."""

    def __init__(self, inner: BinaryIO, packed: int) -> None:
        self._inner = inner
        self._packed = max(packed, 1)
        self._out = 0

    def readable(self) -> bool:
        """Always."""
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        """Read some bytes. Raises Bomb, or OSError for a broken archive."""
        try:
            data = self._inner.read(len(buffer))
        except (OSError, MemoryError):
            raise
        except Exception as err:  # each library that unpacks has errors of its own
            raise OSError(f"broken or cut archive: {err}") from None
        self._out += len(data)
        if self._out > BOMB_BYTES and self._out > self._packed * BOMB_RATIO:
            raise Bomb(f"unpacks to more than {BOMB_RATIO} times its size")
        if self._out > MAX_STREAM:
            raise Bomb(f"unpacks to more than {MAX_STREAM >> 30} GiB")
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        """Close the inner stream too."""
        if not self.closed:
            self._inner.close()
        super().close()


class _Borrowed(io.RawIOBase):
    """A view of a temporary file from its start that leaves it open."""

    def __init__(self, inner: BinaryIO) -> None:
        self._inner = inner
        inner.seek(0)

    def readable(self) -> bool:
        """Always."""
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        """Read some bytes."""
        data = self._inner.read(len(buffer))
        buffer[: len(data)] = data
        return len(data)


def _buffered(raw: io.RawIOBase) -> BinaryIO:
    return cast(BinaryIO, io.BufferedReader(raw, 256 * 1024))


Found = Artefact | ReadError


def artefacts(
    path: Path, label: str, budget: Budget, skip: Callable[[Path], bool]
) -> Iterator[Found]:
    """Artefacts of one path. Each must be read before the next one is asked for.

    ``label`` is the prefix of labels ("" for none). ``skip`` says which paths are no evidence.
    """
    try:
        info = path.stat()
    except OSError as err:
        yield ReadError(str(path), "", f"cannot be read: {err.strerror or err}", "check the path")
        return
    if stat.S_ISDIR(info.st_mode):
        yield from _folder(path, label, budget, skip)
    elif stat.S_ISREG(info.st_mode):
        yield from _expand(_file(path, label or path.name, info), 0, budget)
    elif stat.S_ISFIFO(info.st_mode) or _is_terminal_or_null(path, info):
        yield from _piped(path, budget)
    else:
        yield ReadError(str(path), "", "is no file, directory or pipe", "give a file or directory")


def _is_terminal_or_null(path: Path, info: os.stat_result) -> bool:
    """Character devices that end: other ones (/dev/full, /dev/zero) never do."""
    if not stat.S_ISCHR(info.st_mode):
        return False
    if info.st_rdev == os.makedev(1, 3):  # /dev/null
        return True
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return os.isatty(fd)
    finally:
        os.close(fd)


def _piped(path: Path, budget: Budget) -> Iterator[Found]:
    """A pipe that somebody writes to, as the shell's ``<(...)``; opening waits for nobody."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError as err:
        yield ReadError(str(path), "", f"cannot be read: {err.strerror or err}", "check the path")
        return
    os.set_blocking(fd, True)
    yield from standard_input(str(path), os.fdopen(fd, "rb"), budget)


def standard_input(label: str, stream: BinaryIO, budget: Budget) -> Iterator[Found]:
    """The artefacts of a stream that can be read once."""
    with stream:
        yield from _spooled(label, label, stream, None, 0, budget)


def _file(path: Path, label: str, info: os.stat_result) -> Artefact:
    return Artefact(
        label,
        path.name,
        lambda: path.open("rb"),
        info.st_size,
        info.st_mtime,
        hint_of(label),
    )


def _folder(
    root: Path, label: str, budget: Budget, skip: Callable[[Path], bool]
) -> Iterator[Found]:
    """All regular files below a folder; links only when they stay inside."""
    try:
        inside = root.resolve()
    except (OSError, RuntimeError):
        inside = root
    todo: list[tuple[Path, str, int]] = [(root, label, 0)]
    while todo:
        folder, prefix, depth = todo.pop()
        try:
            with os.scandir(folder) as scan:
                entries = sorted(scan, key=lambda e: e.name)
        except OSError as err:
            where = prefix or folder.name
            yield ReadError(where, "", f"cannot be listed: {err.strerror or err}", "fix access")
            continue
        below: list[tuple[Path, str, int]] = []
        for entry in entries:
            path = Path(entry.path)
            name = os.fsencode(entry.name).decode("utf-8", "replace")
            place = f"{prefix}/{name}" if prefix else name
            if skip(path):
                continue
            try:
                if entry.is_symlink():
                    problem = _link_problem(path, inside)
                    if problem:
                        yield ReadError(place, "", problem, "give the target itself")
                        continue
                info = entry.stat()
            except (OSError, RuntimeError) as err:
                yield ReadError(place, "", f"cannot be read: {err}", "fix access")
                continue
            if stat.S_ISDIR(info.st_mode):
                if depth + 1 < MAX_DEPTH:
                    below.append((path, place, depth + 1))
                else:
                    yield ReadError(place, "", f"deeper than {MAX_DEPTH} folders", "not read")
            elif stat.S_ISREG(info.st_mode):
                if not budget.take():
                    yield ReadError(place, "", f"more than {MAX_FILES} files", "rest not read")
                    return
                yield from _expand(_file(path, place, info), 0, budget)
        todo.extend(reversed(below))


def _link_problem(path: Path, inside: Path) -> str:
    try:
        target = path.resolve(strict=True)
    except (OSError, RuntimeError):
        return "is a link to nothing or to itself"
    if target.is_dir():
        return "is a link to a folder, which is not followed"
    if inside != target and inside not in target.parents:
        return "is a link out of this folder"
    return ""


# ------------------------------------------------------------------ archives


def _expand(artefact: Artefact, depth: int, budget: Budget) -> Iterator[Found]:
    """The artefact itself, or what it packs."""
    try:
        head = artefact.head(512)
    except OSError as err:
        yield artefact.error(f"cannot be read: {err.strerror or err}", advice="fix access")
        return
    kind = _packed(head)
    if not kind:
        yield artefact
    elif depth >= MAX_NESTING:
        yield artefact.error(f"archives nested deeper than {MAX_NESTING}", advice="unpack it")
    elif kind == "zip":
        yield from _zip(artefact, depth, budget)
    elif kind == "tar":
        yield from _tar(artefact, depth, budget)
    elif kind == "zstd":
        yield from _zstd(artefact, depth, budget)
    else:
        yield from _single(artefact, kind, depth, budget)


def _packed(head: bytes) -> str:
    if head[:2] == b"\x1f\x8b":
        return "gzip"
    if head[:4] in (b"PK\x03\x04", b"PK\x05\x06"):
        return "zip"
    if head[:3] == b"BZh" and head[4:10] == b"1AY&SY":
        return "bzip2"
    if head[:6] == b"\xfd7zXZ\0":
        return "xz"
    if head[:4] == b"\x28\xb5\x2f\xfd":
        return "zstd"
    if head[257:262] == b"ustar":
        return "tar"
    return ""


def _single(artefact: Artefact, kind: str, depth: int, budget: Budget) -> Iterator[Found]:
    """One packed stream. It is unpacked anew for each look: no copy on disk."""

    def open_it() -> BinaryIO:
        outer = artefact.opener()
        inner: BinaryIO
        if kind == "gzip":
            inner = cast(BinaryIO, gzip.GzipFile(fileobj=outer))
        elif kind == "bzip2":
            inner = cast(BinaryIO, bz2.BZ2File(outer))
        else:
            inner = cast(BinaryIO, lzma.LZMAFile(outer))  # noqa: SIM115
        return _buffered(_Bounded(inner, artefact.size))

    name = artefact.name
    for ending, instead in ((".tgz", ".tar"), (".gz", ""), (".bz2", ""), (".xz", "")):
        if name.lower().endswith(ending):
            name = name[: -len(ending)] + instead
            break
    inner = Artefact(
        artefact.path, name, open_it, -1, artefact.modified, hint_of(_renamed(artefact, name))
    )
    yield from _expand(inner, depth + 1, budget)


def _renamed(artefact: Artefact, name: str) -> str:
    folder, slash, _ = artefact.path.rpartition("/")
    return f"{folder}{slash}{name}"


def _zstd(artefact: Artefact, depth: int, budget: Budget) -> Iterator[Found]:
    try:
        import zstandard  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        yield artefact.error("is packed with zstd", advice="unpack it with: zstd -d FILE")
        return

    def open_it() -> BinaryIO:
        reader = zstandard.ZstdDecompressor(max_window_size=1 << 27).stream_reader(
            artefact.opener(), closefd=True
        )
        return _buffered(_Bounded(cast(BinaryIO, reader), artefact.size))

    name = artefact.name.removesuffix(".zst").removesuffix(".zstd")
    inner = Artefact(
        artefact.path, name, open_it, -1, artefact.modified, hint_of(_renamed(artefact, name))
    )
    yield from _expand(inner, depth + 1, budget)


def _member_problem(name: str) -> str:
    path = PurePosixPath(name.replace("\\", "/"))
    if path.is_absolute() or ".." in path.parts or (len(name) > 1 and name[1] == ":"):
        return "its name leads out of the archive"
    return ""


def _zip(artefact: Artefact, depth: int, budget: Budget) -> Iterator[Found]:
    try:
        outer = artefact.opener()
        if not outer.seekable():
            data, cut = artefact.read()
            if cut:
                yield artefact.error("a zip inside an archive is too large", advice="unpack it")
                return
            outer = io.BytesIO(data)
        archive = zipfile.ZipFile(outer)
    except (OSError, zipfile.BadZipFile, *_BROKEN) as err:
        yield artefact.error(f"broken zip: {err}", advice="copy it again")
        return
    with archive:
        for info in archive.infolist():
            label = f"{artefact.path}!{info.filename}"
            if info.filename.endswith("/"):
                continue
            if not budget.take():
                yield artefact.error(f"more than {MAX_FILES} files", advice="rest not read")
                return
            mode = info.external_attr >> 16
            problem = _member_problem(info.filename)
            if stat.S_IFMT(mode) not in (0, stat.S_IFREG):
                problem = problem or "is no regular file"
            if info.flag_bits & 1:
                problem = problem or "is encrypted"
            if problem:
                yield ReadError(label, "", problem, "not read")
                continue

            def open_it(info: zipfile.ZipInfo = info) -> BinaryIO:
                try:
                    inner = cast(BinaryIO, archive.open(info))
                except (zipfile.BadZipFile, *_BROKEN) as err:
                    raise OSError(f"cannot unpack: {err}") from None
                return _buffered(_Bounded(inner, info.compress_size))

            name = PurePosixPath(info.filename).name
            member = Artefact(label, name, open_it, info.file_size, None, hint_of(label))
            yield from _expand(member, depth + 1, budget)


def _tar(artefact: Artefact, depth: int, budget: Budget) -> Iterator[Found]:
    """Members in order, each copied aside while it is looked at."""
    try:
        with artefact.opener() as outer, tarfile.open(fileobj=outer, mode="r|") as archive:
            for info in archive:
                label = f"{artefact.path}!{info.name}"
                if info.isdir():
                    continue
                if not budget.take():
                    yield artefact.error(f"more than {MAX_FILES} files", advice="rest not read")
                    return
                problem = _member_problem(info.name)
                if not info.isreg():
                    problem = problem or "is no regular file"
                if problem:
                    yield ReadError(label, "", problem, "not read")
                    continue
                stream = archive.extractfile(info)
                if stream is None:
                    continue
                name = PurePosixPath(info.name).name
                yield from _spooled(
                    label, name, cast(BinaryIO, stream), float(info.mtime), depth + 1, budget
                )
                archive.members = []  # type: ignore[attr-defined]  # keep memory flat
    except (tarfile.TarError, OSError, EOFError, zlib.error, *_BROKEN) as err:
        yield artefact.error(f"broken or cut tar: {err}", advice="what came before was read")


def _spooled(
    label: str, name: str, stream: BinaryIO, modified: float | None, depth: int, budget: Budget
) -> Iterator[Found]:
    """A stream that can be read once, kept in memory or in a temporary file for a while."""
    bounded = _buffered(_Bounded(stream, MAX_STREAM))
    try:
        data = bounded.read(_IN_MEMORY + 1)
        if len(data) <= _IN_MEMORY:
            whole = Artefact(
                label, name, lambda: io.BytesIO(data), len(data), modified, hint_of(label)
            )
            yield from _expand(whole, depth, budget)
            return
        with tempfile.TemporaryFile() as aside:
            aside.write(data)
            size = len(data)
            while chunk := bounded.read(1 << 20):
                aside.write(chunk)
                size += len(chunk)
            file = cast(BinaryIO, aside)
            whole = Artefact(
                label, name, lambda: _buffered(_Borrowed(file)), size, modified, hint_of(label)
            )
            yield from _expand(whole, depth, budget)
    except OSError as err:
        yield ReadError(label, "", f"cannot be read: {err}", "copy it again")
