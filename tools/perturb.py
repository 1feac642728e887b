"""Change the particulars of a case at random: hosts, addresses, pids, sizes, numbers, paths.

Changes are consistent within a case: what was equal stays equal, what was different stays
different, and running numbers keep their distances. A matcher that knows the kind of failure, not
the case, says the same afterwards.
"""

from __future__ import annotations

import random
import re
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

_HOSTS = (
    re.compile(r"(?:^|\s)([A-Za-z][\w.\-]{2,60}):\d{2,8}:\d{2,8} \[-?\d", re.M),
    re.compile(r"^\s*host\s+: (\S+)", re.M),
    re.compile(r"\b((?:node|host|worker|gpu|nid|ip)-?\d[\w\-]*)\b"),
)
_KEEP = frozenset({"localhost", "gpu", "node", "host"})
_ADDRESS = re.compile(r"(?<![\d.])(\d{1,3})\.(\d{1,3})\.(\d{1,3})\.(\d{1,3})(?![\d.])")
_HEX = re.compile(r"\b0x[0-9a-f]{6,16}\b")
_SEQUENCE = re.compile(
    r"((?:SeqNum|SequenceNumber)=|(?:last (?:enqueued|completed|started) (?:NCCL )?work|"
    r"NCCL work|sequence id): )(\d+)"
)
_SIZE = re.compile(r"((?:NumelIn|NumelOut)=|TensorShape=\[|sizes: \[\[|input sizes: '\[\[)(\d{2,})")
_PID = re.compile(r"((?:pid[= :]{1,3}|process )(?=\d{3}))(\d{3,8})\b")
_NCCL_PID = re.compile(r"(?<=[\w\-]:)(\d{3,8})(:\d{3,8})?(?= \[-?\d)")
_PERSON = re.compile(r"(/(?:home|Users|data|scratch)/)(\w[\w.\-]*)")
_TEXT_BYTES = 4 * 1024 * 1024


class Changes:
    """One consistent set of changes."""

    def __init__(self, seed: str) -> None:
        self.random = random.Random(seed)
        self.offset = self.random.randrange(7, 9000)
        self.factor = self.random.choice((3, 5, 7))
        self.known: dict[tuple[str, str], str] = {}

    def of(self, kind: str, old: str, new: Callable[[], str]) -> str:
        """The same new text for the same old one, never one that is taken."""
        key = (kind, old)
        while key not in self.known:
            made = new()
            if made not in {v for (k, _), v in self.known.items() if k == kind}:
                self.known[key] = made
        return self.known[key]

    def word(self) -> str:
        """A made-up name."""
        letters = "bcdfghklmnprstvz"
        return "".join(self.random.choice(letters) + self.random.choice("aeiou") for _ in range(4))

    def digits(self, like: str) -> str:
        """Another number of as many digits."""
        first = self.random.choice("123456789")
        return first + "".join(self.random.choice("0123456789") for _ in like[1:])

    def octet(self, prefix: tuple[str, ...]) -> str:
        """A new octet for what stands below ``prefix``: subnets stay subnets."""
        return self.of("octet" + ".".join(prefix[:-1]), prefix[-1],
                       lambda: str(self.random.randrange(11, 120)))  # fmt: skip

    def address(self, match: re.Match[str]) -> str:
        """A new address in the same kind of network."""
        parts = match.groups()
        if parts[0] in ("0", "127", "169", "255", "224") or any(int(p) > 255 for p in parts):
            return match[0]
        first = parts[0] if parts[0] in ("10", "172", "192") else "10"
        second = parts[1] if parts[0] in ("172", "192") else self.octet(parts[:2])
        return ".".join((first, second, self.octet(parts[:3]), self.octet(parts)))


def changed(text: str, hosts: Iterable[str], to: Changes) -> str:
    """``text`` with its particulars changed; ``hosts`` are the names found in the whole case."""
    for host in sorted(hosts, key=len, reverse=True):
        new = to.of("host", host, lambda: f"{to.word()}-{to.random.randrange(10, 99)}")
        text = re.sub(rf"(?<![\w.\-]){re.escape(host)}(?![\w\-])", new, text)
    text = _ADDRESS.sub(to.address, text)
    text = _HEX.sub(
        lambda m: to.of("hex", m[0], lambda: "0x" + "".join(
            to.random.choice("0123456789abcdef") for _ in m[0][2:])), text)  # fmt: skip
    text = _SEQUENCE.sub(lambda m: m[1] + str(int(m[2]) + to.offset), text)
    text = _SIZE.sub(lambda m: m[1] + str(int(m[2]) * to.factor), text)
    text = _PID.sub(lambda m: m[1] + to.of("pid", m[2], lambda: to.digits(m[2])), text)
    text = _NCCL_PID.sub(lambda m: to.of("pid", m[1], lambda: to.digits(m[1])) + (m[2] or ""), text)
    return _PERSON.sub(lambda m: m[1] + to.of("person", m[2], to.word), text)


def copy_changed(paths: Iterable[Path], into: Path, seed: str) -> list[Path]:
    """Copies of ``paths`` in ``into`` with all particulars of their texts changed alike."""
    paths = list(paths)
    to = Changes(seed)
    texts: dict[Path, str] = {}
    for path in paths:
        if path.is_file() and path.stat().st_size < _TEXT_BYTES:
            data = path.read_bytes()
            if b"\0" not in data[:4096] and not data.startswith(b"\x80"):
                texts[path] = data.decode("utf-8", "surrogateescape")
    hosts = {
        match[1] for text in texts.values() for regex in _HOSTS for match in regex.finditer(text)
    } - _KEEP
    out = []
    for path in paths:
        target = into / path.name
        if path in texts:
            target.write_bytes(changed(texts[path], hosts, to).encode("utf-8", "surrogateescape"))
        elif path.is_dir():
            shutil.copytree(path, target)
        else:
            shutil.copyfile(path, target)
        out.append(target)
    return out
