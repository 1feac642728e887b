"""Read schedulers: ``scontrol show node`` and ``job``, ``sacct``, ``kubectl describe``.

Example::

    NodeName=node7 Arch=x86_64 CoresPerSocket=48
       State=DOWN*+DRAIN ThreadsPerCore=2
       Reason=Not responding [slurm@2026-09-05T15:17:03]
"""

from __future__ import annotations

import re

from fabwatch.watchdog.evidence.artefact import LINE_BYTES, Artefact
from fabwatch.watchdog.evidence.measuring import Looks, whole
from fabwatch.watchdog.evidence.observations import Parsed

NAME = "scheduler"
MAKES = ("other-text",)
PASTED = True

_THING = re.compile(r"^(?P<kind>NodeName|JobId)=(?P<name>[\w.\-]{1,100})")
_PAIR = re.compile(
    r"\b(?P<key>State|Reason|JobState|ExitCode|DerivedExitCode|NodeList|RunTime|TimeLimit)="
    r"(?P<value>(?:(?! \w+=).){0,300})"
)
_SACCT = re.compile(r"^-{3,}(?: -{3,}){1,30}\s*$")
_JOB = re.compile(r"^\d{1,12}(?:[_+]\d{1,9})?(?:\.\w{1,20})?\+?$")
_STATES = re.compile(
    r"^(?:COMPLETED|FAILED|TIMEOUT|CANCELLED|NODE_FAIL|PREEMPTED|OUT_OF_ME(?:MORY|\+)|DEADLINE|"
    r"RUNNING|"
    r"BOOT_FAIL|REQUEUED|SUSPENDED|PENDING)"
)
_NAME = re.compile(r"^Name:\s+(?P<name>[\w.\-]{1,200})$")
_KUBE = re.compile(
    r"^(?P<indent>\s{2,12})(?P<key>Reason|Exit Code|State|Last State|Ready|Restart "
    r"Count):\s+(?P<value>\S.*)$"
)
_CONDITION = re.compile(
    r"^\s{2}(?P<type>Ready|MemoryPressure|DiskPressure|PIDPressure)\s+(?P<status>True|False|"
    r"Unknown)\s"
)


def sniff(head: bytes, name: str) -> int:
    """The first words of each of these."""
    if re.search(rb"^(?:NodeName=\S+ (?:Arch|CoresPerSocket|CPUAlloc)|JobId=\d+ )", head, re.M):
        return 92
    if re.search(
        rb"^\s*JobID(?:\s+|\|)(?:JobIDRaw|JobName|Partition|State|Elapsed|ExitCode)", head, re.M
    ):
        return 90
    if re.search(rb"^Name:\s+\S+\n(?:[^\n]*\n){0,8}?(?:Namespace|Roles|Labels):", head, re.M):
        return 90
    return 0


def parse(artefact: Artefact) -> Parsed:
    """One scheduled look for each node, job and pod."""
    text, _ = artefact.text(32 * 1024 * 1024)
    looks = Looks(artefact.source("other-text"))
    kind = name = ""
    columns: list[str] = []
    ruled: list[tuple[int, int]] = []
    previous, last = "", ""
    for number, line in enumerate(text.split("\n"), 1):
        line = line[:LINE_BYTES].rstrip()
        if match := _THING.match(line):
            kind, name = ("node" if match["kind"] == "NodeName" else "job"), match["name"]
        if kind in ("node", "job"):
            for match in _PAIR.finditer(line):
                key = {"JobState": "State"}.get(match["key"], match["key"])
                looks.put(
                    "scheduled", f"{kind} {name}", key.lower(), match["value"].strip(), number
                )
        if "|" in line and "JobID" in line.split("|")[0]:
            columns = line.split("|")
        elif columns and "|" in line:
            _job(looks, dict(zip(columns, line.split("|"), strict=False)), number)
        elif _SACCT.match(line):
            ruled = [m.span() for m in re.finditer(r"-+", line)]
            names = [previous[a:b].strip() for a, b in ruled]
            ruled = ruled if "JobID" in names else []
        elif ruled:
            _job(
                looks,
                {n: line[a:b].strip() for n, (a, b) in zip(names, ruled, strict=True)},
                number,
            )
        elif match := _NAME.match(line):
            kind, name, last = "pod", match["name"], ""
        elif kind == "pod" and (match := _CONDITION.match(line)):
            looks.put("scheduled", f"pod {name}", match["type"].lower(), match["status"], number)
        elif kind == "pod" and (match := _KUBE.match(line)):
            key = match["key"].lower().replace(" ", "_")
            if key in ("state", "last_state"):
                last = key
            key = f"{last}_{key}" if last and key in ("reason", "exit_code") else key
            value = match["value"].strip()
            looks.put(
                "scheduled", f"pod {name}", key, whole(value) if "code" in key else value, number
            )
        previous = line
    if not looks:
        return Parsed(errors=(artefact.error("names no job or node", advice="run it again"),))
    return Parsed(looks.out(), (), (looks.source,))


def _job(looks: Looks, row: dict[str, str], number: int) -> None:
    job = row.get("JobID", "")
    if not _JOB.match(job):
        return
    state = _STATES.match(row.get("State", ""))
    if state is not None:
        looks.put("scheduled", f"job {job}", "state", state[0].replace("ME+", "MEMORY"), number)
    looks.put("scheduled", f"job {job}", "exitcode", row.get("ExitCode") or None, number)
    looks.put("scheduled", f"job {job}", "nodelist", row.get("NodeList") or None, number)
