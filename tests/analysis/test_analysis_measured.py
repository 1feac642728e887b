"""Facts from what tools read: values become statements with places; only growth is growth."""

from __future__ import annotations

from pathlib import Path

import pytest

from fabwatch.signatures import analysis
from fabwatch.watchdog.evidence.facts import Fact
from fabwatch.watchdog.evidence.reading import read

SAMPLES = Path(__file__).resolve().parent.parent / "samples"


def facts_of(tmp_path: Path, **files: str) -> list[Fact]:
    for name, text in files.items():
        path = tmp_path / name.replace("__", "/").replace("_txt", ".txt")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return list(analysis.analyse(read([tmp_path])).facts)


def of_sample(tmp_path: Path, name: str) -> list[Fact]:
    target = tmp_path / name.partition("--")[2]
    target.write_bytes((SAMPLES / f"{name}.in").read_bytes())
    return list(analysis.analyse(read([tmp_path])).facts)


def said(facts: list[Fact], name: str) -> list[Fact]:
    return [f for f in facts if f.name == name]


@pytest.mark.parametrize(
    ("sample", "name", "details", "where"),
    [
        ("rdma--ibstat.node7.txt", "ib-port.down", {"state": "DOWN"}, ("mlx5_0",)),
        ("rdma--ibstat.node7.txt", "ib-port.initializing", {}, ("mlx5_2",)),
        ("rdma--ibv_devinfo.txt", "ib-mtu.small", {"active": "1024"}, ("mlx5_0",)),
        ("rdma--ibv_devinfo.txt", "rdma-link.rate-read", {"width": "1"}, ("mlx5_0",)),
        ("rdma--perfquery.txt", "link-counter.read",
         {"counter": "SymbolErrorCounter", "value": 153}, ("lid 12",)),
        ("rdma--rdma.txt", "link-counter.read", {"counter": "out_of_sequence"}, ("mlx5_0",)),
        ("lspci--lspci.node7.txt", "pcie-link.downgraded", {"what": "width", "now": "8x"},
         ("3b:00.0",)),
        ("lspci--lspci.node7.txt", "acs.read", {"state": "on"}, ("3a:00.0",)),
        ("lspci--lspci.node7.txt", "pci-nic.gone", {}, ("5d:00.0",)),
        ("nvidia_smi_query--nvidia-smi-q.txt", "gpu.ecc-counted",
         {"since": "volatile", "errors": 2}, ("00000000:1a:00.0",)),
        ("nvidia_smi_query--nvidia-smi-q.txt", "row-remap.failed", {"state": "on"},
         ("00000000:1b:00.0",)),
        ("nvidia_smi_query--nvidia-smi-q.txt", "gpu.thermal-throttled", {"state": "on"},
         ("00000000:1a:00.0",)),
        ("nvidia_smi_query--nvidia-smi-q.txt", "fabric.state-read", {"state": "In Progress"},
         ("00000000:1a:00.0",)),
        ("nvidia_smi_query--nvidia-smi-q.txt", "pcie-link.downgraded", {"now": "8x"},
         ("00000000:1a:00.0",)),
        ("nvlink--nvlink.txt", "nvlink.read", {"state": "inactive", "count": 2}, ("gpu0",)),
        ("nvlink--nvlink.txt", "nvlink-errors.read", {"kind": "crc", "value": 12}, ("gpu0",)),
        ("nvlink--topo.txt", "nvlink.uneven", {"pairs": 1, "path": "SYS"}, ("gpu0", "gpu2")),
        ("dcgm--diag.txt", "health-check.failed", {"check": "dcgmi GPU Memory"}, ("gpu3",)),
        ("dcgm--health.txt", "health-check.failed", {"check": "dcgmi NVLink"}, ("gpu2",)),
        ("ethtool--ethtool_ens1f0np0.txt", "port-rate.below", {"rate": "100", "usual": "200"},
         ("ens1f0np0",)),
        ("ethtool--ethtool_ens1f0np0.txt", "link-counter.read", {"counter": "rx_discards_phy"},
         ("ens1f0np0",)),
        ("limits--ulimit.txt", "memlock.read", {"kb": 64}, ()),
        ("limits--ulimit.txt", "files-limit.small", {"value": 1024}, ()),
        ("limits--df.node7.txt", "shm.mount-full", {"percent": 100}, ()),
        ("limits--df.node7.txt", "shm.mount-small", {"kb": 65536}, ()),
        ("limits--df.node7.txt", "mount.full", {"mount": "/"}, ()),
        ("limits--meminfo.txt", "memory.low", {}, ()),
        ("pressure--pressure.txt", "psi.cpu-high", {"avg10": 85.2}, ()),
        ("libraries--pip.txt", "nccl-wheels.several", {"kind": "wheel"}, ()),
        ("libraries--maps_rank_1.txt", "nccl-wheels.several", {"kind": "mapped"}, ()),
        ("services--systemctl.txt", "fabric-manager.failed", {"state": "failed"}, ()),
        ("services--systemctl.txt", "peermem.missing", {}, ()),
        ("scheduler--scontrol.txt", "slurm.node-lost", {"state": "DOWN*+DRAIN"}, ()),
        ("scheduler--scontrol.txt", "slurm.state-read", {"state": "TIMEOUT"}, ()),
        ("scheduler--sacct.txt", "slurm.state-read", {"state": "OUT_OF_MEMORY"}, ()),
        ("scheduler--describe.txt", "pod.oom-killed", {"pod": "train-worker-3"}, ()),
    ],
)  # fmt: skip
def test_a_value_becomes_a_fact_with_its_place_and_line(
    tmp_path: Path, sample: str, name: str, details: dict[str, object], where: tuple[str, ...]
) -> None:
    fits = [
        f
        for f in said(of_sample(tmp_path, sample), name)
        if all(f.get(k) == v for k, v in details.items())
        and set(where) <= {*f.where.devices, *f.where.links}
    ]
    assert len(fits) >= 1
    assert all(":" in cite for f in fits for cite in f.cites)


