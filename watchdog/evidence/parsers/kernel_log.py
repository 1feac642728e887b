"""Read the kernel log: dmesg in any time format, journalctl -k, kern.log.

Kinds are ``kernel.<name>``; see KERNEL_KINDS.

Example::

    [Sat Sep  5 15:17:03 2026] NVRM: Xid (PCI:0000:9c:00): 48, pid=230, name=python, An unc...
"""

from __future__ import annotations

import re
from collections import defaultdict
from datetime import datetime, timezone

from fabwatch.watchdog.evidence.artefact import LINE_BYTES, Artefact, decode
from fabwatch.watchdog.evidence.log_lines import unmix
from fabwatch.watchdog.evidence.observations import LogEvent, Parsed, ReadError, Source

NAME = "kernel-log"
MAKES = ("kernel-log",)
PASTED = True

KEEP = 1000
_STAMP = re.compile(
    r"^(?:<\d{1,3}>)?(?:kern\s*:\w+\s*: )?\[\s*(?P<stamp>[\d.]+|\+[\d.]+|[A-Z][a-z]{2} "
    r"[A-Z][a-z]{2} [ \d]\d "
    r"\d\d:\d\d:\d\d \d{4})\] ?"
)


_OF_HOST = re.compile(r"^(?P<host>[A-Za-z][\w.\-]{0,63}) kernel: ")


def _k(name: str, literal: str, regex: str) -> tuple[str, str, re.Pattern[str]]:
    return name, literal, re.compile(regex)


