"""Read ``nvidia-smi -q``: errors, row remapping, throttling, PCIe link and fabric of each GPU.

Example::

    GPU 00000000:1A:00.0
        ECC Errors
            Volatile
                DRAM Uncorrectable            : 2
"""

from __future__ import annotations

import re
from typing import Any

from fabwatch.watchdog.evidence.artefact import LINE_BYTES, Artefact
from fabwatch.watchdog.evidence.measuring import Looks, real, whole
from fabwatch.watchdog.evidence.observations import Gpu, GpuReport, Parsed

NAME = "nvidia-smi-query"
MAKES = ("gpu",)
PASTED = True

MAX_GPUS = 4096
_GPU = re.compile(r"^GPU (?P<bus>[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-9A-Fa-f])\s*$")
_LINE = re.compile(r"^(?P<indent> {2,60})(?P<key>\S.{0,79}?)\s*(?: : (?P<value>.*))?$")
_TOP = re.compile(r"^(?P<key>[A-Z][\w ]{2,40}?)\s+: (?P<value>.*)$")
_PLAIN = {
    "product name": "name", "persistence mode": "persistence", "compute mode": "compute_mode",
    "gpu uuid": "uuid", "minor number": "index", "mig mode/current": "mig",
    "pci/gpu link info/link width/current": "width",
    "pci/gpu link info/link width/max": "width_max",
    "pci/gpu link info/pcie generation/current": "generation",
    "pci/gpu link info/pcie generation/max": "generation_max",
    "pci/replays since reset": "replays", "performance state": "performance_state",
    "retired pages/pending page blacklist": "retired_pending",
    "retired pages/double bit ecc": "retired_double",
    "remapped rows/pending": "remap_pending",
    "remapped rows/remapping failure occurred": "remap_failed",
    "remapped rows/uncorrectable error": "remapped_uncorrectable",
    "ecc errors/aggregate/sram threshold exceeded": "sram_threshold",
    "fabric/state": "fabric_state", "fabric/status": "fabric_status",
    "utilization/gpu": "utilisation", "fb memory usage/used": "memory_used_mib",
    "temperature/gpu current temp": "temperature_c", "clocks/sm": "sm_mhz",
    "max clocks/sm": "sm_max_mhz", "gpu recovery action": "recovery_action",
}  # fmt: skip
_NUMBERS = frozenset(
    [
        "width",
        "width_max",
        "generation",
        "generation_max",
        "replays",
        "remapped_uncorrectable",
        "retired_double",
        "utilisation",
        "memory_used_mib",
        "temperature_c",
        "sm_mhz",
        "sm_max_mhz",
    ]
)
_REASONS = {
    "sw power cap": "power_cap", "hw slowdown": "hw_slowdown",
    "hw thermal slowdown": "thermal_hw", "sw thermal slowdown": "thermal_sw",
    "hw power brake slowdown": "power_brake", "hw power brake": "power_brake",
    "applications clocks setting": "clocks_set",
}  # fmt: skip


def sniff(head: bytes, name: str) -> int:
    """The banner, or the sections below a GPU's address."""
    if b"NVSMI LOG" in head:
        return 95
    if re.search(
        rb"^GPU [0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7]\s*\n {2,8}\w", head, re.M
    ):
        return 92
    return 0


def parse(artefact: Artefact) -> Parsed:
    """A GpuReport, and one gpu look for each GPU."""
    text, _ = artefact.text(64 * 1024 * 1024)
    source = artefact.source("gpu")
    looks = Looks(source)
    driver, bus = "", ""
    gpus: dict[str, dict[str, Any]] = {}
    path: list[tuple[int, str]] = []
    for number, line in enumerate(text.split("\n"), 1):
        line = line[:LINE_BYTES].rstrip()
        if match := _GPU.match(line):
            bus, path = match["bus"].lower(), []
            if len(gpus) < MAX_GPUS:
                gpus.setdefault(bus, {})
            looks.put("gpu", bus, "bus", bus, number)
        elif not bus:
            if (match := _TOP.match(line)) and match["key"] == "Driver Version":
                driver = match["value"].strip()[:40]
        elif match := _LINE.match(line):
            indent = len(match["indent"])
            while path and path[-1][0] >= indent:
                path.pop()
            key = match["key"].strip().lower()
            if match["value"] is None:
                path.append((indent, key))
                continue
            where = "/".join([name for _, name in path[-6:]] + [key])
            _value(looks, bus, where, match["value"].strip(), number, gpus.get(bus, {}))
            path.append((indent, key))
    if not gpus:
        return Parsed(
            errors=(artefact.error("shows no GPU", advice="nvidia-smi itself may have failed"),)
        )
    made = tuple(
        Gpu(
            int(facts.get("index", order)),
            facts.get("name", ""),
            facts.get("uuid", ""),
            bus,
            _int(facts.get("utilisation")),
            facts.get("power_w"),
            facts.get("power_cap_w"),
            _int(facts.get("memory_used_mib")),
            _int(facts.get("temperature_c")),
            tuple(facts.get("pids", ())),
        )
        for order, (bus, facts) in enumerate(gpus.items())
    )
    return Parsed((GpuReport(source, driver, made), *looks.out()), (), (source,))


def _value(
    looks: Looks, bus: str, where: str, value: str, number: int, facts: dict[str, Any]
) -> None:
    parent, _, key = where.rpartition("/")
    name = _PLAIN.get(where, "")
    if "event reasons" in parent or "throttle reasons" in parent:
        name = _REASONS.get(key, "")
        value = {"Active": "on", "Not Active": "off"}.get(value, "")
    elif parent.startswith("ecc errors/") and "uncorrectable" in key:
        name = f"ecc_{parent.split('/')[1]}_{key.replace(' ', '_')}"
        looks.put("gpu", bus, name, whole(value), number)
        return
    elif parent.endswith("power readings") or parent == "power readings":
        if key in ("power draw", "average power draw", "instantaneous power draw"):
            facts.setdefault("power_w", real(value))
        elif key in ("current power limit", "power limit", "enforced power limit"):
            facts.setdefault("power_cap_w", real(value))
        return
    elif key == "process id" and (pid := whole(value)) is not None and pid < 1 << 31:
        facts.setdefault("pids", {})[pid] = None
        return
    if not name or value in ("", "N/A"):
        return
    kept: str | float | None = real(value) if name in _NUMBERS else value
    if name == "index":
        kept = whole(value) if len(value) < 8 else None
    if kept is not None:
        facts.setdefault(name, kept)
        looks.put("gpu", bus, name, kept, number)


def _int(value: float | None) -> int | None:
    return None if value is None else int(value)
