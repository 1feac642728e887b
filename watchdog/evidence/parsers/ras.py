"""Read NCCL RAS: status as text or JSON of NCCL 2.24 to 2.32, monitor events, and refusals.

Example::

    #0-0 (4708e52de6538678) MISMATCH
      Communicator ranks have different AllGather operation counts
      Rank 1 has launched up to operation 1 -- GPU 1 managed by process 1072 on node 192.0.2.2
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from datetime import datetime, timezone
from typing import Any

import msgspec

from fabwatch.watchdog.evidence.artefact import Artefact
from fabwatch.watchdog.evidence.observations import (
    LogEvent,
    Parsed,
    RasComm,
    RasRank,
    RasReport,
    ReadError,
    Source,
)

NAME = "ras"
MAKES = ("ras",)

RAS_KINDS = "ras.<event> in lower case, with fields host, pid, device, details"
MAX_RANKS = 1_000_000
MAX_POLLS = 1000
_LIMIT = 128 * 1024 * 1024

_REFUSED = re.compile(
    rb"RAS failed: |Connection refused|connection reset by peer|ncclras: command not found|"
    rb"^(?:connect|Failed to connect)[^\n]{0,80}(?:refused|timed out|reset)",
    re.I | re.M,
)
_HEADER = re.compile(r"^NCCL version (?P<version>\d+\.\d+\.\d+\S*) compiled with CUDA")
_GROUP = re.compile(
    r"^\s*(?P<group>\d+)(?P<numbers>(?:\s+\d+(?:-\d+)?){5})\s+(?P<status>[A-Z]+)\s+"
    r"(?P<errors>[A-Z,]+)\s*$"
)
_BLOCK = re.compile(
    r"^#(?P<group>\d+)-(?P<index>\d+) \((?P<hash>[0-9a-f]{1,16})\) (?P<errors>[A-Z, ]+)\s*$"
)
_SECTION = re.compile(r"^(?P<name>INCOMPLETE|DEAD|TIMEOUT)\s*$")
_WHERE = r"GPUs? (?P<gpu>[\d,]+) managed by process (?P<pid>\d+) on node (?P<host>\S+)"
_PROCESS = re.compile(
    r"^  Process (?P<pid>\d+) on node (?P<host>\S+)(?: managing GPUs? (?P<gpu>[\d,]+))?"
)
_RANK = re.compile(r"^  Rank (?P<rank>\d+)(?: (?P<what>(?!-- ).*?))?(?: -- " + _WHERE + r")?\s*$")
_MANY = re.compile(r"^  (?P<count>\d+) ranks? (?:have|has) (?P<what>.+?)\s*$")
_COUNTS = re.compile(r"have different (?P<op>\w+) operation counts")
_LAUNCHED = re.compile(r"launched up to operation (?P<count>\d+)|not launched any operations")
_LIST = re.compile(r"The missing ranks: (?P<ranks>[\d, ]+)")
_SUMMARY = re.compile(
    r"^\s*(?P<nodes>\d+)\s+(?P<per>\d+(?:-\d+)?)\s+\d+(?:-\d+)?\s+(?P<processes>\d+)\s+\d+\s*$"
)
_EVENT = re.compile(
    r"^\[(?P<when>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)\] (?P<event>PEER_\w+|[A-Z]+_[A-Z_]+): "
    r"Process (?P<pid>\d+) on node (?P<host>\S+) managing GPUs? (?P<gpu>[\d,]+) ?(?P<details>.*)$"
)
_REPAIR = re.compile(r'("nvml_dev":\s*-?\d+)(\s*\n\s*"status")')
_STATUS_FLAGS = {"ABORT": "abort", "FINALIZE": "finalize", "DESTROY": "destroy"}
_ASYNC = {
    "Unhandled CUDA error": 1, "Unhandled System error": 2, "Internal error": 3,
    "Invalid argument": 4, "Invalid usage": 5, "Remote process error": 6, "In progress": 7,
    "Timeout": 8,
}  # fmt: skip


def sniff(head: bytes, name: str) -> int:
    """The header and tables of a report, its JSON fields, monitor events, or a refusal."""
    start = head[:8192]
    if re.search(rb"^-> ", start, re.M):  # a client's transcript, not an answer
        return 0
    if b"compiled with CUDA" in start and (b"Communicators..." in head or b"Job summary" in start):
        return 95
    if b"compiled with CUDA" in start and re.search(rb"^#\d+-\d+ \([0-9a-f]+\) ", head, re.M):
        return 92
    if b'"communicators"' in start and b'"nccl_version"' in start:
        return 96
    if re.search(rb"^\[[\d :-]{19}\] PEER_", start, re.M) or (
        b'"event": "PEER_' in start or b'"event":"PEER_' in start
    ):
        return 94
    if start.startswith(b"SERVER PROTOCOL"):
        return 60
    if len(head) < 4096 and b"RAS failed" in head:
        return 90
    if len(head) < 2048 and _REFUSED.search(head) and re.search(r"(?:^|[._\-])(?:nccl)?ras", name):
        return 80
    return 0


def parse(artefact: Artefact) -> Parsed:
    """One RasReport, or the events of a monitor."""
    text, _ = artefact.text(_LIMIT)
    text = text.replace("\r\n", "\n")
    source = artefact.source("ras")
    body = re.sub(r"\A(?:\s*(?:<- |-> )?(?:SERVER PROTOCOL \d+|OK|#.*)\s*\n)+", "", text)
    if '"event"' in body[:4096] and "PEER_" in body:
        return _monitor_json(artefact, body, text)
    if body.lstrip().startswith("{"):
        return _json(artefact, body, source)
    if re.search(r"^\[[\d :-]{19}\] [A-Z]+_", body, re.M):
        return _monitor(artefact, text)
    if "compiled with CUDA" in text:
        return Parsed(tuple(_polls(text, source)), (), (source,))
    return _nobody(source)


def _nobody(source: Source) -> Parsed:
    """Nobody answered, or the answer was empty: evidence, but no look at any communicator."""
    return Parsed((RasReport(source, reachable=False),))


# ------------------------------------------------------------------ JSON


def _json(artefact: Artefact, body: str, source: Source) -> Parsed:
    errors: list[ReadError] = []
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError, ValueError):
        # NCCL 2.28 forgets a comma whenever a rank is missing.
        try:
            value = msgspec.json.decode(_REPAIR.sub(r"\1,\2", body))
        except (msgspec.DecodeError, RecursionError, ValueError) as err:
            errors.append(artefact.error(f"broken JSON: {err}", advice="ask RAS again, as text"))
            return Parsed(errors=tuple(errors))
    if not isinstance(value, dict):
        return Parsed(errors=(artefact.error("not an object", advice="not used"),))
    comms = []
    dead: dict[tuple[str, int], None] = {}
    processes: set[tuple[str, int]] = set()
    for item in _list(value.get("communicators")):
        comm = _comm(item, dead)
        if comm is not None:
            comms.append(comm)
            processes |= {(r.host, r.pid) for r in comm.ranks if r.pid is not None}
    ras = value.get("ras")
    timeouts = _int(ras.get("timeouts_count")) if isinstance(ras, dict) else 0
    report = RasReport(
        Source(
            source.path, source.kind, source.rank, source.host, source.snapshot,
            _when(str(value.get("timestamp") or "")),
        ),
        str(value.get("nccl_version") or "")[:40],
        tuple(comms),
        tuple(dead),
        len({host for host, _ in processes}) or None,
        len(processes) or None,
        bool(timeouts),
    )  # fmt: skip
    return Parsed((report,), (), (report.source,))


def _comm(item: Any, dead: dict[tuple[str, int], None]) -> RasComm | None:
    if not isinstance(item, dict):
        return None
    ranks = []
    for one in _list(item.get("ranks"))[:MAX_RANKS]:
        if isinstance(one, dict):
            status = _dict(one.get("status"))
            counts = one.get("collective_counts")
            ranks.append(
                RasRank(
                    _int(one.get("rank")),
                    str(one.get("host") or ""),
                    _int(one.get("pid")) or None,
                    str(one.get("cuda_dev", "")),
                    tuple((str(k), _int(v)) for k, v in counts.items())
                    if isinstance(counts, dict)
                    else (),
                    False,
                    status.get("abort_flag") is True,
                    status.get("finalize_called") is True,
                    status.get("destroy_flag") is True,
                    _int(status.get("async_error")),
                    _int(status.get("init_state")),
                )
            )
    missing = _list(item.get("missing_ranks"))[:MAX_RANKS]
    for one in missing:
        if isinstance(one, dict):
            status = _dict(one.get("status"))
            host, pid = str(one.get("host") or ""), _int(one.get("pid"))
            if status.get("considered_dead") is True and pid:
                dead[host, pid] = None
            ranks.append(
                RasRank(
                    _int(one.get("rank")), host, pid or None, str(one.get("cuda_dev", "")), (), True
                )
            )
    ranks.sort(key=lambda r: r.rank)
    state, errors = _derived(ranks)
    return RasComm(
        _hash(str(item.get("hash") or "")), _int(item.get("size")), tuple(ranks), state, errors
    )


def _derived(ranks: list[RasRank]) -> tuple[str, tuple[str, ...]]:
    """Status and errors as the text report would name them."""
    there = [r for r in ranks if not r.missing]
    states = {
        "ABORT" if r.abort else "FINALIZE" if r.finalize or r.destroy
        else "INIT" if r.init_state == 7 else "RUNNING"
        for r in there
    }  # fmt: skip
    order = ("ABORT", "FINALIZE", "RUNNING", "INIT")
    status = next((s for s in order if s in states), "NOCOMM")
    errors = []
    if len(there) < len(ranks):
        errors.append("INCOMPLETE")
    if any(r.async_error not in (0, 7) for r in there):
        errors.append("ERROR")
    if len(states) > 1 or len({r.counts for r in there}) > 1:
        errors.append("MISMATCH")
    return status, tuple(errors)


# ------------------------------------------------------------------ text


def _polls(text: str, source: Source) -> list[RasReport]:
    """Answers to several polls in one file, each a snapshot of its own."""
    starts = [match.start() for match in re.finditer(_HEADER.pattern, text, re.M)][:MAX_POLLS]
    if len(starts) < 2:
        return [_text(text, source)]
    ends = [*starts[1:], len(text)]
    return [
        _text(text[start:end], replace(source, snapshot=source.snapshot + index))
        for index, (start, end) in enumerate(zip(starts, ends, strict=True))
    ]


@dataclass
class _Block:
    """One communicator of the text while it is read."""

    hash: str
    group: int
    ranks: dict[int, dict[str, Any]] = field(default_factory=dict)
    errors: dict[str, None] = field(default_factory=dict)
    rest: dict[str, int] = field(default_factory=dict)  # op -> count of those not listed
    rest_status: str = ""
    others: int = 0


def _text(text: str, source: Source) -> RasReport:
    version, nodes, processes, timed_out = "", None, None, False
    groups: dict[int, tuple[int, int, str, tuple[str, ...]]] = {}
    blocks: dict[str, _Block] = {}
    dead: dict[tuple[str, int], None] = {}
    section, mode, op = "", "", ""
    many: str | None = None
    block: _Block | None = None
    for line in text.split("\n"):
        if match := _HEADER.match(line):
            version = match["version"]
        elif match := _GROUP.match(line):
            numbers = match["numbers"].split()
            groups[int(match["group"])] = (
                int(numbers[0].split("-")[0]),
                int(numbers[3].split("-")[-1]),
                match["status"],
                tuple(e for e in match["errors"].split(",") if e != "OK"),
            )
        elif nodes is None and not blocks and (match := _SUMMARY.match(line)):
            nodes, processes = int(match["nodes"]), int(match["processes"])
        elif match := _BLOCK.match(line):
            section = ""
            block = blocks.setdefault(match["hash"], _Block(match["hash"], int(match["group"])))
            for word in re.split(r"[, ]+", match["errors"].strip()):
                block.errors[word] = None
            mode, op, many = "", "", None
        elif match := _SECTION.match(line):
            section, block = match["name"], None
            timed_out = timed_out or section == "TIMEOUT"
        elif section and (match := _PROCESS.match(line)):
            if section == "DEAD":
                dead[match["host"], int(match["pid"][:10])] = None
        elif block is not None:
            mode, op, many = _detail(line, block, mode, op, many)
    comms = [_finished(block, groups) for block in blocks.values()]
    named: dict[int, int] = {}
    for block in blocks.values():
        named[block.group] = named.get(block.group, 0) + 1
    for number, (count, size, status, errors) in groups.items():
        for index in range(min(count - named.get(number, 0), 10_000)):
            # Communicators without a complaint have no block: only how many they are.
            comms.append(RasComm(f"group{number}-{index}", size, (), status, errors))
    return RasReport(source, version, tuple(comms), tuple(dead), nodes, processes, timed_out)


def _detail(
    line: str, block: _Block, mode: str, op: str, many: str | None
) -> tuple[str, str, str | None]:
    """One line inside a communicator's block; returns what the next lines are about."""
    if "Missing communicator data" in line:
        return "missing", op, None
    if match := _COUNTS.search(line):
        return "counts", "*" if match["op"] == "collective" else match["op"], None
    if "have different status" in line:
        return "status", op, None
    if "Asynchronous error" in line:
        return "async", op, None
    if match := _LIST.search(line):
        for text in match["ranks"].replace(" ", "").split(","):
            if text.isdigit() and len(text) < 10:
                block.ranks.setdefault(int(text), {})["missing"] = True
        return mode, op, None
    if match := _MANY.match(line):
        what = match["what"]
        if hit := _LAUNCHED.search(what):
            if block.others <= int(match["count"][:9]) or op not in block.rest:
                block.rest[op] = int((hit["count"] or "0")[:18])
                block.others = int(match["count"][:9])
        elif what.startswith("status "):
            block.rest_status = what.removeprefix("status ").split()[0]
        return mode, op, what
    if match := _RANK.match(line):
        facts = block.ranks.setdefault(int(match["rank"][:9]), {})
        if match["pid"]:
            facts["host"], facts["pid"] = match["host"], int(match["pid"][:10])
            facts["device"] = match["gpu"]
        what = match["what"] or many or ""
        if mode == "missing":
            facts["missing"] = True
        if hit := _LAUNCHED.search(what):
            facts.setdefault("counts", {})[op] = int((hit["count"] or "0")[:18])
        elif "status " in what:
            facts["status"] = what.partition("status ")[2].split()[0]
        elif "reported " in what:
            said = what.partition("reported ")[2]
            facts["async"] = next((n for t, n in _ASYNC.items() if said.startswith(t)), 3)
        return mode, op, many
    return mode, op, many if line.strip() else None


