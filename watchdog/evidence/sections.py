"""Split a text into which several outputs were pasted: one part for each command, file or host.

Recognised headings are prompts (``root@node7:~# ibstat``), ``$ ibstat``, ``+ dmesg`` (set -x),
``==> file <==``, ``--- node-3 ---``, dshbak's host blocks, code fences and ``node-3: `` before
every line. Quotation marks of mail and chat (``> ``) are taken off. Numbers of lines are kept.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

MAX_BYTES = 16 * 1024 * 1024
MAX_PARTS = 2000
MAX_COPIED = 64 * 1024 * 1024
"""Of all parts together, with the blank lines that stand for what came before."""

_COMMANDS = frozenset(  # what people run to look
    """
    ibstat ibstatus ibv_devinfo ibv_devices perfquery rdma iblinkinfo ibdiagnet sminfo mlxlink
    ibnetdiscover ibqueryerrors show_gids nvidia-smi dcgmi nv-fabricmanager systemctl service
    journalctl dmesg lspci setpci ethtool ip ifconfig ss netstat nstat ulimit prlimit df du ls env
    printenv export set pip pip3 uv conda mamba python python3 py-spy gdb pstack ldd cat head tail
    less grep zgrep egrep awk sed lsmod modinfo modprobe ps top htop pidstat free vmstat iostat
    mpstat sar numactl lscpu lstopo taskset uname hostname hostnamectl scontrol sacct squeue sinfo
    srun sbatch sstat sacctmgr scancel kubectl oc docker nerdctl crictl podman apptainer enroot
    ncclras strace lsof findmnt mount stat sysctl tc ping ping6 tracepath traceroute curl nc
    telnet date uptime find torchfrtrace strings readelf nm mpirun mpiexec torchrun chronyc
    timedatectl systemd-detect-virt getconf id whoami echo bandwidthTest nvbandwidth ib_write_bw
    all_reduce_perf fi_info ucx_info nsenter xargs watch for while smartctl nvme mdadm lfs lctl
    nfsstat fabwatch
    """.split()  # noqa: SIM905
)
_BEFORE = frozenset(
    ("sudo", "time", "timeout", "nice", "stdbuf", "env", "LANG=C", "LC_ALL=C", "command", "exec")
)
_COMMAND_CHARS = 600

_USER = re.compile(
    r"^(?:\([\w.\-]{1,60}\) ?){0,2}\[?[A-Za-z_][\w.\-]{0,31}@(?P<host>[A-Za-z0-9][\w.\-]{0,63})"
    r"(?:[: ][^\s$#%>\]]{0,200})?\]?(?: \([^)]{1,60}\))? ?[$#%>] ?(?P<command>\S.*)?$"
)
_HOST_ONLY = re.compile(
    r"^(?P<host>[A-Za-z][\w.\-]{1,63})(?::[~/][^\s$#]{0,200})? ?[$#>] (?P<command>\S.*)$"
)
_PLAIN = re.compile(r"^(?:[$#%>]|\+{1,3}) {1,3}(?P<command>\S.*)$")
_FILE = re.compile(r"^==> (?P<file>\S.{0,1000}?) <==\s*$")
_RULED = re.compile(
    r"^\s?(?:-{2,}|={2,}|#{2,}|\*{2,}|>{2,}|\[)\s*(?P<title>[^-=#*>\[\]\s].{0,200}?)\s*"
    r"(?:-{2,}|={2,}|#{2,}|\*{2,}|<{2,}|\])?\s*$"
)
_CLOSED = re.compile(r"(?:-{2,}|={2,}|#{2,}|\*{2,}|<{2,})\s*$")
_BLOCK_RULE = re.compile(r"^-{5,}\s*$")
_BLOCK_HOST = re.compile(r"^(?P<host>[A-Za-z][\w.\-]*\d[\w.\-]*)(?: \(1\))?\s*$")
_FENCE = re.compile(r"^\s{0,8}(?:```|~~~)")
_QUOTE = re.compile(r"^(?:>[ \t]?){1,4}")
_HOST_TITLE = re.compile(
    r"^(?:(?:host|node|hostname|on|machine|server)\b[ :=]*)?"
    r"(?P<host>[A-Za-z][\w.\-]{0,62}\d[\w.\-]{0,40})(?:\s*[:(,|]\s*(?P<rest>.*?)\)?)?$",
    re.I,
)
_NAMED_HOST = re.compile(
    r"^(?:host|node|hostname|machine|server)[ :=]+(?P<host>[\w.\-]{1,63})$", re.I
)
_RANK_TITLE = re.compile(
    r"^(?:global )?rank[ :=#_\-]*(?P<rank>\d{1,7})(?:\W*|: \S{1,200}| on \S{1,200})$", re.I
)
_NO_HOST = re.compile(
    r"(?:step|rank|gpu|epoch|iter|iteration|attempt|stage|phase|test|part|chunk|snapshot|case|"
    r"round|v|version|mlx|eth|ens|enp|ib|nvme|sd|run|job|batch|layer|section|page|python|torch|"
    r"cuda|nccl|line|section|thread|tid|pid|lwp|task|worker)[ _\-.]?[\d.]+",
    re.I,
)
_SAID_HOST = re.compile(
    r"\b(?:on|from|at|host|node)[ :]+[`*\"']?(?P<host>[A-Za-z][\w.\-]{0,60}\d[\w.\-]{0,40}?)"
    r"[`*\"']?(?=[\s:,;.)!?]|$)"
)
_SSH = re.compile(
    r"^(?:ssh(?: -\S+)* (?:\w[\w.\-]*@)?|srun .*?(?:-w|--nodelist)[ =]|pdsh -w |clush -w )"
    r"(?P<host>[A-Za-z][\w.\-]*)(?=\s|$)"
)
_EXEC = re.compile(
    r"^(?:kubectl|oc) .*?\bexec (?:-\S+ (?:\S+ )?)*?(?P<host>[a-z][a-z0-9.\-]+) .*?-- "
)
_READS = re.compile(
    r"^(?:\S*/)?(?:cat|head|tail|less|zcat)\b(?: -\S+(?: \d+)?)* (?P<file>/?[\w./\-:@+]+)$"
)
_PREFIX = re.compile(
    r"^(?P<host>[A-Za-z][\w.\-]{0,62}\d[\w.\-]{0,40}|\d{1,3}(?:\.\d{1,3}){3}):(?: |$)"
)
_DIGITS = bytes.maketrans(b"123456789", b"000000000")
_PROMPTS = (b"# ", b"$ ", b"> ")
_MARKS = frozenset(b"$#%>+-=*`~")
_PREFIXED = re.compile(rb"[A-Za-z0-9][\w.\-]*:(?: |$)")


@dataclass(slots=True)
class Part:
    """One output. ``first`` is the number of its first line in the whole text.

    ``asked`` is the command or file that its heading names, "" when none does.
    """

    first: int
    asked: str = ""
    host: str | None = None
    rank: int | None = None
    lines: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        """Its lines, without the heading."""
        return "\n".join(self.lines) + "\n"

    @property
    def file(self) -> str:
        """The file that it shows, "" when its heading names none."""
        if match := _READS.match(self.asked):
            return match["file"]
        return self.asked if re.fullmatch(r"/?[\w.\-:@+]+(?:/[\w.\-:@+]+)+", self.asked) else ""

    @property
    def blank(self) -> bool:
        """Whether nothing stands in it."""
        return not any(line.strip() for line in self.lines)


@dataclass(slots=True)
class _Heading:
    asked: str = ""
    host: str | None = None
    rank: int | None = None
    sticky: bool = False
    fence: bool = False


def may_hold_parts(data: bytes) -> bool:
    """A cheap first look: whether any kind of line of ``data`` may be a heading."""
    for line in {line[:_COMMAND_CHARS] for line in data.translate(_DIGITS).split(b"\n")}:
        if not line or (line[0] not in _MARKS and not any(m in line[:200] for m in _PROMPTS)):
            continue
        text = _QUOTE.sub("", line.decode("utf-8", "replace").rstrip("\r"))
        if _BLOCK_RULE.match(text) or _heading(text, False) is not None:
            return True
    return all(_PREFIXED.match(line) for line in data[:4096].split(b"\n")[:20] if line)


def split(text: str) -> list[Part]:
    """The parts of ``text`` in order; [] when no heading stands in it."""
    lines = [line.rstrip("\r") for line in text.split("\n")]
    if (by_host := _prefixed(lines)) is not None:
        return by_host
    quoted = sum(1 for line in lines if line[:1] == ">")
    if quoted >= 3 and quoted * 5 >= len(lines):
        lines = [_QUOTE.sub("", line, count=1) for line in lines]
    parts = [Part(1)]
    headings = 0
    host: str | None = None
    rank: int | None = None
    fenced = False
    skip = 0
    for number, line in enumerate(lines, 1):
        if skip:
            skip -= 1
            continue
        found = _block(lines, number - 1)
        if found is not None:
            skip = 2
        else:
            found = _heading(line, fenced)
        if found is None or len(parts) >= MAX_PARTS:
            parts[-1].lines.append(line)
            continue
        headings += 1
        if found.fence:
            fenced = not fenced
            own = _said(lines, number - 2) if fenced else None
            parts.append(Part(number + 1, "", own or host, rank))
            continue
        if found.sticky:
            host, rank = found.host or host, found.rank if found.rank is not None else rank
            if found.host and found.rank is None:
                rank = None
        part = Part(number + 1 + skip, found.asked, found.host or host, found.rank)
        if part.rank is None:
            part.rank = rank
        parts.append(part)
    if not headings:
        return []
    return [one for part in parts if not part.blank for one in _by_host(part)]


def _by_host(part: Part) -> list[Part]:
    """A part of one command that ran on several hosts, apart; else the part itself."""
    found = _prefixed(part.lines)
    if not found:
        return [part]
    return [
        Part(part.first + one.first - 1, part.asked, one.host, part.rank, one.lines)
        for one in found
    ]


def _prefixed(lines: list[str]) -> list[Part] | None:
    """Output of pdsh or clush, a host before every line: a part for each host, blank elsewhere."""
    filled = [line for line in lines if line.strip()]
    if len(filled) < 4:
        return None
    hosts: dict[str, list[tuple[int, str]]] = {}
    for number, line in enumerate(lines, 1):
        match = _PREFIX.match(line)
        if match is None or match["host"].lower().startswith(("http", "file")):
            continue
        hosts.setdefault(match["host"], []).append((number, line[match.end() :]))
    said = sum(map(len, hosts.values()))
    rows = min((len(mine) for mine in hosts.values()), default=0)
    if said < len(filled) or rows < 2 or len(hosts) > 512:
        return None
    if any(_NO_HOST.fullmatch(host) for host in hosts):
        return None
    out = []
    for host, mine in hosts.items():
        first, last = mine[0][0], mine[-1][0]
        part = Part(first, "", host, None, [""] * (last - first + 1))
        for number, body in mine:
            part.lines[number - first] = body
        out.append(part)
    return out if sum(len(part.lines) for part in out) < 4_000_000 else None


def _block(lines: list[str], at: int) -> _Heading | None:
    """Dshbak's three lines: a rule, a host, a rule."""
    if at + 2 >= len(lines) or not _BLOCK_RULE.match(lines[at]):
        return None
    match = _BLOCK_HOST.match(lines[at + 1])
    if match is None or not _BLOCK_RULE.match(lines[at + 2]):
        return None
    return _Heading(host=match["host"], sticky=True)


