"""Read ``lspci -vv``: link width and speed of devices, ACS of bridges, devices that are gone.

Example::

    3b:00.0 3D controller: NVIDIA Corporation GH100 [H100 SXM5 80GB] (rev a1)
            LnkCap: Port #0, Speed 32GT/s, Width x16, ASPM not supported
            LnkSta: Speed 32GT/s, Width x8 (downgraded)
"""

from __future__ import annotations

import re

from fabwatch.watchdog.evidence.artefact import LINE_BYTES, Artefact
from fabwatch.watchdog.evidence.measuring import Looks, real
from fabwatch.watchdog.evidence.observations import Parsed

NAME = "lspci"
MAKES = ("interfaces",)
PASTED = True

_DEVICE = re.compile(
    r"^(?P<bus>(?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7]) "
    r"(?P<class>[A-Z0-9][\w /\-]{2,60}?)(?: \[[0-9a-f]{4}\])?: (?P<what>\S.*)$"
)
_LINK = re.compile(
    r"^\s+(?P<which>LnkCap|LnkSta):\s.{0,40}?Speed (?P<speed>[\d.]+)GT/s.{0,20}?, Width "
    r"x(?P<width>\d+)"
)
_ACS = re.compile(r"^\s+ACSCtl:\s+SrcValid(?P<on>[+-])")
_ATS = re.compile(r"^\s+ATSCtl:\s+Enable(?P<on>[+-])")


def sniff(head: bytes, name: str) -> int:
    """Lines that begin with a bus address and a class."""
    found = re.findall(
        rb"^(?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}\.[0-7] [A-Z0-9][\w /\-]{2,60}"
        rb"(?: \[[0-9a-f]{4}\])?: ",
        head[:32768],
        re.M,
    )
    if b"LnkSta:" in head or b"ACSCtl:" in head:
        return 90
    return 85 if len(found) >= 2 or b"(rev ff)" in head else 0


def parse(artefact: Artefact) -> Parsed:
    """One pcie look for each device."""
    text, _ = artefact.text(64 * 1024 * 1024)
    looks = Looks(artefact.source("interfaces"))
    bus = ""
    for number, line in enumerate(text.split("\n"), 1):
        line = line[:LINE_BYTES]
        if match := _DEVICE.match(line):
            bus = match["bus"].lower()
            looks.put("pcie", bus, "class", match["class"], number)
            if "(rev ff)" in line:
                looks.put("pcie", bus, "gone", "yes", number)
            looks.put("pcie", bus, "what", match["what"][:100], number)
        elif bus and (match := _LINK.match(line)):
            more = "_max" if match["which"] == "LnkCap" else ""
            looks.put("pcie", bus, f"width{more}", real(match["width"]), number)
            looks.put("pcie", bus, f"speed{more}", real(match["speed"]), number)
        elif bus and (match := _ACS.match(line)):
            looks.put("pcie", bus, "acs", "on" if match["on"] == "+" else "off", number)
        elif bus and (match := _ATS.match(line)):
            looks.put("pcie", bus, "ats", "on" if match["on"] == "+" else "off", number)
        elif not bus and (match := _ACS.match(line)):
            looks.put(
                "pcie", f"line {number}", "acs", "on" if match["on"] == "+" else "off", number
            )
    if not looks:
        return Parsed(errors=(artefact.error("shows no device", advice="run lspci -vv as root"),))
    return Parsed(looks.out(), (), (looks.source,))