def _finished(block: _Block, groups: dict[int, tuple[int, int, str, tuple[str, ...]]]) -> RasComm:
    group = groups.get(block.group)
    size = group[1] if group else max([*block.ranks, block.others - 1], default=-1) + 1
    members = range(size) if size <= MAX_RANKS and (block.rest or block.rest_status) else ()
    ranks = []
    for rank in sorted({*block.ranks, *members}):
        facts = block.ranks.get(rank, {})
        missing = facts.get("missing", False)
        counts = dict(facts.get("counts", {}))
        if not missing:
            for op, count in block.rest.items():
                counts.setdefault(op, count)
        status = facts.get("status") or ("" if missing else block.rest_status)
        ranks.append(
            RasRank(
                rank,
                facts.get("host", ""),
                facts.get("pid"),
                facts.get("device", ""),
                tuple(sorted(counts.items())),
                missing or status in ("NOCOMM", "UNKNOWN"),
                status == "ABORT",
                status == "FINALIZE",
                status == "DESTROY",
                facts.get("async", 0),
                7 if status == "INIT" else 0,
            )
        )
    errors = tuple(dict.fromkeys([*(group[3] if group else ()), *block.errors]))
    return RasComm(block.hash, size, tuple(ranks), group[2] if group else "", errors)


# ------------------------------------------------------------------ monitor


