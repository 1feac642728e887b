"""Which version a mapped library really is: from its package, its file name, or its text."""

from __future__ import annotations

import functools
import mmap
import re
from pathlib import Path

MATTER = re.compile(
    r"(?:^|/)(?:lib)?(?:torch|c10|gloo|nccl|rccl|cuda|cudart|cudnn|cublas|nvidia-|nvshmem|"
    r"ibverbs|mlx5|efa|rdmacm|fabric|ucp|ucc|mpi|hccl|nccl-net|gdrapi|python3|tcmalloc|"
    r"jemalloc|c-\d|c\.so|pthread)[^/]*\.so",
    re.IGNORECASE,
)
"""Mapped files that a diagnosis may ask about."""

_SONAME = re.compile(r"\.so\.(\d+(?:\.\d+){1,3})$")
_NCCL_TEXT = re.compile(rb"NCCL version (\d+\.\d+\.\d+)")
_SEARCH_CAP = 600 << 20


@functools.cache
def version(path: str) -> str:
    """``2.28.9``, or "" when nothing says so. Reads files: call it in a child only."""
    return _package(path) or _file_name(path) or _text(path)


def _package(path: str) -> str:
    """The version of the wheel that the file belongs to."""
    before, found, inside = path.partition("/site-packages/")
    if not found:
        before, found, inside = path.partition("/dist-packages/")
    if not found:
        return ""
    top, _, rest = inside.partition("/")
    if top == "nvidia":
        top = "nvidia_" + rest.partition("/")[0].replace("-", "_")
    try:
        for info in sorted(Path(before + found).glob(f"{top}*-*.dist-info")):
            name, _, number = info.name[: -len(".dist-info")].rpartition("-")
            if name == top or re.fullmatch(re.escape(top) + r"_cu\d+", name):
                return number
    except OSError:
        pass
    return ""


def _file_name(path: str) -> str:
    try:
        found = _SONAME.search(str(Path(path).resolve()))
    except OSError:
        return ""
    return found[1] if found and "libpython" not in path else ""


def _text(path: str) -> str:
    if "nccl" not in Path(path).name:
        return ""
    try:
        with Path(path).open("rb") as file:
            size = min(file.seek(0, 2), _SEARCH_CAP)
            with mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) as text:
                found = _NCCL_TEXT.search(text)
                return found[1].decode() if found else ""
    except (OSError, ValueError):
        return ""
