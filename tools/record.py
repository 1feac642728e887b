"""Record a run as a test bundle: pack what a diagnosis reads, with private names replaced.

    python tools/record.py RUN tests/bundles/NAME.tar.gz --replace /home/me/job=/srv/job

A replacement must be as long as what it replaces (it is padded with '_'), because pickles hold
the lengths of their strings. Then say in tests/bundles/truth.yaml what the bundle must come to.
"""

from __future__ import annotations

import argparse
import gzip
import io
import sys
import tarfile
from pathlib import Path

LEFT_OUT = {"verdict.json", "summary.md", "agent.log", "launch.json"}
"""What a diagnosis writes itself, or must not need."""
PRIVATE = (
    "env_rank_*", "dmesg.txt", "versions.txt", "cgroup.txt", "job.json", "manifest.json",
    "proc_net_tcp.txt", "ss.txt", "netstat.txt", "sysfs_net.txt", "ip_link.txt",
)  # fmt: skip
"""What tells about the machine that was recorded on rather than about its job."""
LARGEST = 2 << 20


def pad(old: str, new: str) -> tuple[bytes, bytes]:
    """Both as bytes of one length. Raises SystemExit if ``new`` is longer."""
    if len(new) > len(old):
        raise SystemExit(f"{new!r} is longer than {old!r}: choose a shorter replacement")
    return old.encode(), (new + "_" * (len(old) - len(new))).encode()


def pack(run: Path, target: Path, replace: list[tuple[bytes, bytes]]) -> int:
    """Write the archive, reproducible byte for byte; return its size in bytes."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        for path in sorted(run.rglob("*")):
            inside = path.relative_to(run)
            if not path.is_file() or path.is_symlink() or path.name in LEFT_OUT:
                continue
            if inside.parts[0] == "live" or any(path.match(private) for private in PRIVATE):
                continue
            data = path.read_bytes()
            for old, new in replace:
                data = data.replace(old, new)
            entry = tarfile.TarInfo(f"{target.name.removesuffix('.tar.gz')}/{inside.as_posix()}")
            entry.size, entry.mode, entry.mtime = len(data), 0o600, int(path.stat().st_mtime)
            tar.addfile(entry, io.BytesIO(data))
    squeezed = gzip.compress(packed.getvalue(), 9, mtime=0)
    if len(squeezed) > LARGEST:
        raise SystemExit(f"{len(squeezed)} bytes: a bundle in the repository stays under {LARGEST}")
    target.write_bytes(squeezed)
    return len(squeezed)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("target", type=Path)
    parser.add_argument("--replace", action="append", default=[], metavar="OLD=NEW")
    options = parser.parse_args()
    if not options.run.is_dir():
        raise SystemExit(f"{options.run}: no such run directory")
    pairs = [pad(*text.split("=", 1)) for text in options.replace]
    print(f"{options.target}: {pack(options.run, options.target, pairs)} bytes", file=sys.stderr)


if __name__ == "__main__":
    main()
