"""States facts from what tools read of ports, GPUs, links, limits: by value, and by growth.

A counter counts as grown only between two looks at one thing of one host; a single look at a
counter that is not zero is said to be just that, for nobody knows when it moved.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fabwatch.signatures.analysis import measured_gpu
from fabwatch.watchdog.evidence.facts import Fact, Facts, fact
from fabwatch.watchdog.evidence.observations import Measured

_ERRORS = re.compile(
    r"(?i)^(?:symbol_?error(?:_?counter)?|rx_(?:pcs_)?symbol_err_phy|link_?error_?recovery(?:counter)?|"
    r"link_?downed(?:counter)?|link_down_events_phy|port_?rcv_?errors|"
    r"port_?rcv_?remote_?physical_?errors|port_?xmit_?discards|local_?link_?integrity_?errors|"
    r"excessive_?buffer_?overrun_?errors|out_of_sequence|packet_seq_err|implied_nak_seq_err|"
    r"local_ack_timeout_err|rnr_nak_retry_err|req_rnr_retries_exceeded|roce_adp_retrans(?:_to)?|"
    r"roce_slow_restart|rp_cnp_ignored|rx_discards_phy|tx_pause_storm_(?:warning|error)_events|"
    r"out_of_buffer|rx_oversize_pkts_phy|(?:bw_in|bw_out|pps|conntrack|linklocal)_allowance_exceeded|"
    r"retrans_timeout_events|unresponsive_remote_events|impaired_remote_conn_events|"
    r"(?:req|resp)_cqe_error|qbufferdrops|rx_crc_errors_phy)$"
)
"""Counters that stand still on a link without trouble."""

_FLOWS = re.compile(
    r"(?i)^(?:port_?xmit_?wait|np_cnp_sent|rp_cnp_handled|np_ecn_marked_roce_packets|"
    r"[rt]x_prio\d_pause(?:_duration)?|(?:req|resp)_cqe_flush_error|TcpRetransSegs)$"
)
"""Counters of which only growth means anything."""

_BEFORE = re.compile(r"(?:^|[/._\-!])(?:before|pre|t0|start|first|a)(?=[/._\-!]|$)", re.I)
_AFTER = re.compile(r"(?:^|[/._\-!])(?:after|post|t1|end|last|now|b)(?=[/._\-!]|$)", re.I)
_TREE = re.compile(r"(.*?)infiniband/[^/]+/ports/")
"""The folder that holds a tree of sysfs: all its files are of one host."""
_DEFAULT_SHM_KB = 65536
_FEW_FILES = 1024
_SMALL_MEMLOCK_KB = 8 * 1024 * 1024
_FULL = 95
_LISTED = 32
"""More nodes than these are a listing of a cluster, which has always some that are down."""
_LITTLE = 0.02
_SENT_AS_USUAL = 0.001


@dataclass(slots=True)
class _Thing:
    """One thing of one host, its looks in order. Without a host, of one file."""

    kind: str
    name: str
    host: str
    where: str
    looks: list[Measured] = field(default_factory=list)

    @property
    def last(self) -> Measured:
        return self.looks[-1]

    def value(self, key: str) -> str | int | float | None:
        """The value of the last look that has ``key``."""
        return next((v for one in reversed(self.looks) if (v := one.get(key)) is not None), None)

    def number(self, key: str) -> float | None:
        value = self.value(key)
        return None if value is None or isinstance(value, str) else float(value)

    def text(self, key: str) -> str:
        value = self.value(key)
        return "" if value is None else str(value)

    def cites(self, *keys: str) -> list[str]:
        """Where the values stand, last look first."""
        return [
            one.cite(key)
            for key in keys
            for one in reversed(self.looks)
            if one.get(key) is not None
        ][:6]

    @property
    def hosts(self) -> list[str]:
        return [self.host] if self.host else []

    def series(self, key: str) -> list[tuple[float, str]]:
        """The values of a counter over the looks, with their places."""
        out = []
        for one in self.looks:
            value = one.number(key)
            if value is not None:
                out.append((value, one.cite(key)))
        return out


def look(measured: Iterable[Measured], facts: Facts) -> None:
    """Add facts of all measured things, and take away what single lines said less well."""
    made = Facts()
    things = _things(measured)
    nodes = [t for t in things if t.kind == "scheduled" and t.name.startswith("node ")]
    if len(nodes) > _LISTED:
        things = [t for t in things if t not in nodes]
    ports = [t for t in things if t.kind == "rdma-port"]
    for thing in things:
        if thing.kind in _OF_KIND:
            _OF_KIND[thing.kind](thing, made)
        if thing.kind in ("rdma-port", "nic"):
            _counters(thing, made)
    _slow_ports(ports, made)
    _paths([t for t in things if t.kind == "path"], made)
    measured_gpu.look([t for t in things if t.kind in ("gpu", "nvlink", "topology")], made)
    _modules([t for t in things if t.kind == "module"], made)
    _environments([t for t in things if t.kind == "environment"], made)
    _libraries([t for t in things if t.kind == "library"], made)
    _replace(made, {(t.kind, one.source.path) for t in things for one in t.looks}, facts)


def _things(measured: Iterable[Measured]) -> list[_Thing]:
    """Looks put together by host and name; looks of unknown hosts only within what is surely one.

    Two files without a host are of one host only when their names say before and after.
    """
    out: dict[tuple[str, str, str], _Thing] = {}
    for order, one in sorted(
        enumerate(measured), key=lambda item: (item[1].source.snapshot, _moment(item[1]), item[0])
    ):
        host = one.source.host or ""
        tree = _TREE.match(one.source.path)
        path = tree[1] if tree else one.source.path
        where = host or _AFTER.sub("", _BEFORE.sub("", path))
        if one.kind == "environment":
            where = f"{where} {order}"
        key = (one.kind, one.name, where)
        out.setdefault(key, _Thing(one.kind, one.name, host, where)).looks.append(one)
    return list(out.values())


def _moment(one: Measured) -> int:
    return 0 if _BEFORE.search(one.source.path) else 2 if _AFTER.search(one.source.path) else 1


# ------------------------------------------------------------------ ports and their counters


def _port(thing: _Thing, facts: Facts) -> None:
    state, phys = thing.text("state"), thing.text("phys_state")
    cites = thing.cites("state", "phys_state")
    links = [thing.name]
    if state == "DOWN" or phys in ("POLLING", "DISABLED", "SLEEP"):
        details: dict[str, Any] = {"state": state or "?", "physical": phys or "?"}
        for name in ("ib-port.down", "port.state-down"):
            facts.add(fact(name, hosts=thing.hosts, links=links, cites=cites, **details))
    elif state == "INIT":
        facts.add(fact("ib-port.initializing", hosts=thing.hosts, links=links, cites=cites))
    states = [text for one in thing.looks if (text := one.text("state"))]
    if len(set(states)) > 1 and states[-1] == "ACTIVE":
        facts.add(fact("ib-port.flapped", hosts=thing.hosts, links=links, cites=cites))
    rate, lanes = thing.number("rate_gbps"), thing.number("lanes")
    if "bond" in thing.name:
        lanes = None  # of one member, and by design fewer than others have
    if rate is not None or lanes is not None:
        read: dict[str, Any] = {"rate": f"{rate:g}" if rate is not None else "?"}
        if lanes is not None:
            read["width"] = f"{lanes:g}"
        cites = thing.cites("rate_gbps", "lanes")
        facts.add(fact("rdma-link.rate-read", hosts=thing.hosts, links=links, cites=cites, **read))
    active, most = thing.number("active_mtu"), thing.number("max_mtu")
    if active is not None:
        name = "ib-mtu.full" if active >= 4096 else "ib-mtu.small"
        if name == "ib-mtu.full" or (most or 0) > active:
            cites = thing.cites("active_mtu")
            facts.add(fact(name, hosts=thing.hosts, links=links, cites=cites, active=f"{active:g}"))
    facts.add(
        fact("rdma-device.present", hosts=thing.hosts, links=links, cites=[thing.last.cite()])
    )


def _slow_ports(ports: Sequence[_Thing], facts: Facts) -> None:
    """Ports of one host that run slower than most of their siblings of the same kind."""
    siblings: dict[tuple[str, str], list[_Thing]] = defaultdict(list)
    for port in ports:
        same = "bond" not in port.name and port.text("state") in ("", "ACTIVE")
        if same and port.number("rate_gbps"):
            siblings[port.where, port.text("link_layer")].append(port)
    for mine in siblings.values():
        rates = Counter(port.number("rate_gbps") or 0.0 for port in mine)
        usual, many = rates.most_common(1)[0]
        if many < 3 or many * 3 < len(mine) * 2:
            continue
        for port in mine:
            rate = port.number("rate_gbps") or 0.0
            if rate < usual:
                facts.add(
                    fact("port-rate.below", hosts=port.hosts, links=[port.name],
                         cites=port.cites("rate_gbps"), rate=f"{rate:g}", usual=f"{usual:g}",
                         basis="siblings")
                )  # fmt: skip


def _nic(thing: _Thing, facts: Facts) -> None:
    speed, most = thing.number("speed_mbps"), thing.number("speed_max_mbps")
    if speed and most and speed < most:
        facts.add(
            fact("port-rate.below", hosts=thing.hosts, links=[thing.name],
                 cites=thing.cites("speed_mbps"), rate=f"{speed / 1000:g}",
                 usual=f"{most / 1000:g}", basis="supported")
        )  # fmt: skip
    if thing.text("link") == "no":
        facts.add(
            fact("link.no-carrier", hosts=thing.hosts, links=[thing.name],
                 cites=thing.cites("link"))
        )  # fmt: skip


def _counters(thing: _Thing, facts: Facts) -> None:
    keys = dict.fromkeys(key for one in thing.looks for key, _, _ in one.values)
    links = [] if thing.name in ("nic", "tcp") else [thing.name]
    for key in keys:
        errors = bool(_ERRORS.match(key))
        if not errors and not _FLOWS.match(key):
            continue
        series = thing.series(key)
        if not series:
            continue
        first, last = series[0], series[-1]
        grown = last[0] - first[0]
        if len(series) > 1 and grown > 0:
            if key == "TcpRetransSegs" and grown < _SENT_AS_USUAL * _sent(thing):
                continue
            cites = [first[1], last[1]]
            facts.add(
                fact("link-counter.grew", hosts=thing.hosts, links=links, cites=cites,
                     counter=key, by=int(grown))
            )  # fmt: skip
        elif errors and last[0] > 0 and len(series) == 1:
            facts.add(
                fact("link-counter.read", hosts=thing.hosts, links=links, cites=[last[1]],
                     counter=key, value=int(last[0]))
            )  # fmt: skip


def _sent(thing: _Thing) -> float:
    series = thing.series("TcpOutSegs")
    return series[-1][0] - series[0][0] if len(series) > 1 else 0.0


# ------------------------------------------------------------------ the bus


_BIG = re.compile(r"3D controller|VGA|Infiniband|Ethernet|Network controller", re.I)
_BRIDGE = re.compile(r"bridge|line", re.I)


def _pcie(thing: _Thing, facts: Facts) -> None:
    devices = [thing.name]
    kind = thing.text("class")
    where: dict[str, Any] = {"hosts": thing.hosts, "devices": devices}
    if thing.text("gone") and _BIG.search(kind) and "NVIDIA" not in thing.text("what"):
        facts.add(fact("pci-nic.gone", **where, cites=thing.cites("gone")))
    elif thing.text("gone"):
        facts.add(fact("gpu.missing", **where, cites=thing.cites("gone"), error="revision ff"))
    if (acs := thing.text("acs")) and (not kind or _BRIDGE.search(kind)):
        facts.add(fact("acs.read", **where, cites=thing.cites("acs"), state=acs))
    if thing.text("ats") == "off":
        facts.add(fact("ats.read", **where, cites=thing.cites("ats"), state="off"))
    if not kind or not _BIG.search(kind):
        return
    for what, unit in (("width", "x"), ("speed", "GT/s")):
        now, most = thing.number(what), thing.number(f"{what}_max")
        if now and most and now < most:
            facts.add(
                fact("pcie-link.downgraded", **where, cites=thing.cites(what, f"{what}_max"),
                     what=what, now=f"{now:g}{unit}", can=f"{most:g}{unit}")
            )  # fmt: skip
    width, speed = thing.number("width"), thing.number("speed")
    if width and width == thing.number("width_max") and speed == thing.number("speed_max"):
        facts.add(fact("pcie-link.full", **where, cites=thing.cites("width")))


# ------------------------------------------------------------------ limits, mounts, pressure


def _limit(thing: _Thing, facts: Facts) -> None:
    value, cites = thing.value("value"), thing.cites("value")
    rank = thing.last.source.rank
    ranks = [] if rank is None else [rank]
    small = not isinstance(value, str) and value is not None
    if thing.name == "memlock" and small and float(value or 0) < _SMALL_MEMLOCK_KB:
        facts.add(
            fact("memlock.read", ranks=ranks, hosts=thing.hosts, cites=cites, kb=int(value or 0))
        )
    elif thing.name == "stack":
        facts.add(
            fact("stack-limit.read", ranks=ranks, hosts=thing.hosts, cites=cites, value=str(value))
        )
    elif thing.name == "files" and small and float(value or 0) <= _FEW_FILES:
        facts.add(
            fact("files-limit.small", ranks=ranks, hosts=thing.hosts, cites=cites,
                 value=int(value or 0))
        )  # fmt: skip


def _mount(thing: _Thing, facts: Facts) -> None:
    percent, size = thing.number("percent"), thing.number("size_kb")
    if thing.name.endswith("/dev/shm"):
        if percent is not None and percent >= _FULL:
            facts.add(
                fact("shm.mount-full", hosts=thing.hosts, cites=thing.cites("percent"),
                     percent=int(percent))
            )  # fmt: skip
        if size is not None and 0 < size <= _DEFAULT_SHM_KB:
            facts.add(
                fact("shm.mount-small", hosts=thing.hosts, cites=thing.cites("size_kb"),
                     kb=int(size))
            )  # fmt: skip
        return
    for key, what in (("percent", "bytes"), ("inodes_percent", "inodes")):
        used = thing.number(key)
        pseudo = thing.name.startswith(("/snap", "/sys", "/proc", "/dev", "/run", "/boot"))
        if used is not None and used >= 99 and not pseudo:
            facts.add(
                fact("mount.full", hosts=thing.hosts, cites=thing.cites(key), mount=thing.name,
                     percent=int(used), what=what)
            )  # fmt: skip


def _pressure(thing: _Thing, facts: Facts) -> None:
    key, name = {
        "cpu": ("some_avg10", "psi.cpu-high"),
        "memory": ("full_avg10", "psi.memory-high"),
        "io": ("full_avg10", "psi.io-high"),
    }[thing.name]
    value = thing.number(key)
    if value is not None:
        facts.add(fact(name, hosts=thing.hosts, cites=thing.cites(key), avg10=value))


_HALF = 50.0
"""A share of all periods since the start that no window of a healthy cgroup would explain."""


def _quota(thing: _Thing, facts: Facts) -> None:
    """How much of a window a cgroup was throttled; of one look, only a share beyond doubt."""
    periods, throttled = thing.series("nr_periods"), thing.series("nr_throttled")
    if not periods or len(periods) != len(throttled):
        return
    over = "window"
    total, held = periods[-1][0] - periods[0][0], throttled[-1][0] - throttled[0][0]
    cites = [throttled[0][1], throttled[-1][1]]
    if len(periods) < 2 or total <= 0:
        over, total, held = "lifetime", periods[-1][0], throttled[-1][0]
    percent = 100 * held / total if total > 0 else 0.0
    if over == "window" or percent >= _HALF:
        facts.add(
            fact("cpu.quota-throttled", hosts=thing.hosts, cites=cites,
                 percent=round(percent), over=over)
        )  # fmt: skip


_LARGE = 1473
"""Payload that does not fit into an Ethernet frame of the usual size."""


def _way(run: _Thing) -> str:
    return f"{run.host} -> {run.text('target')}" if run.host else f"to {run.text('target')}"


def _paths(things: Sequence[_Thing], facts: Facts) -> None:
    """Large packets to one target that vanish while small ones pass, or that pass."""
    runs: dict[tuple[str, str], list[_Thing]] = defaultdict(list)
    for thing in things:
        runs[thing.where, thing.text("target")].append(thing)
    for mine in runs.values():
        passed = [t for t in mine if t.number("came")]
        lost = [t for t in mine if not t.number("came") and t.number("sent")]
        small = [t for t in passed if (t.number("size") or 0) < _LARGE]
        for one in lost:
            size = one.number("size") or 0
            below = [t for t in small if (t.number("size") or 0) < size]
            if size >= _LARGE and below:
                facts.add(
                    fact("mtu.blackholed", links=[_way(one)], cites=[*one.cites("size"),
                         *below[0].cites("size")], size=int(size))
                )  # fmt: skip
        for one in passed:
            if (one.number("size") or 0) >= _LARGE:
                facts.add(
                    fact("mtu.passed", links=[_way(one)], cites=one.cites("size"),
                         size=int(one.number("size") or 0))
                )  # fmt: skip


def _memory(thing: _Thing, facts: Facts) -> None:
    total, free = thing.number("MemTotal"), thing.number("MemAvailable")
    if total and free is not None and free < _LITTLE * total:
        facts.add(
            fact("memory.low", hosts=thing.hosts, cites=thing.cites("MemAvailable"),
                 available_kb=int(free), total_kb=int(total))
        )  # fmt: skip


# ------------------------------------------------------------------ software


def _service(thing: _Thing, facts: Facts) -> None:
    state, why = thing.text("state"), thing.text("why")
    broken = state == "failed" or (state == "activating" and "auto-restart" in why)
    name = {"fabricmanager": "fabric-manager.failed", "imex": "imex.failed"}
    for part, made in name.items():
        if broken and part in thing.name:
            facts.add(fact(made, hosts=thing.hosts, cites=thing.cites("state"), state=state))


def _modules(things: Sequence[_Thing], facts: Facts) -> None:
    """The peer-memory module is missing where a list shows GPU and RDMA drivers without it."""
    lists: dict[str, dict[str, _Thing]] = defaultdict(dict)
    for thing in things:
        lists[thing.host or thing.last.source.path][thing.name] = thing
    for loaded in lists.values():
        head = loaded.get("(list)")
        rdma = {"mlx5_ib", "bnxt_re", "irdma"} & set(loaded)
        if head is None or "nvidia" not in loaded or not rdma:
            continue
        if not {"nvidia_peermem", "nv_peer_mem"} & set(loaded):
            facts.add(fact("peermem.missing", hosts=head.hosts, cites=[head.last.cite()]))


_OWN_KEYS = re.compile(
    r"^NCCL_(?:DEBUG_FILE|HOSTID|RAS_ADDR|COMM_ID|TOPO_DUMP_FILE|GRAPH_DUMP_FILE|DEBUG|DEBUG_SUBSYS"
    r"|SOCKET_IFNAME|IB_HCA)$"
)


def _environments(things: Sequence[_Thing], facts: Facts) -> None:
    """NCCL settings that differ between processes; one that some do not have differs too."""
    by_key: dict[str, dict[str, list[_Thing]]] = defaultdict(lambda: defaultdict(list))
    known = [t for t in things if t.last.source.rank is not None]
    things = known if len(known) > 1 else [t for t in things if t.host]
    keys = {k for t in things for k, _, _ in t.last.values if k.startswith("NCCL_")}
    if len(things) < 2:
        return
    for key in sorted(keys):
        for thing in things:
            by_key[key][thing.text(key)].append(thing)
        values = by_key[key]
        if len(values) < 2 or _OWN_KEYS.match(key):
            continue
        few = min(values.values(), key=len)
        many = max(values.values(), key=len)
        tie = len(few) == len(many)
        odd = few if not tie else list(things)
        ranks = [t.last.source.rank for t in odd if t.last.source.rank is not None]
        said = "; ".join(f"{v or 'unset'}: {len(who)}" for v, who in list(values.items())[:4])
        facts.add(
            fact("env.differs", ranks=ranks, hosts={h for t in odd for h in t.hosts},
                 cites=[t.last.cite(key) for t in (*few[:3], *many[:2])], key=key, values=said,
                 tie=tie)
        )  # fmt: skip


def _libraries(things: Sequence[_Thing], facts: Facts) -> None:
    """Several wheels of NCCL, or several files of it in one process; versions that differ."""
    versions: dict[str, list[Measured]] = defaultdict(list)
    for thing in things:
        values = [(k, v, one) for one in thing.looks for k, v, _ in one.values]
        kind = "wheel" if thing.name == "nccl-wheel" else "mapped"
        if thing.name not in ("nccl-wheel", "libnccl"):
            continue
        for _, version, one in values:
            if version:
                versions[str(version)].append(one)
        for path in {one.source.path for _, _, one in values}:
            names = {k for k, _, one in values if one.source.path == path}
            if len(names) > 1:
                cites = [one.cite(k) for k, _, one in values if one.source.path == path][:4]
                facts.add(fact("nccl-wheels.several", hosts=thing.hosts, cites=cites, kind=kind))
    if (
        len(versions) > 1
        and len({one.source.path for ones in versions.values() for one in ones}) > 1
    ):
        few = min(versions.values(), key=len)
        ranks = [one.source.rank for one in few if one.source.rank is not None]
        cites = [ones[0].cite() for ones in versions.values()][:4]
        facts.add(
            fact("nccl-version.differs", ranks=ranks, cites=cites,
                 versions=", ".join(sorted(versions)[:4]))
        )  # fmt: skip


# ------------------------------------------------------------------ schedulers


_HEALTH = re.compile(r"(?i)nhc|health|xid|ecc|gpu|ib[ _]|fault")


def _scheduled(thing: _Thing, facts: Facts) -> None:
    kind, _, name = thing.name.partition(" ")
    state, reason = thing.text("state").upper(), thing.text("reason")
    cites = thing.cites("state", "reason")
    if kind == "node":
        if re.match(r"(?:DOWN|FAIL)|.*NOT_RESPONDING", state) or "*" in state.split("+")[0]:
            facts.add(fact("slurm.node-lost", hosts=[name], cites=cites, state=state, why=reason))
        elif "DRAIN" in state:
            facts.add(fact("node.left", hosts=[name], cites=cites, state=state, why=reason))
        if reason and ("DRAIN" in state or "DOWN" in state) and _HEALTH.search(reason):
            facts.add(fact("health-check.failed", hosts=[name], cites=cites, check=reason[:80]))
    elif kind == "job":
        if state in ("TIMEOUT", "PREEMPTED", "NODE_FAIL", "OUT_OF_MEMORY", "CANCELLED", "DEADLINE"):
            facts.add(fact("slurm.state-read", cites=cites, job=name, state=state))
        if state == "OUT_OF_MEMORY":
            facts.add(fact("process.oom-killed", cites=cites, scope="cgroup", said_by="scheduler"))
    elif kind == "pod":
        for part in ("state_reason", "last_state_reason"):
            if thing.text(part) == "OOMKilled":
                facts.add(fact("pod.oom-killed", cites=thing.cites(part), pod=name))
        if thing.text("ready") in ("False", "Unknown") and thing.text("memorypressure"):
            facts.add(fact("node.left", hosts=[name], cites=thing.cites("ready"), state="NotReady"))


_OF_KIND = {
    "rdma-port": _port,
    "nic": _nic,
    "pcie": _pcie,
    "limit": _limit,
    "mount": _mount,
    "pressure": _pressure,
    "memory": _memory,
    "cgroup": _quota,
    "service": _service,
    "scheduled": _scheduled,
}

_BETTER: Mapping[str, tuple[str, ...]] = {
    "rdma-port": ("ib-port.down", "port.state-down", "ib-port.initializing", "rdma-link.rate-read",
                  "ib-mtu.small", "ib-mtu.full", "rdma-device.present"),
    "pcie": ("acs.read", "ats.read", "pcie-link.downgraded", "pcie-link.full", "pci-nic.gone"),
    "gpu": measured_gpu.STATED,
    "nvlink": ("nvlink.read",),
    "limit": ("memlock.read", "stack-limit.read"),
    "mount": ("shm.mount-full",),
    "pressure": ("psi.cpu-high", "psi.memory-high"),
    "scheduled": ("slurm.state-read", "pod.oom-killed"),
}  # fmt: skip
"""Facts that the things of a file state with their places: its lines alone say less."""


def _replace(made: Facts, read: set[tuple[str, str]], facts: Facts) -> None:
    """Facts that lines of a file stated give way to those of the things that it shows."""
    by_name: dict[str, set[str]] = defaultdict(set)
    for kind, path in read:
        for name in _BETTER.get(kind, ()):
            by_name[name].add(path)

    def less(one: Fact) -> bool:
        paths = by_name.get(one.name)
        return bool(paths and one.cites) and all(
            cite.rpartition(":")[0] in (paths or ()) for cite in one.cites
        )

    facts.facts = [one for one in facts.facts if not less(one)]
    facts.add(*dict.fromkeys(made.facts))