def _heading(line: str, fenced: bool) -> _Heading | None:
    if not line or len(line) > _COMMAND_CHARS:
        return None
    if _FENCE.match(line):
        return _Heading(fence=True)
    if match := _FILE.match(line):
        return _Heading(asked=match["file"])
    for regex in (_USER, _HOST_ONLY, _PLAIN):
        match = regex.match(line)
        if match is None:
            continue
        groups = match.groupdict()
        command = _command(groups["command"] or "")
        host = groups.get("host")
        if host is not None and re.match(r"(?:ba|z|k|da)?sh-\d|MariaDB|mysql|gdb$", host):
            host = None
        if command:
            return _Heading(asked=command, host=_elsewhere(command) or host)
        if regex is _USER:
            return _Heading(host=host)
        return None
    match = _RULED.match(line)
    return _titled(match["title"], bool(_CLOSED.search(line))) if match else None


def _titled(title: str, closed: bool) -> _Heading | None:
    """A heading between rules: a host, a rank, a command or a file."""
    if command := _command(title):
        return _Heading(asked=command, host=_elsewhere(command))
    if not closed:
        return None
    if match := _RANK_TITLE.match(title):
        return _Heading(rank=int(match["rank"]), sticky=True)
    if re.fullmatch(r"/?[\w.\-@+]+(?:/[\w.\-:@+]+)+|[\w\-]+\.(?:txt|log|out|err)", title):
        return _Heading(asked=title)
    if match := _NAMED_HOST.match(title):
        return _Heading(host=match["host"], sticky=True)
    match = _HOST_TITLE.match(title)
    if match is None or _NO_HOST.fullmatch(match["host"]):
        return None
    rest = match["rest"] or ""
    command = _command(rest)
    if rest and not command and not re.fullmatch(r"[\w ,.=:/\-]{1,60}", rest):
        return None
    return _Heading(asked=command, host=match["host"], sticky=True)


