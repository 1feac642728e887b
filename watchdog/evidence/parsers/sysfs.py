"""Read single files of /sys/class/infiniband and /proc/pressure, known by their place.

Example (``infiniband/mlx5_4/ports/1/counters/symbol_error``)::

    153
"""

from __future__ import annotations

import re

from fabwatch.watchdog.evidence.artefact import Artefact
from fabwatch.watchdog.evidence.measuring import Looks, real, whole
from fabwatch.watchdog.evidence.observations import Parsed

NAME = "sysfs"
MAKES: tuple[str, ...] = ("interfaces",)

_PORT = re.compile(
    r"(?:^|[/!])infiniband/(?P<device>[\w.\-]{1,64})/ports/(?P<port>\d{1,3})/"
    r"(?:(?P<group>counters|hw_counters)/)?(?P<key>\w{1,64})$"
)
_DEVICE = re.compile(
    r"(?:^|[/!])infiniband/(?P<device>[\w.\-]{1,64})/(?P<key>fw_ver|hca_type|board_id)$"
)
_STATES = ("state", "phys_state", "rate", "link_layer")
_NOT_COUNTED = ("lifespan",)


def place_of(artefact: Artefact) -> re.Match[str] | None:
    """Where in the tree of a device this file stands; None when it is no such file."""
    match = None
    for place in (artefact.asked, artefact.path):
        match = match or _DEVICE.search(place)
        port = _PORT.search(place)
        if match is None and port and (port["group"] or port["key"] in _STATES):
            match = port
    return match if -1 <= artefact.size < 4096 else None


def sniff(head: bytes, name: str) -> int:
    """A number alone says nothing: :func:`place_of` decides."""
    return 0


def parse(artefact: Artefact) -> Parsed:
    """One value of one port. Which port only the place of the file tells."""
    match = place_of(artefact)
    text, _ = artefact.text(4096)
    first = next((line for line in text.split("\n") if line.strip()), "").strip()
    if match is None:
        return Parsed(errors=(artefact.error("no file of a port", advice="keep its folders"),))
    looks = Looks(artefact.source("interfaces"))
    if match.re is _DEVICE:
        looks.put("rdma-port", match["device"], match["key"], first[:80], artefact.before + 1)
    else:
        put_port(looks, match["device"], match["port"], match["key"], first, artefact.before + 1)
    if not looks:
        problem = f"{match['key']} reads {first[:60]!r}"
        return Parsed(errors=(artefact.error(problem, "1", "read it again"),))
    return Parsed(looks.out(), (), (looks.source,))


def port_name(device: str, port: str) -> str:
    """``mlx5_0`` for its first port, as people say; ``mlx5_0:2`` for others."""
    return device if port in ("", "1") else f"{device}:{port}"


def state_of(text: str) -> str:
    """ACTIVE, INIT, ARMED or DOWN of any tool's spelling; "" for anything else."""
    word = text.upper().replace("PORT_", "").split(":")[-1].split("(")[0].strip()
    word = {"INITIALIZING": "INIT", "INITIALIZE": "INIT", "ARMED": "ARMED"}.get(word, word)
    return word if word in ("ACTIVE", "INIT", "ARMED", "DOWN", "ACTIVE_DEFER", "NOP") else ""


def phys_of(text: str) -> str:
    """LINKUP, POLLING, DISABLED ... of any tool's spelling; "" for anything else."""
    word = re.sub(r"[^A-Z]", "", text.upper().split(":")[-1].split("(")[0])
    return word if 3 < len(word) < 40 else ""


def put_port(looks: Looks, device: str, port: str, key: str, text: str, line: int) -> None:
    """Remember one value of one RDMA port, whichever tool says it."""
    name = port_name(device, port)
    key = key.strip().replace(" ", "_")
    low = key.lower()
    if low == "state":
        looks.put("rdma-port", name, "state", state_of(text) or None, line)
    elif low in ("phys_state", "physical_state"):
        looks.put("rdma-port", name, "phys_state", phys_of(text) or None, line)
    elif low == "rate":
        looks.put("rdma-port", name, "rate_gbps", real(text), line)
        if match := re.search(r"\((\d{1,2})X", text):
            looks.put("rdma-port", name, "lanes", int(match[1]), line)
    elif low == "active_width":
        looks.put("rdma-port", name, "lanes", whole(text.split("X")[0]), line)
    elif low == "link_layer":
        looks.put("rdma-port", name, "link_layer", text.strip() or None, line)
    elif low in ("active_mtu", "max_mtu"):
        looks.put("rdma-port", name, low, whole(text.split("(")[0]), line)
    elif low in ("sm_lid", "base_lid", "port_lid"):
        value = text.strip()
        number = int(value, 16) if re.fullmatch(r"0x[0-9a-fA-F]{1,8}", value) else whole(value)
        looks.put("rdma-port", name, low, number, line)
    elif low not in _NOT_COUNTED:
        looks.put("rdma-port", name, key, whole(text), line)
