"""Read nvidia-smi: the table, and csv of --query-gpu.

Example::

    |   0  NVIDIA H200                    On  |   00000000:00:06.0 Off |                    0 |
    | N/A   42C    P0            125W /  700W |    1579MiB / 143771MiB |    100%      Default |
"""

from __future__ import annotations

import csv
import re
from typing import Any

from fabwatch.watchdog.evidence.artefact import Artefact
from fabwatch.watchdog.evidence.measuring import Looks, whole
from fabwatch.watchdog.evidence.observations import Gpu, GpuReport, Parsed

NAME = "nvidia-smi"
MAKES = ("gpu",)
PASTED = True

_DRIVER = re.compile(r"Driver Version: (?P<driver>[\d.]+)")
_GPU = re.compile(
    r"^\|\s+(?P<index>\d{1,4})\s+(?P<name>\S.*?)\s+(?:On|Off|N/A)\s+\|\s*"
    r"(?P<bus>[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:"
    r"[0-9A-Fa-f]{2}\.[0-9A-Fa-f])"
)
_NUMBERS = re.compile(
    r"^\|\s*\S+\s+(?P<temp>\d+|N/A|ERR!)C?\s+\S+\s+(?P<power>\d+|N/A|ERR!)W?\s*/\s*"
    r"(?P<cap>\d+|N/A|ERR!)W?\s*\|"
    r"\s*(?P<used>\d+|N/A)(?:MiB)?\s*/\s*\S+\s*\|\s*(?P<util>\d+|N/A)%?"
)
_PROCESS = re.compile(
    r"^\|\s+(?P<index>\d+)\s+(?:(?:N/A|\d+)\s+(?:N/A|\d+)\s+)?(?P<pid>\d+)\s+[A-Z+]+\s+\S"
)
ASKED = re.compile(r"\bnvidia-smi\b.*--query-gpu[= ](?P<columns>[\w.,]{3,2000})")
_CSV = re.compile(r"^(?:index|name|uuid|pci\.bus_id|timestamp|gpu_bus_id)\s*,.*", re.M)
_FIELDS = {
    "utilization.gpu": "utilisation", "power.draw": "power_w", "power.limit": "power_cap_w",
    "enforced.power.limit": "power_cap_w", "power.draw.instant": "power_w",
    "memory.used": "memory_used_mib", "temperature.gpu": "temperature_c", "name": "name",
    "gpu_name": "name", "uuid": "uuid", "gpu_uuid": "uuid", "pci.bus_id": "bus",
    "gpu_bus_id": "bus", "index": "index", "pid": "pid",
}  # fmt: skip
_FLOATS = ("power_w", "power_cap_w")
_INTS = ("utilisation", "memory_used_mib", "temperature_c", "index")


def sniff(head: bytes, name: str) -> int:
    """The banner of the table, or the header of a csv query."""
    if b"| NVIDIA-SMI " in head:
        return 95
    first = head.lstrip()[:2048]
    if re.search(
        rb"^(?:index|name|uuid|timestamp|pci\.bus_id),[^\n]*(?:utilization|power|memory|pid)",
        first,
        re.M,
    ):
        return 90
    return 0


def parse(artefact: Artefact) -> Parsed:
    """One GpuReport of all GPUs that the text shows."""
    text, _ = artefact.text(32 * 1024 * 1024)
    gpus: dict[int, dict[str, Any]] = {}
    driver = ""
    last: int | None = None
    lines = text.split("\n")
    for line in lines:
        if not driver and (match := _DRIVER.search(line)):
            driver = match["driver"]
        if match := _GPU.match(line):
            last = int(match["index"])
            gpus.setdefault(last, {}).update(name=match["name"].strip(), bus=match["bus"].lower())
        elif last is not None and (match := _NUMBERS.match(line)):
            gpus[last].update(
                temperature_c=_int(match["temp"]),
                power_w=_float(match["power"]),
                power_cap_w=_float(match["cap"]),
                memory_used_mib=_int(match["used"]),
                utilisation=_int(match["util"]),
            )
            last = None
        elif (match := _PROCESS.match(line)) and int(match["index"][:6]) in gpus:
            gpus[int(match["index"])].setdefault("pids", {})[int(match["pid"][:10])] = None
    looks = Looks(artefact.source("gpu"))
    for match in _CSV.finditer(text):
        first = text.count("\n", 0, match.start()) + 1
        _csv(text[match.start() :].split("\n\n", 1)[0], gpus, looks, first)
    if not gpus and (asked := ASKED.search(artefact.asked)):
        filled = [(n, line) for n, line in enumerate(lines, 1) if line.count(",")]
        if filled:
            rows = "\n".join([asked["columns"], *(line for _, line in filled)])
            _csv(rows, gpus, looks, filled[0][0] - 1)
    if not gpus:
        return Parsed(
            errors=(artefact.error("shows no GPU", advice="nvidia-smi itself may have failed"),)
        )
    source = artefact.source("gpu")
    made = tuple(
        Gpu(
            index,
            facts.get("name", ""),
            facts.get("uuid", ""),
            facts.get("bus", ""),
            facts.get("utilisation"),
            facts.get("power_w"),
            facts.get("power_cap_w"),
            facts.get("memory_used_mib"),
            facts.get("temperature_c"),
            tuple(facts.get("pids", ())),
        )
        for index, facts in sorted(gpus.items())
    )
    return Parsed((GpuReport(source, driver, made), *looks.out()), (), (source,))


