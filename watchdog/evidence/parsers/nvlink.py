"""Read NVLinks: ``nvidia-smi nvlink -s`` and ``-e``, ``dcgmi nvlink``, and ``topo -m``.

Example::

    GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-1f2e)
             Link 0: 26.562 GB/s
             Link 3: <inactive>
             Link 4: CRC Errors: 12
"""

from __future__ import annotations

import re

from fabwatch.watchdog.evidence.artefact import LINE_BYTES, Artefact
from fabwatch.watchdog.evidence.measuring import Looks, real, whole
from fabwatch.watchdog.evidence.observations import Parsed

NAME = "nvlink"
MAKES = ("gpu",)
PASTED = True

_GPU = re.compile(r"^GPU (?P<gpu>\d{1,4}): \S.*\(UUID: ")
_STATE = re.compile(r"^\s+Link (?P<link>\d{1,2}): (?:<(?P<off>\w+)>|(?P<rate>[\d.]+) GB/s)\s*$")
_COUNT = re.compile(
    r"^\s+Link (?P<link>\d{1,2}): (?P<what>Replay|Recovery|CRC|CRC FLIT|CRC Data|ECC|Symbol|"
    r"Malformed "
    r"packet|Effective|Rx|Tx|Local link integrity|Buffer overrun)[\w ]{0,24}? ?[Ee]rrors?: "
    r"(?P<count>\d{1,20})\s*$"
)
_DCGM_GPU = re.compile(r"^\s+(?P<what>gpuId|physicalId) (?P<gpu>\d{1,4}):\s*$")
_DCGM_ROW = re.compile(r"^\s+(?P<states>[UDX_](?: [UDX_]){3,71})\s*$")
_DCGM_ERROR = re.compile(
    r"^\|?\s*Link (?P<link>\d{1,2})\s*\|?\s*(?P<what>CRC FLIT|CRC Data|Replay|Recovery) Error"
    r"\s*\|?\s*(?P<count>\d{1,20})"
)
_DCGM_TITLE = re.compile(r"GPU (?:ID )?(?P<gpu>\d{1,4})", re.I)
_TOPO_HEAD = re.compile(r"^\s+(?:\x1b\[4m)?GPU0\b.{0,4000}$")
_TOPO_ROW = re.compile(r"^(?P<who>(?:GPU|NIC)\d{1,3})\s+(?P<rest>\S.{0,4000})$")
_PATHS = re.compile(r"^(?:X|NV\d{1,2}|PIX|PXB|PHB|NODE|SYS)$")


def sniff(head: bytes, name: str) -> int:
    """Links below a GPU's UUID, the table of DCGM, or the matrix of ways."""
    if re.search(rb"^\s+Link \d{1,2}: (?:<\w+>|[\d.]+ GB/s|[\w ]{2,40}[Ee]rrors?: \d)", head, re.M):
        return 93
    if b"NvLink Link Status" in head or b"NVLINK Error Counts" in head:
        return 93
    if re.search(rb"^\s+(?:\x1b\[4m)?GPU0\s", head, re.M) and re.search(
        rb"^GPU0\s+X\s", head, re.M
    ):
        return 93
    return 0


def parse(artefact: Artefact) -> Parsed:
    """One nvlink look for each link, one topology value for each pair."""
    text, _ = artefact.text(64 * 1024 * 1024)
    looks = Looks(artefact.source("gpu"))
    gpu = ""
    columns: list[str] = []
    for number, line in enumerate(text.split("\n"), 1):
        line = line[:LINE_BYTES]
        if match := _GPU.match(line):
            gpu = f"gpu{int(match['gpu'])}"
        elif match := _DCGM_GPU.match(line):
            gpu = f"{'gpu' if match['what'] == 'gpuId' else 'switch'}{int(match['gpu'])}"
        elif gpu and (match := _STATE.match(line)):
            name = f"{gpu}/{int(match['link'])}"
            looks.put("nvlink", name, "state", (match["off"] or "active").lower(), number)
            looks.put("nvlink", name, "speed", real(match["rate"] or ""), number)
        elif gpu and (match := _COUNT.match(line) or _DCGM_ERROR.match(line)):
            name, key = f"{gpu}/{int(match['link'])}", match["what"].replace(" ", "_").lower()
            looks.put("nvlink", name, key, whole(match["count"]), number)
        elif gpu and (match := _DCGM_ROW.match(line)):
            for link, letter in enumerate(match["states"].split()):
                state = {"U": "active", "D": "inactive", "X": "disabled"}.get(letter)
                looks.put("nvlink", f"{gpu}/{link}", "state", state, number)
        elif _TOPO_HEAD.match(line):
            columns = re.findall(r"(?:GPU|NIC)\d{1,3}|mlx5_\w+", line)
        elif columns and (match := _TOPO_ROW.match(line)):
            _ways(looks, match["who"], match["rest"].split(), columns, number)
        elif line.startswith("|") and (match := _DCGM_TITLE.search(line)):
            gpu = f"gpu{int(match['gpu'])}"
    if not looks:
        return Parsed(errors=(artefact.error("shows no link", advice="run it again"),))
    return Parsed(looks.out(), (), (looks.source,))


def _ways(looks: Looks, who: str, cells: list[str], columns: list[str], number: int) -> None:
    """The half of the matrix below its diagonal."""
    for other, cell in zip(columns, cells, strict=False):
        if cell == "X" or not _PATHS.match(cell):
            break
        looks.put("topology", f"{other}-{who}".lower(), "path", cell, number)