def test_healthy_readings_say_nothing_bad(tmp_path: Path) -> None:
    """Ports that are up, full width, counters at zero, unlimited memory locking, an empty mount."""
    facts = facts_of(
        tmp_path,
        ibstat_txt="CA 'mlx5_0'\n\tPort 1:\n\t\tState: Active\n\t\tPhysical state: LinkUp\n",
        pq_txt="# Port counters: Lid 1 port 1\nSymbolErrorCounter:..............0\n",
        ulimit_txt="core file size  (blocks, -c) 0\nmax locked memory  (kbytes, -l) unlimited\n",
        df_txt="Filesystem Size Used Avail Use% Mounted on\ntmpfs 504G 1G 503G 1% /dev/shm\n",
        lspci_txt="3b:00.0 3D controller: NVIDIA X (rev a1)\n"
        "\t\tLnkCap:\tPort #0, Speed 32GT/s, Width x16\n\t\tLnkSta:\tSpeed 32GT/s, Width x16\n",
    )
    assert {f.name for f in facts} == {"rdma-device.present", "pcie-link.full"}


def test_a_counter_grows_only_between_two_looks_at_one_host(tmp_path: Path) -> None:
    """Two hosts' readings, or one alone, are no growth; before and after are."""
    low = "# Port counters: Lid 1 port 1\nSymbolErrorCounter:..............3\n"
    high = "# Port counters: Lid 1 port 1\nSymbolErrorCounter:..............90\n"
    apart = facts_of(tmp_path / "a", x_txt=low, y_txt=high)
    assert not said(apart, "link-counter.grew")
    assert len(said(apart, "link-counter.read")) == 2
    files = {"pq.before_txt": low, "pq.after_txt": high}
    (grew,) = said(facts_of(tmp_path / "b", **files), "link-counter.grew")
    assert (grew.get("by"), grew.cites) == (87, ("pq.before.txt:2", "pq.after.txt:2"))
    pasted = f"$ perfquery\n{low}$ sleep 60\n$ perfquery\n{high}$ uptime\n 1 min\n"
    (grew,) = said(facts_of(tmp_path / "c", t_txt=pasted), "link-counter.grew")
    assert (grew.get("by"), grew.cites) == (87, ("t.txt:3", "t.txt:7"))


