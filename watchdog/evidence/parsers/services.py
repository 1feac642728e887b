"""Read lsmod and ``systemctl status``: which kernel modules are loaded, which services failed.

Example::

    * nvidia-fabricmanager.service - NVIDIA fabric manager service
         Active: failed (Result: exit-code) since Sat 2026-09-05 15:17:03 UTC; 1h ago
"""

from __future__ import annotations

import re

from fabwatch.watchdog.evidence.artefact import LINE_BYTES, Artefact
from fabwatch.watchdog.evidence.measuring import Looks
from fabwatch.watchdog.evidence.observations import Parsed

NAME = "services"
MAKES = ("other-text",)
PASTED = True

_MODULE = re.compile(r"^(?P<name>[a-z0-9_]{2,64})\s+\d{3,12}\s+-?\d{1,6}(?:\s+\S.*)?$")
_UNIT = re.compile(r"^\W{0,6}(?P<unit>[\w@.\-]{2,100})\.service(?: - .*)?$")
_ACTIVE = re.compile(r"^\s+Active: (?P<state>[a-z]+) ?(?:\((?P<why>[^)]{0,100})\))?")
_OF_INTEREST = frozenset(
    {"nvidia", "nvidia_uvm", "nvidia_peermem", "nv_peer_mem", "gdrdrv", "ib_core", "mlx5_ib", "efa",
     "mlx5_core", "rdma_cm", "irdma", "bnxt_re", "ib_uverbs"}
)  # fmt: skip


def sniff(head: bytes, name: str) -> int:
    """The heading of lsmod, or a unit and its state."""
    if re.search(rb"^Module\s+Size\s+Used by", head, re.M):
        return 92
    if re.search(rb"^\W{0,6}[\w@.\-]+\.service - [^\n]*\n\s+Loaded: ", head, re.M):
        return 92
    return 0


def parse(artefact: Artefact) -> Parsed:
    """A module look for each that matters, ``(list)`` for the list itself, and services."""
    text, _ = artefact.text(16 * 1024 * 1024)
    looks = Looks(artefact.source("other-text"))
    unit, listing = "", False
    for number, line in enumerate(text.split("\n"), 1):
        line = line[:LINE_BYTES].rstrip()
        if re.match(r"^Module\s+Size\s+Used by", line):
            listing = True
            looks.put("module", "(list)", "loaded", "yes", number)
        elif listing and (match := _MODULE.match(line)):
            if match["name"] in _OF_INTEREST:
                looks.put("module", match["name"], "loaded", "yes", number)
        elif match := _UNIT.match(line):
            unit, listing = match["unit"], False
        elif unit and (match := _ACTIVE.match(line)):
            looks.put("service", unit, "state", match["state"], number)
            looks.put("service", unit, "why", match["why"] or "", number)
            unit = ""
    if not looks:
        return Parsed(errors=(artefact.error("names nothing", advice="run it again"),))
    return Parsed(looks.out(), (), (looks.source,))