def _monitor(artefact: Artefact, text: str) -> Parsed:
    source = artefact.source("ras")
    out = []
    for number, line in enumerate(text.split("\n"), 1):
        if match := _EVENT.match(line):
            out.append(
                LogEvent(
                    source,
                    f"ras.{match['event'].lower().replace('_', '-')}",
                    number,
                    line[:1000],
                    None,
                    match["host"],
                    _when(match["when"]),
                    (
                        ("host", match["host"]), ("pid", match["pid"]), ("device", match["gpu"]),
                        ("details", match["details"].strip()),
                    ),
                )
            )  # fmt: skip
    return Parsed(tuple(out), (), (source,))


def _monitor_json(artefact: Artefact, body: str, text: str) -> Parsed:
    source = artefact.source("ras")
    out = []
    errors: list[ReadError] = []
    line = text[: len(text) - len(body)].count("\n") + 1
    for chunk in re.split(r"(?<=\})\s*\n(?=\{)", body):
        try:
            value = msgspec.json.decode(chunk)
            peer = value.get("peer") or {}
            event = str(value["event"])
            host, pid = str(peer.get("host") or ""), str(peer.get("pid") or "")
            devices = ",".join(str(d) for d in _list(peer.get("cuda_devs")))
            when = _when(str(value.get("timestamp") or ""))
            details = str(value.get("details") or "")
        except (msgspec.DecodeError, RecursionError, ValueError, KeyError, AttributeError,
                TypeError) as err:  # fmt: skip
            errors.append(artefact.error(f"not an event: {err}", str(line), "left out"))
        else:
            out.append(
                LogEvent(
                    source, f"ras.{event.lower().replace('_', '-')}", line,
                    f"{event} {host} {pid} {details}"[:1000], None, host, when,
                    (("host", host), ("pid", pid), ("device", devices), ("details", details)),
                )
            )  # fmt: skip
        line += chunk.count("\n") + 1
    return Parsed(tuple(out), tuple(errors), (source,))


def _when(text: str) -> float | None:
    """Epoch seconds of RAS's local time, taken as UTC."""
    try:
        stamp = datetime.strptime(text, "%Y-%m-%d %H:%M:%S")
    except ValueError:
        return None
    return stamp.replace(tzinfo=timezone.utc).timestamp()


def _hash(text: str) -> str:
    return text.removeprefix("0x").zfill(16) if text else ""


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _int(value: Any) -> int:
    return value if type(value) is int and abs(value) < 1 << 63 else 0
