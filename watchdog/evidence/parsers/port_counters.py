"""Read counters of RDMA ports as people write them down, and what mlxlink says of a cable.

Example::

    ### /sys/class/infiniband/mlx5_5/ports/1/counters  10:00
    symbol_error: 20114
    port_rcv_errors: 20087
    ### same  10:10
    symbol_error: 61877
    port_rcv_errors: 61790
    ### mlx5_4 on node7  10:00 / 10:10
    symbol_error: 0 / 0
"""

from __future__ import annotations

import re
from dataclasses import replace

from fabwatch.watchdog.evidence.artefact import LINE_BYTES, Artefact
from fabwatch.watchdog.evidence.measuring import Looks, real, whole
from fabwatch.watchdog.evidence.observations import Measured, Parsed, Source

NAME = "port-counters"
MAKES = ("interfaces",)
PASTED = True

_KEYS = (
    "symbol_error|link_error_recovery|link_downed|port_rcv_errors|port_rcv_remote_physical_errors|"
    "port_rcv_switch_relay_errors|port_xmit_discards|port_xmit_constraint_errors|port_xmit_wait|"
    "port_rcv_data|port_xmit_data|local_link_integrity_errors|excessive_buffer_overrun_errors|"
    "VL15_dropped|out_of_sequence|packet_seq_err|local_ack_timeout_err|rnr_nak_retry_err|"
    "implied_nak_seq_err|out_of_buffer|roce_adp_retrans|roce_adp_retrans_to|roce_slow_restart|"
    "np_cnp_sent|rp_cnp_handled|rp_cnp_ignored|np_ecn_marked_roce_packets"
)
_COUNT = re.compile(
    rf"^(?P<place>\S{{0,300}}/)?(?P<key>{_KEYS})\s{{0,30}}[:=\s]\s{{0,30}}"
    r"(?P<values>\d{1,20}(?: ?(?:/|->|→|,) ?\d{1,20}){0,63})\s*$"
)
_DEVICE = re.compile(
    r"\b(?P<device>(?:mlx[45]_|bnxt_re|irdma|hfi1_|rdmap|efa_|ibp|rocep)\w{0,20})\b"
)
_HOST = re.compile(r"\bon (?P<host>[A-Za-z][\w.\-]{0,60}\d[\w.\-]{0,40})\b")
_PROMPT = re.compile(r"^(?P<host>[A-Za-z][\w.\-]{1,62}):?[~#$> ]{1,3}")
_MLXLINK = {
    "State": "link_state",
    "Physical state": "phys",
    "Width": "lanes",
    "Symbol Errors": "symbol_error",
    "Link Down Counter": "link_downed",
    "Link Error Recovery Counter": "link_error_recovery",
    "Recommendation": "recommendation",
}
_FIELD = re.compile(r"^(?P<key>[A-Z][\w \[\]/().%\-]{2,48}?)\s{0,40}: (?P<value>\S.{0,200}?)\s*$")
_RULED = re.compile(r"^\s{0,3}(?:#{1,4}|-{2,}|={2,})\s*(?P<title>\S.{0,200})$")


def sniff(head: bytes, name: str) -> int:
    """Three lines of counters, or the sections of mlxlink."""
    start = head[:16384].decode("utf-8", "replace")
    if sum(1 for line in start.split("\n")[:400] if _COUNT.match(line[:600])) >= 2:
        return 82
    if "Physical BER" in start or ("mlxlink" in start and "Speed" in start and "Width" in start):
        return 82
    return 0


def parse(artefact: Artefact) -> Parsed:
    """Counters by device and host in the order of the looks."""
    text, _ = artefact.text(16 * 1024 * 1024)
    source = artefact.source("interfaces")
    looks: dict[str | None, Looks] = {}
    asked = _DEVICE.search(artefact.asked or "") or _DEVICE.search(artefact.name)
    device, host = (asked["device"] if asked else ""), source.host
    for number, line in enumerate(text.split("\n"), 1):
        line = line[:LINE_BYTES]
        if match := _COUNT.match(line):
            own = _DEVICE.search(match["place"] or "")
            name = own["device"] if own else device
            for value in re.findall(r"\d+", match["values"]):
                _of(looks, source, host).put(
                    "rdma-port", name or "port", match["key"], whole(value), number
                )
        elif (match := _FIELD.match(line)) and match["key"].strip() in _MLXLINK:
            _mlxlink(_of(looks, source, host), device or "port", match, number)
        elif (found := _title(line)) is not None:
            title = found
            if own := _DEVICE.search(title):
                device = own["device"]
                said = _HOST.search(title)
                prompt = _PROMPT.match(title) if "mlxlink" in title else None
                host = said["host"] if said else prompt["host"] if prompt else source.host
            elif said := _HOST.search(title):
                host = said["host"]
    out: list[Measured] = []
    for one in looks.values():
        out += one.out()
    return Parsed(tuple(out), (), (source,) if out else ())


def _of(looks: dict[str | None, Looks], source: Source, host: str | None) -> Looks:
    if host not in looks:
        looks[host] = Looks(replace(source, host=host) if host else source)
    return looks[host]


def _title(line: str) -> str | None:
    """What a heading or a command says; None for any other line."""
    if match := _RULED.match(line):
        return match["title"]
    if len(line) < 400 and ("mlxlink" in line or "/sys/class/infiniband" in line):
        return line
    return None


def _mlxlink(looks: Looks, name: str, match: re.Match[str], number: int) -> None:
    key, value = _MLXLINK[match["key"].strip()], match["value"]
    if key == "lanes":
        looks.put("rdma-port", name, key, real(value), number)
    elif key == "link_state":
        state = {"Active": "ACTIVE", "Polling": "DOWN", "Disable": "DOWN"}.get(value.split(" ")[0])
        looks.put("rdma-port", name, "state", state, number)
    elif key == "recommendation":
        looks.put("rdma-port", name, key, value, number)
    elif key != "phys":
        looks.put("rdma-port", name, key, whole(value.split(" ")[0]), number)