def _csv(text: str, gpus: dict[int, dict[str, Any]], looks: Looks, first: int) -> None:
    rows = text.split("\n")[:100_000]
    try:
        parsed = list(csv.reader(rows, skipinitialspace=True))
    except csv.Error:
        return
    columns = [column.split("[")[0].strip() for column in parsed[0]]
    names = [_FIELDS.get(column, "") for column in columns]
    for order, row in enumerate(parsed[1:]):
        if len(row) != len(names):
            break
        facts: dict[str, Any] = {}
        for name, value in zip(names, row, strict=True):
            number = value.strip().split(" ")[0]
            if name in _FLOATS:
                facts[name] = _float(number)
            elif name in _INTS:
                facts[name] = _int(number)
            elif name:
                facts[name] = value.strip()[:200]
        index = facts.pop("index", None)
        pid = _int(str(facts.pop("pid", "")))
        if index is None:
            index = next(
                (
                    i
                    for i, g in gpus.items()
                    if facts.get("uuid") and g.get("uuid") == facts["uuid"]
                ),
                order,
            )
        if pid is None:
            for column, value in zip(columns, row, strict=True):
                _measure(looks, f"gpu{index}", column, value.strip(), first + order + 1)
        into = gpus.setdefault(index, {})
        if pid is not None:
            into.setdefault("pids", {})[pid] = None
        into.update({k: v for k, v in facts.items() if v is not None})


_STATES = {
    "remapped_rows.pending": "remap_pending", "remapped_rows.failure": "remap_failed",
    "retired_pages.pending": "retired_pending", "persistence_mode": "persistence",
    "compute_mode": "compute_mode", "fabric.state": "fabric_state", "pstate": "performance_state",
    "clocks_event_reasons.hw_thermal_slowdown": "thermal_hw",
    "clocks_event_reasons.sw_thermal_slowdown": "thermal_sw",
    "clocks_event_reasons.sw_power_cap": "power_cap",
    "clocks_event_reasons.hw_power_brake_slowdown": "power_brake",
}  # fmt: skip
_REASONS = {0x4: "power_cap", 0x20: "thermal_sw", 0x40: "thermal_hw", 0x80: "power_brake"}
"""Bits of clocks_event_reasons.active, as nvml.h names them."""
_COUNTS = {
    "ecc.errors.uncorrected.volatile.total": "ecc_volatile_total",
    "ecc.errors.uncorrected.aggregate.total": "ecc_aggregate_total",
    "pcie.link.width.current": "width", "pcie.link.width.max": "width_max",
    "pcie.link.gen.current": "generation", "pcie.link.gen.max": "generation_max",
    "utilization.gpu": "utilisation", "remapped_rows.uncorrectable": "remapped_uncorrectable",
}  # fmt: skip


def _measure(looks: Looks, name: str, column: str, value: str, line: int) -> None:
    """Remember a state or count that says how well a GPU is."""
    column = column.replace("clocks_throttle_reasons.", "clocks_event_reasons.")
    if column == "clocks_event_reasons.active" and value.lower().startswith("0x"):
        bits = int(value[2:18], 16) if re.fullmatch(r"0x[0-9A-Fa-f]{1,16}", value) else 0
        for bit, state in _REASONS.items():
            if bits & bit:
                looks.put("gpu", name, state, "Active", line)
        return
    if column in _COUNTS:
        looks.put("gpu", name, _COUNTS[column], whole(value.split(" ")[0]), line)
    elif column in _STATES and value not in ("", "N/A", "[N/A]", "[Not Supported]"):
        looks.put("gpu", name, _STATES[column], value, line)


def _int(text: str) -> int | None:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 12 else None


def _float(text: str) -> float | None:
    try:
        return float(text) if len(text) < 16 else None
    except ValueError:
        return None
