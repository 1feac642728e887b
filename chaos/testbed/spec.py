"""What a test bed consists of: names, addresses and environment of its hosts.

Only arithmetic: nothing here touches the machine, so that a plan can be printed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

MAX_HOSTS = 64
MAX_RAILS = 8
DEVICES = Path("/dev")


@dataclass(frozen=True)
class Host:
    """One host of a bed: ``interfaces[i]`` has ``addresses[i]`` and lies on rail i."""

    index: int
    name: str
    interfaces: tuple[str, ...]
    addresses: tuple[str, ...]
    gpus: tuple[str, ...]

    def switch_port(self, rail: int) -> str:
        """The other end of the veth pair, which is plugged into the bridge of ``rail``."""
        return f"h{self.index}r{rail}"

    def environment(self, bed: str, user: Mapping[str, str]) -> dict[str, str]:
        """Variables for what runs here: where to talk, which GPUs are its own.

        Addresses and identity are always set, for those of the machine are wrong here. What else
        ``user`` has set stays.
        """
        names = ",".join(self.interfaces)
        made = {
            "NCCL_HOSTID": f"{bed}-{self.name}",
            "NCCL_SOCKET_IFNAME": names,
            "GLOO_SOCKET_IFNAME": names,
            "TP_SOCKET_IFNAME": self.interfaces[0],
        }
        # RDMA devices and NVLink reach past the veth pairs, and faults of a link would miss them.
        for key, value in (("NCCL_IB_DISABLE", "1"), ("NCCL_MNNVL_ENABLE", "0")):
            if key not in user:
                made[key] = value
        if self.gpus:
            made["CUDA_VISIBLE_DEVICES"] = ",".join(self.gpus)
        return made


@dataclass(frozen=True)
class Spec:
    """How many hosts, how many rails between them, and which GPUs are shared out.

    Raises ValueError for numbers that cannot be.
    """

    name: str = "bed"
    hosts: int = 2
    rails: int = 1
    subnet: str = "10.77"
    gpus: tuple[str, ...] = ()
    seconds: float = 0.0

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[a-z0-9][a-z0-9-]{0,30}", self.name):
            raise ValueError(
                f"the name {self.name!r} of the bed: small letters, digits and '-', 31 at most"
            )
        if not 1 <= self.hosts <= MAX_HOSTS:
            raise ValueError(f"{self.hosts} hosts: from 1 to {MAX_HOSTS} can be made")
        if not 1 <= self.rails <= MAX_RAILS:
            raise ValueError(f"{self.rails} rails: from 1 to {MAX_RAILS} can be made")
        parts = self.subnet.split(".")
        if len(parts) != 2 or not all(p.isdigit() and int(p) < 256 for p in parts):
            raise ValueError(f"the subnet {self.subnet!r}: two numbers such as 10.77")
        if self.seconds < 0:
            raise ValueError(f"{self.seconds} seconds to live: a positive number, or 0 for no end")

    def plan(self) -> tuple[Host, ...]:
        """The hosts."""
        return tuple(
            Host(
                index=index,
                name=f"host{index}",
                interfaces=tuple(f"eth{rail}" for rail in range(self.rails)),
                addresses=tuple(f"{self.subnet}.{r}.{index + 1}" for r in range(self.rails)),
                gpus=share(self.gpus, self.hosts, index),
            )
            for index in range(self.hosts)
        )

    def hosts_file(self) -> str:
        """What /etc/hosts says on each host."""
        lines = ["127.0.0.1 localhost", "::1 localhost ip6-localhost"]
        for host in self.plan():
            lines += [
                f"{address} {host.name}" + ("" if rail == 0 else f"-rail{rail}")
                for rail, address in enumerate(host.addresses)
            ]
        return "\n".join(lines) + "\n"


def share(gpus: tuple[str, ...], hosts: int, index: int) -> tuple[str, ...]:
    """The GPUs of host ``index``: neighbours together; with too few, one for several hosts.

    >>> share(("0", "1", "2", "3"), 2, 1)
    ('2', '3')
    >>> share(("0",), 2, 1)
    ('0',)
    """
    if not gpus:
        return ()
    if len(gpus) < hosts:
        return (gpus[index % len(gpus)],)
    each = len(gpus) // hosts
    return gpus[index * each : (index + 1) * each]


def visible_gpus() -> tuple[str, ...]:
    """The GPUs that a job may use here, as CUDA_VISIBLE_DEVICES would name them."""
    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return tuple(part.strip() for part in named.split(",") if part.strip())
    found = [p.name[6:] for p in DEVICES.glob("nvidia[0-9]*") if p.name[6:].isdigit()]
    return tuple(sorted(found, key=int))