def test_a_sysfs_tree_is_read_as_ports(tmp_path: Path) -> None:
    """Each file holds one number; folders say whose."""
    files = {}
    for n in range(4):
        port = f"hosts__node-{n // 4}__infiniband__mlx5_{n}__ports__1"
        files[f"{port}__state"] = "1: DOWN\n" if n == 2 else "4: ACTIVE\n"
        files[f"{port}__rate"] = f"{200 if n == 1 else 400} Gb/sec (4X NDR)\n"
        files[f"{port}__link_layer"] = "InfiniBand\n"
        files[f"{port}__counters__symbol_error"] = f"{153 * (n == 3)}\n"
    files["hosts__node-0__infiniband__mlx5_4__ports__1__state"] = "4: ACTIVE\n"
    files["hosts__node-0__infiniband__mlx5_4__ports__1__rate"] = "400 Gb/sec (4X NDR)\n"
    files["hosts__node-0__infiniband__mlx5_4__ports__1__link_layer"] = "InfiniBand\n"
    facts = facts_of(tmp_path, **files)
    (down,) = said(facts, "ib-port.down")
    assert (down.where.links, down.where.hosts) == (("mlx5_2",), ("node-0",))
    (slow,) = said(facts, "port-rate.below")
    assert (slow.where.links, slow.get("usual")) == (("mlx5_1",), "400")
    (counted,) = said(facts, "link-counter.read")
    assert (counted.where.links, counted.get("value")) == (("mlx5_3",), 153)


def test_settings_that_differ_between_ranks_are_told_with_the_odd_rank(tmp_path: Path) -> None:
    """Three ranks say Ring and one says Tree; what belongs to one rank may differ."""
    files = {
        f"env_rank_{n}_txt": f"PATH=/bin\nRANK={n}\nWORLD_SIZE=4\nHOSTNAME=n{n}\n"
        f"NCCL_DEBUG_FILE=/tmp/{n}\nNCCL_ALGO={'Tree' if n == 2 else 'Ring'}\n"
        for n in range(4)
    }
    (one,) = said(facts_of(tmp_path / "a", **files), "env.differs")
    assert (one.get("key"), one.where.ranks) == ("NCCL_ALGO", (2,))
    same = {name: text.replace("Tree", "Ring") for name, text in files.items()}
    assert not said(facts_of(tmp_path / "b", **same), "env.differs")


def test_a_stopped_process_of_a_list_is_that_of_the_rank_with_its_pid(tmp_path: Path) -> None:
    """ps knows no ranks; what knows the pid does."""
    page = '{"tick_s": 1.0, "age_s": 0.1, "rank": 5, "pid": 4711, "world_size": 8, "tick": 9}'
    ps = (SAMPLES / "process_list--ps.node7.txt.in").read_text()
    facts = facts_of(tmp_path, pg_status_rank_5_json=page, ps_txt=ps)
    (stopped,) = said(facts, "process.stopped")
    assert (stopped.where.ranks, stopped.cites) == ((5,), ("ps.txt:3",))


def test_a_bond_of_two_lanes_beside_eight_ports_is_no_degraded_port(tmp_path: Path) -> None:
    """Storage bonds have fewer lanes by design; a tree without a host's name is one host's."""
    files = {}
    for device in (*(f"mlx5_{n}" for n in range(8)), "mlx5_bond_0"):
        port = f"sys__infiniband__{device}__ports__1"
        wide = "200 Gb/sec (2X NDR)" if "bond" in device else "400 Gb/sec (4X NDR)"
        files |= {f"{port}__rate": wide, f"{port}__state": "4: ACTIVE"}
    facts = facts_of(tmp_path, **files)
    assert not said(facts, "port-rate.below")
    assert {f.get("width") for f in said(facts, "rdma-link.rate-read")} == {"4", None}
    assert len(said(facts, "rdma-device.present")) == 9