_PATTERNS = (
    _k("sxid", "SXid (", r"nvidia-nvswitch(?P<switch>\d+): SXid \(PCI:(?P<pci>[^)]+)\): "
       r"(?P<code>\d+),(?: (?P<severity>Fatal|Non-fatal),)?(?: Link (?P<link>\d+))? ?(?P<text>.*)"),
    _k("xid", "Xid (", r"NVRM: Xid \((?:PCI:)?(?P<pci>[0-9A-Fa-f:.]+)[^)]*\): (?P<code>\d+)"
       r"(?:, pid=(?P<pid>\d+|'<unknown>')(?:, name=(?P<comm>[^,]+))?)?(?:, )?(?P<text>.*)"),
    _k("gpu-lost", "fallen off the bus", r"GPU (?P<pci>[0-9A-Fa-f:.]+): GPU has fallen off the "
       r"bus"),
    _k("gpu-init-failed", "RmInitAdapter failed", r"GPU (?P<pci>[0-9A-Fa-f:.]+): RmInitAdapter "
       r"failed"),
    _k("driver-mismatch", "API mismatch", r"NVRM: API mismatch: the client '(?P<comm>[^']+)'"),
    _k("oom-kill", "oom-kill:", r"oom-kill:constraint=(?P<constraint>CONSTRAINT_\w+)"
       r"(?:.*?oom_memcg=(?P<memcg>[^,]*))?.*?task_memcg=(?P<task_memcg>[^,]*),task="
       r"(?P<comm>[^,]*),"
       r"pid=(?P<pid>\d+)"),
    _k("oom-kill", "ill", r"(?P<scope>Memory cgroup out of memory|Out of memory): Kill(?:ed)? "
       r"process "
       r"(?P<pid>\d+),? \((?P<comm>[^)]*)\)(?:.*?anon-rss:(?P<anon_kb>\d+)kB)?"),
    _k("oom-killed-process", "Killed process", r"^Killed process (?P<pid>\d+),? \((?P<comm>[^)]*)\)"
       r"(?:.*?anon-rss:(?P<anon_kb>\d+)kB)?"),
    _k("oom-invoked", "invoked oom-killer", r"(?P<comm>\S+) invoked oom-killer"),
    _k("hung-task", "blocked for more than", r"INFO: task (?P<comm>.+?):(?P<pid>\d+) (?:<[^>]+> )?"
       r"blocked for more than (?P<sec>\d+) seconds"),
    _k("soft-lockup", "soft lockup", r"soft lockup - CPU#(?P<cpu>\d+) stuck for (?P<sec>\d+)s! "
       r"\[(?P<comm>.+):(?P<pid>\d+)\]"),
    _k("hard-lockup", "hard LOCKUP", r"hard LOCKUP on cpu (?P<cpu>\d+)"),
    _k("rcu-stall", "detected stall", r"rcu\S*: .*detected stalls?"),
    _k("panic", "Kernel panic", r"Kernel panic - not syncing: (?P<text>.+)"),
    _k("segfault", "segfault at", r"(?P<comm>[^\s\[]+)\[(?P<pid>\d+)\]: segfault at \S+ .*?"
       r"(?: in (?P<library>[^\[\s]+))?(?:\[|$)"),
    _k("link-down", "ink down", r"(?:\b(?P<interface>[A-Za-z][\w.\-]*)(?: \w+)?: (?:NIC )?"
       r"(?:Link (?:is )?[dD]own|link down)"
       r"|(?P<interface2>mlx5_\d+).*[Ll]ink down)"),
    _k("link-down", "ink is Down", r"(?P<interface>[\w.\-]+): (?:NIC )?Link is Down"),
    _k("link-up", "ink up", r"(?P<interface>[\w.\-]+): (?:NIC )?[Ll]ink (?:is )?up"),
    _k("link-up", "ink is Up", r"(?P<interface>[\w.\-]+): (?:NIC )?Link is Up"),
    _k("link-down", "not ready", r"(?P<interface>[\w.\-]+): link is not ready"),
    _k("link-up", "becomes ready", r"(?P<interface>[\w.\-]+): link becomes ready"),
    _k("port-module-error", "Port module event", r"Port module event(?:\[error\])?: module "
       r"(?P<module>\d+), "
       r"(?P<text>.+)"),
    _k("nic-health", "health compromised", r"device's health compromised"),
    _k("nic-tx-timeout", "NETDEV WATCHDOG", r"NETDEV WATCHDOG: (?P<interface>\S+)"),
    _k("nic-tx-timeout", "TX timeout detected", r"(?P<interface>\S+): TX timeout detected"),
    _k("pcie-error", "PCIe Bus Error", r"(?P<pci>[0-9a-f:.]+): PCIe Bus Error: "
       r"severity=(?P<severity>"
       r"Corrected|Correctable|Uncorrect\w+(?: \([\w-]+\))?), type=(?P<type>[\w ]+)"),
    _k("pcie-slow", "available PCIe bandwidth", r"(?P<gbps>[\d.]+) Gb/s available PCIe "
       r"bandwidth, limited "
       r"by (?P<speed>[\d.]+ GT/s) PCIe x(?P<width>\d+) link at (?P<pci>[0-9a-f:.]+)"),
    _k("machine-check", "Hardware Error", r"\[Hardware Error\]: (?P<text>.+)"),
    _k("memory-error", "EDAC", r"EDAC MC\d+: \d+ (?P<severity>CE|UE) (?P<text>.*)"),
    _k("iommu-fault", "IO_PAGE_FAULT", r"IO_PAGE_FAULT"),
    _k("iommu-fault", "DMAR", r"DMAR: \[(?:DMA|INTR)[^\]]*\].*fault"),
    _k("nfs-stalled", "not responding", r"nfs: server (?P<server>\S+) not responding"),
    _k("nfs-ok", "nfs: server", r"nfs: server (?P<server>\S+) OK"),
    _k("lustre-error", "Lustre", r"Lustre(?:Error)?: (?P<text>.*(?:was lost|evicted|timed out).*)"),
    _k("disk-error", "I/O", r"(?:blk_update_request: )?(?:I/O error|critical medium error),? "
       r"dev (?P<device>\w+)"),
    _k("disk-error", "timeout, ", r"nvme (?P<device>nvme\d+): I/O .* timeout, (?:reset "
       r"controller|aborting)"),
    _k("filesystem-error", "filesystem", r"Remounting filesystem read-only|[Ss]hutting down "
       r"filesystem"),
    _k("filesystem-error", "EXT4-fs error", r"EXT4-fs error"),
    _k("too-many-files", "file-max limit", r"VFS: file-max limit (?P<limit>\d+) reached"),
    _k("fork-rejected", "fork rejected", r"fork rejected by pids controller in (?P<cgroup>\S+)"),
    _k("conntrack-full", "table full", r"nf_conntrack: (?:nf_conntrack: )?table full"),
    _k("arp-overflow", "neighbor table overflow", r"(?P<table>arp_cache|ndisc_cache): neighbor "
       r"table overflow"),
    _k("cpu-throttled", "temperature above threshold", r"(?P<what>Core|Package) temperature "
       r"above threshold"),
)  # fmt: skip