def _command(text: str) -> str:
    """``text`` when it is a command that people run to look; else ""."""
    words = text.split()
    while words and (
        words[0] in _BEFORE or re.match(r"^(?:[A-Z_][A-Z0-9_]*=\S*|-\w|\d+s?)$", words[0])
    ):
        if len(words) == 1:
            break
        words = words[1:]
    if not words:
        return ""
    first = words[0].rsplit("/", 1)[-1].rstrip(";:")
    if first in ("ssh", "pdsh", "clush") and len(words) > 2:
        return " ".join(words)
    return " ".join(words) if first in _COMMANDS else ""


def _elsewhere(command: str) -> str | None:
    """The host on which the command itself says that it runs."""
    match = _SSH.match(command) or _EXEC.match(command)
    return match["host"] if match else None


def _said(lines: list[str], at: int) -> str | None:
    """The host that the sentence before a code block names."""
    for line in reversed(lines[max(at - 1, 0) : at + 1]):
        if line.strip():
            match = _SAID_HOST.search(line)
            if match and not _NO_HOST.fullmatch(match["host"]):
                return match["host"]
            return None
    return None


def merged(parts: list[Part]) -> Iterator[Part]:
    """The parts with those that show files of one process put together, headings written back."""
    last: Part | None = None
    own = ""
    for part in parts:
        match = re.search(r"/proc/(?P<pid>\d{1,10})/", part.asked)
        if match is None:
            if last is not None:
                yield last
            last = None
            yield part
            continue
        heading = f"$ cat {part.file or part.asked}"
        if last is not None and (last.host, own) == (part.host, match["pid"]):
            gap = part.first - last.first - len(last.lines) - 1
            last.lines += [""] * max(gap, 0) + [heading, *part.lines]
        else:
            if last is not None:
                yield last
            own = match["pid"]
            last = Part(max(part.first - 1, 1), part.asked, part.host, part.rank,
                        [heading, *part.lines])  # fmt: skip
    if last is not None:
        yield last