def test_a_listing_of_a_whole_cluster_blames_none_of_its_nodes(tmp_path: Path) -> None:
    """Somebody's nodes are always down; one node asked for by name is another matter."""
    block = "NodeName=n{} Arch=x86_64 CoresPerSocket=4\n   State={} ThreadsPerCore=2\n"
    one = block.format(7, "DOWN*")
    many = "".join(block.format(n, "DOWN*" if n == 7 else "IDLE") for n in range(200))
    (lost,) = said(facts_of(tmp_path / "a", scontrol_txt=one), "slurm.node-lost")
    assert lost.where.hosts == ("n7",)
    assert not said(facts_of(tmp_path / "b", scontrol_txt=many), "slurm.node-lost")


QUOTA = "100000 100000\nnr_periods {periods}\nnr_throttled {throttled}\n"


def test_a_quota_that_held_most_periods_of_a_window_is_told_with_the_pod(tmp_path: Path) -> None:
    cat = "-- cat /sys/fs/cgroup/cpu.max /sys/fs/cgroup/cpu.stat"
    loop = f"$ for p in 0 1; do kubectl exec w-$p {cat}; done\n"
    later = f"$ kubectl exec w-1 {cat}\n"
    idle, first = QUOTA.format(periods=0, throttled=0), QUOTA.format(periods=1000, throttled=900)
    text = loop + idle + first + later + QUOTA.format(periods=1100, throttled=990)
    (one,) = said(facts_of(tmp_path, quota_txt=text), "cpu.quota-throttled")
    assert (one.where.hosts, one.get("percent"), one.get("over")) == (("w-1",), 90, "window")


def test_one_look_at_a_quota_counts_only_beyond_doubt(tmp_path: Path) -> None:
    few = QUOTA.format(periods=1000, throttled=300)
    assert said(facts_of(tmp_path, quota_txt=few), "cpu.quota-throttled") == []
    many = QUOTA.format(periods=1000, throttled=900)
    (one,) = said(facts_of(tmp_path, quota_txt=many), "cpu.quota-throttled")
    assert one.get("over") == "lifetime"


PING = "$ ping -c 3 -M do -s {size} node9\n3 packets transmitted, {came} received, time 2ms\n"


@pytest.mark.parametrize(
    ("large", "small", "name"),
    [(0, 3, "mtu.blackholed"), (3, 3, "mtu.passed"), (0, 0, "")],
)
def test_large_packets_that_vanish_while_small_ones_pass_are_a_black_hole(
    tmp_path: Path, large: int, small: int, name: str
) -> None:
    text = PING.format(size=8972, came=large) + PING.format(size=1400, came=small)
    found = facts_of(tmp_path, ping_txt=text)
    told = {f.name for f in found if f.name.startswith("mtu.")}
    assert told == ({name} if name else set())


def test_counters_written_down_twice_grow_by_device_and_host(tmp_path: Path) -> None:
    found = of_sample(tmp_path, "port_counters--node7-counters.txt")
    grown = {
        (f.where.hosts, f.where.links, f.get("counter")) for f in said(found, "link-counter.grew")
    }
    names = ("symbol_error", "link_error_recovery", "port_rcv_errors")
    assert grown == {(("node7",), ("mlx5_5",), name) for name in names}


def test_mlxlink_tells_lanes_and_errors_of_a_port(tmp_path: Path) -> None:
    found = of_sample(tmp_path, "port_counters--mlxlink.node7.txt")
    (read_,) = said(found, "link-counter.read")[:1]
    assert (read_.get("counter"), read_.where.links) == ("symbol_error", ("mlx5_5",))
    (rate,) = said(found, "rdma-link.rate-read")
    assert rate.get("width") == "1"