KERNEL_KINDS: dict[str, str] = {f"kernel.{name}": literal for name, literal, _ in _PATTERNS}
"""Event kind -> a literal that its lines hold."""

_ANY = re.compile(b"|".join(re.escape(lit.encode()) for lit in {p[1] for p in _PATTERNS}))
_SNIFF = re.compile(
    rb"NVRM: |kernel: |oom-kill|invoked oom-killer|Linux version |Command line: |mlx5_core|"
    rb"pcieport|nvidia-nvswitch|Out of memory: Kill|soft lockup|blocked for more than|EXT4-fs|"
    rb"IOMMU|DMAR|link becomes ready|entered forwarding state|nvidia-uvm|systemd\[1\]"
)
_LINE = re.compile(
    rb"^(?:<\d+>)?(?:kern\s*:\w+\s*: )?\[\s*(?:\+?\d+\.\d{3,6}|[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d "
    rb"\d\d:\d\d:\d\d \d{4})\] ",
    re.M,
)
_SYSLOG = re.compile(rb"^[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \S+ kernel: |^kernel: ", re.M)


def sniff(head: bytes, name: str) -> int:
    """Lines stamped as the kernel stamps them, with the kernel's own words."""
    stamped = len(_LINE.findall(head[:16384]))
    words = _SNIFF.search(head)
    if stamped and words:
        return 85
    if _SYSLOG.search(head):
        return 80
    if words and b"NVRM: Xid" in head and b"NCCL" not in head:
        return 60
    # Other programs stamp their lines alike: without the kernel's words it is only a guess.
    return 10 if stamped >= 2 else 0


def parse(artefact: Artefact) -> Parsed:
    """One LogEvent for each line that matters."""
    source = artefact.source("kernel-log")
    out: list[LogEvent] = []
    errors: list[ReadError] = []
    counts: dict[str, int] = defaultdict(int)
    for first, block in artefact.blocks():
        if _ANY.search(block) is None:
            continue
        for number, raw in enumerate(block.split(b"\n"), first):
            if not raw or _ANY.search(raw) is None:
                continue
            event = _event(decode(raw[:LINE_BYTES]), number, source)
            if event is not None:
                counts[event.kind] += 1
                if counts[event.kind] <= KEEP:
                    out.append(event)
    for kind, count in sorted(counts.items()):
        if count > KEEP:
            errors.append(
                artefact.error(f"{count} lines of {kind}", advice=f"the first {KEEP} are kept")
            )
    return Parsed(tuple(out), tuple(errors), (source,))


def _event(text: str, number: int, source: Source) -> LogEvent | None:
    line = unmix(text)
    body = line.body
    when = line.when
    fields: dict[str, str] = {}
    if match := _STAMP.match(body):
        body = body[match.end() :]
        stamp = match["stamp"]
        if stamp[0].isalpha():
            when = _when(stamp)
        else:
            fields["uptime"] = stamp
    host = line.host
    if match := _OF_HOST.match(body):  # journalctl -o short-iso
        host = host or match["host"]
        body = body[match.end() :]
    body = body.removeprefix("kernel: ")
    for name, literal, regex in _PATTERNS:
        if literal not in body:
            continue
        hit = regex.search(body)
        if hit is None:
            continue
        found = {k: v for k, v in hit.groupdict().items() if v is not None}
        if "interface2" in found:
            found["interface"] = found.pop("interface2")
        if found.get("pid", "").startswith("'"):
            del found["pid"]
        if name == "oom-kill":
            scope = found.pop("scope", "") + found.get("constraint", "")
            found["scope"] = "cgroup" if "group" in scope or "MEMCG" in scope else "global"
        fields = {**found, **fields}
        event = LogEvent(
            source, f"kernel.{name}", number, body.strip()[:1000], None,
            host or source.host, when, tuple(fields.items()),
        )  # fmt: skip
        return event
    return None


def _when(text: str) -> float | None:
    """Epoch seconds of ``dmesg -T``; local time taken as UTC."""
    try:
        stamp = datetime.strptime(" ".join(text.split()), "%a %b %d %H:%M:%S %Y")
    except ValueError:
        return None
    return stamp.replace(tzinfo=timezone.utc).timestamp()
