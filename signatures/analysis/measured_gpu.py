"""States facts from what tools read of GPUs, their links and the ways between them."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from typing import Protocol

from fabwatch.watchdog.evidence.facts import Facts, fact
from fabwatch.watchdog.evidence.observations import Measured

STATED = (
    "row-remap.pending", "row-remap.failed", "gpu.persistence", "gpu.power-capped",
    "gpu.thermal-throttled", "gpu.power-braked", "gpu.sram-threshold", "fabric.state-read",
    "gpu.exclusive", "gpu.clocks-locked",
)  # fmt: skip
"""What the values of a GPU state."""

_YES = {"yes": "on", "no": "off", "enabled": "on", "disabled": "off", "active": "on", "on": "on",
        "not active": "off", "off": "off", "1": "on", "0": "off"}  # fmt: skip


class Thing(Protocol):
    """What :mod:`measured` puts together of the looks at one thing."""

    kind: str
    name: str
    looks: list[Measured]

    @property
    def hosts(self) -> list[str]:
        """The host, if it is known."""
        ...

    def value(self, key: str) -> str | int | float | None:
        """The last value of ``key``."""
        ...

    def number(self, key: str) -> float | None:
        """The same as a number."""
        ...

    def text(self, key: str) -> str:
        """The same as text."""
        ...

    def cites(self, *keys: str) -> list[str]:
        """Where it stands."""
        ...

    def series(self, key: str) -> list[tuple[float, str]]:
        """All values of a counter."""
        ...


def look(things: Sequence[Thing], facts: Facts) -> None:
    """Add the facts of GPUs, NVLinks and the matrix of ways."""
    for thing in things:
        if thing.kind == "gpu":
            _gpu(thing, facts)
    _links([t for t in things if t.kind == "nvlink"], facts)
    _ways([t for t in things if t.kind == "topology"], facts)


_SWITCHES = (
    ("remap_pending", "row-remap.pending"),
    ("retired_pending", "row-remap.pending"),
    ("remap_failed", "row-remap.failed"),
    ("power_cap", "gpu.power-capped"),
    ("power_brake", "gpu.power-braked"),
    ("thermal_hw", "gpu.thermal-throttled"),
    ("thermal_sw", "gpu.thermal-throttled"),
    ("sram_threshold", "gpu.sram-threshold"),
)


def _gpu(thing: Thing, facts: Facts) -> None:
    hosts = thing.hosts
    devices = [] if thing.name == "all" else [thing.name]
    said: dict[str, tuple[str, list[str]]] = {}
    for key, name in _SWITCHES:
        state = _YES.get(thing.text(key).lower())
        if state and said.get(name, ("off", []))[0] != "on":
            said[name] = (state, thing.cites(key))
    for name, (state, cites) in said.items():
        facts.add(fact(name, hosts=hosts, devices=devices, cites=cites, state=state))
    persistence = _YES.get(thing.text("persistence").lower())
    if persistence:
        # The library's word for a mode that is off is that its trouble is on.
        facts.add(
            fact("gpu.persistence", hosts=hosts, devices=devices, cites=thing.cites("persistence"),
                 state="on" if persistence == "off" else "off")
        )  # fmt: skip
    if thing.text("compute_mode") in ("Exclusive_Process", "Prohibited"):
        facts.add(
            fact("gpu.exclusive", hosts=hosts, devices=devices, cites=thing.cites("compute_mode"))
        )
    if _YES.get(thing.text("clocks_set").lower()) == "on":
        facts.add(
            fact("gpu.clocks-locked", hosts=hosts, devices=devices, cites=thing.cites("clocks_set"))
        )
    state = thing.text("fabric_state")
    if state and state not in ("Completed", "N/A", "[N/A]"):
        facts.add(
            fact("fabric.state-read", hosts=hosts, devices=devices,
                 cites=thing.cites("fabric_state"), state=state)
        )  # fmt: skip
    _pcie(thing, hosts, devices, facts)
    _errors(thing, hosts, devices, facts)
    for key, _, _ in thing.looks[-1].values:
        if key.startswith("test:") and thing.text(key) == "fail":
            facts.add(
                fact("health-check.failed", hosts=hosts, devices=devices, cites=thing.cites(key),
                     check=f"dcgmi {key[5:]}"[:80])
            )  # fmt: skip


def _pcie(thing: Thing, hosts: list[str], devices: list[str], facts: Facts) -> None:
    """Width counts at any time; an idle GPU lowers its generation, which counts only when busy."""
    now, most = thing.number("width"), thing.number("width_max")
    if now and most and now < most:
        facts.add(
            fact("pcie-link.downgraded", hosts=hosts, devices=devices,
                 cites=thing.cites("width", "width_max"), what="width", now=f"{now:g}x",
                 can=f"{most:g}x")
        )  # fmt: skip
    busy = (thing.number("utilisation") or 0) >= 50 or thing.text("performance_state") == "P0"
    now, most = thing.number("generation"), thing.number("generation_max")
    if now and most and now < most and busy:
        facts.add(
            fact("pcie-link.downgraded", hosts=hosts, devices=devices,
                 cites=thing.cites("generation", "generation_max"), what="speed",
                 now=f"gen {now:g}", can=f"gen {most:g}")
        )  # fmt: skip


def _errors(thing: Thing, hosts: list[str], devices: list[str], facts: Facts) -> None:
    """Uncorrected memory errors since the last driver load (volatile) or ever (aggregate)."""
    for since in ("volatile", "aggregate"):
        keys = [
            key
            for key, _, _ in thing.looks[-1].values
            if key.startswith(f"ecc_{since}") and (thing.number(key) or 0) > 0
        ]
        if keys:
            facts.add(
                fact("gpu.ecc-counted", hosts=hosts, devices=devices, cites=thing.cites(*keys),
                     since=since, errors=int(sum(thing.number(key) or 0 for key in keys)))
            )  # fmt: skip


_LINK_ERRORS = re.compile(r"^(?:crc|replay|recovery|crc_flit|crc_data|malformed_packet|effective)")


def _links(things: Sequence[Thing], facts: Facts) -> None:
    """How many links of each GPU are up or down; which error counters moved or are not zero."""
    states: dict[tuple[str, str, str], list[Thing]] = defaultdict(list)
    for thing in things:
        gpu = thing.name.partition("/")[0]
        state = thing.text("state")
        if state in ("active", "inactive"):
            states[thing.hosts[0] if thing.hosts else "", gpu, state].append(thing)
        _link_errors(thing, gpu, facts)
    for (host, gpu, state), mine in states.items():
        facts.add(
            fact("nvlink.read", hosts=[host] if host else [], devices=[gpu],
                 cites=[c for t in mine[:4] for c in t.cites("state")][:4], state=state,
                 count=len(mine))
        )  # fmt: skip


def _link_errors(thing: Thing, gpu: str, facts: Facts) -> None:
    keys = dict.fromkeys(
        k for one in thing.looks for k, _, _ in one.values if _LINK_ERRORS.match(k)
    )
    for key in keys:
        series = thing.series(key)
        if len(series) > 1:
            grown = series[-1][0] - series[0][0]
            name = "nvlink-errors.grew" if grown > 0 else "nvlink-errors.still"
            facts.add(
                fact(name, hosts=thing.hosts, devices=[gpu], cites=[series[0][1], series[-1][1]],
                     kind=key, link=thing.name, by=int(max(grown, 0)))
            )  # fmt: skip
        elif series and series[0][0] > 0:
            facts.add(
                fact("nvlink-errors.read", hosts=thing.hosts, devices=[gpu], cites=[series[0][1]],
                     kind=key, link=thing.name, value=int(series[0][0]))
            )  # fmt: skip


def _ways(things: Sequence[Thing], facts: Facts) -> None:
    """Pairs of GPUs without NVLink on a host whose other pairs have it."""
    hosts: dict[str, list[Thing]] = defaultdict(list)
    for thing in things:
        if thing.name.count("gpu") == 2:
            hosts[thing.looks[-1].source.path].append(thing)
    for mine in hosts.values():
        with_it = [t for t in mine if t.text("path").startswith("NV")]
        without = [t for t in mine if not t.text("path").startswith("NV")]
        if without and len(with_it) > len(without):
            facts.add(
                fact("nvlink.uneven", hosts=without[0].hosts,
                     devices=sorted({g for t in without for g in t.name.split("-")}),
                     cites=[c for t in without[:4] for c in t.cites("path")],
                     pairs=len(without), path=without[0].text("path"))
            )  # fmt: skip
