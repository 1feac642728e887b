"""Read /proc facts of one process: our sections, or files of /proc pasted by hand.

Example::

    # /proc/1385/status
    Name:   python3
    State:  T (stopped)
    # /proc/1385/wchan
    do_signal_stop
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

from fabwatch.watchdog.evidence.artefact import Artefact
from fabwatch.watchdog.evidence.observations import Parsed, ProcessState, Source

NAME = "process-facts"
MAKES = ("process", "cgroup")

_SECTION = re.compile(r"^# /proc/(?P<pid>\d{1,10})/(?P<file>\S+)\s*$")
_CGROUP = re.compile(r"^# cgroup (?P<path>\S+) (?P<file>\S+)\s*$")
_STATUS = re.compile(rb"^State:\s+[A-Za-z] \(", re.M)
_ASKED = re.compile(r"^\$ cat .*?/proc/(?P<pid>\d{1,10})/status")
_TASK = re.compile(
    r"^(?P<wchan>[\w.]*?)/proc/(?P<pid>\d+)/task/(?P<tid>\d+)\s+(?P<comm>.*?)\s+"
    r"(?P<twchan>[\w.]+)\s+(?P<state>[RSDTtZXIKWP])\s*$"
)
_FIELD = re.compile(r"^(?P<key>[A-Za-z_]+):\s*(?P<value>.*)$")
_GREP = re.compile(
    r"^(?:/proc/)?(?P<pid>\d{2,10})(?:/status)?[:\s]\s*(?P<rest>(?:State|Name|TracerPid):\s.*)$"
)
_OWNER = re.compile(
    r"^[\s#=\-]*(?:(?!\brank[ :=#_]{0,3}\d).){0,60}\brank[ :=#_]{0,3}(?P<rank>\d{1,6})\b"
    r"(?:.{0,40}?\bpid[ :=]{0,3}(?P<pid>\d{1,10}))?",
    re.I,
)
_ONE_LINE = re.compile(r"\s+(?=(?:State|TracerPid|Tgid|Threads):\s)")
_TASK_FILE = re.compile(r"^task/(?P<tid>\d+)/(?P<file>\w+)$")


@dataclass
class _Facts:
    """What is known of one process while its sections are read."""

    pid: int
    files: dict[str, list[str]] = field(default_factory=dict)
    main_task: dict[str, str] = field(default_factory=dict)
    cgroup: dict[str, list[str]] = field(default_factory=dict)
    cgroup_path: str = ""
    raw_wchan: str = ""
    rank: int | None = None
    grepped: bool = False


def sniff(head: bytes, name: str) -> int:
    """Sections headed ``# /proc/PID/FILE``, or the State line of /proc/PID/status."""
    if re.search(rb"^# /proc/\d+/\w", head[:4096], re.M):
        return 95
    if _STATUS.search(head) and re.search(rb"^(?:Pid|Tgid|TracerPid):", head, re.M):
        return 90
    if re.search(rb"^(?:/proc/)?\d{2,10}(?:/status)?[:\s]\s*State:\s+[A-Za-z] \(", head, re.M):
        return 88
    return 0


def parse(artefact: Artefact) -> Parsed:
    """One ProcessState of the first process; other processes in it become its children."""
    text, _ = artefact.text(64 * 1024 * 1024)
    lines = text.split("\n")
    found = (
        _sections(lines)
        if any(line.startswith("# /proc/") for line in lines[:200])
        else _pasted(lines)
    )
    if not found:
        return Parsed(
            errors=(artefact.error("no State line", advice="save /proc/PID/status again"),)
        )
    source = artefact.source("process")
    if any(one.rank is not None for one in found):
        return Parsed(tuple(_by_rank(found, source)), (), (source,))
    if all(one.grepped for one in found):
        return Parsed(tuple(_state_of(one, source, ()) for one in found), (), (source,))
    main = found[0]
    children = []
    for other in found[1:]:
        fields = _fields(other.files.get("status", []))
        state = _state(fields) or _stat(other.files.get("stat", []))[0]
        children.append((other.pid, state, fields.get("Name", "")))
    made = _state_of(main, source, tuple(children))
    looked = [source]
    if main.cgroup or main.cgroup_path:
        looked.append(artefact.source("cgroup"))
    return Parsed((made,), (), tuple(looked))


def _sections(lines: list[str]) -> list[_Facts]:
    out: dict[int, _Facts] = {}
    into: list[str] = []
    first: _Facts | None = None
    for raw in lines:
        line = raw.rstrip("\r")
        if match := _SECTION.match(line):
            pid = int(match["pid"])
            facts = out.setdefault(pid, _Facts(pid))
            first = first or facts
            into = facts.files.setdefault(match["file"], [])
        elif (match := _CGROUP.match(line)) and first is not None:
            first.cgroup_path = first.cgroup_path or match["path"]
            into = first.cgroup.setdefault(match["file"], [])
        else:
            into.append(line)
    return list(out.values())


def _by_rank(found: list[_Facts], source: Source) -> list[ProcessState]:
    """One state for each block, under the rank that its heading names; a second is another look."""
    looks: dict[int | None, int] = {}
    pids: dict[int | None, int] = {}
    out = []
    for one in found:
        nth = looks.get(one.rank, 0) if one.rank is not None else 0
        looks[one.rank] = nth + 1
        one.pid = one.pid or pids.get(one.rank, 0)
        pids[one.rank] = one.pid
        rank = source.rank if one.rank is None else one.rank
        out.append(_state_of(one, replace(source, rank=rank, snapshot=source.snapshot + nth), ()))
    return out


def _pasted(lines: list[str]) -> list[_Facts]:
    """Files of /proc pasted one after the other, as a shell loop prints them, or as grep does."""
    found: list[_Facts] = []
    by_pid: dict[int, _Facts] = {}
    facts: _Facts | None = None
    asked, rank = 0, None
    for raw in lines:
        line = raw.rstrip("\r")
        if match := _ASKED.match(line):
            asked = int(match["pid"])
            continue
        if match := _TASK.match(line):
            if facts is not None:
                if int(match["tid"]) == facts.pid:
                    facts.main_task = {"wchan": match["twchan"], "state": match["state"]}
                if match["wchan"]:
                    facts.raw_wchan = match["wchan"]
            continue
        if match := _GREP.match(line):
            pid = int(match["pid"])
            one = by_pid.get(pid)
            if one is None:
                one = by_pid[pid] = _Facts(pid, grepped=True)
                one.files["status"] = []
                found.append(one)
            one.files["status"] += _ONE_LINE.split(match["rest"])
            continue
        field = _FIELD.match(line)
        if field is None and len(line) < 200 and (match := _OWNER.match(line)):
            facts, rank = None, int(match["rank"])
            asked = int(match["pid"] or 0)
            continue
        if field and (
            field["key"] == "Name" or (field["key"] == "State" and _holds(facts, "State"))
        ):
            facts = _Facts(asked, rank=rank)
            found.append(facts)
            facts.files["status"] = []
        if facts is None or line.startswith(("$ ", "rc=")):
            continue
        status = facts.files["status"]
        if field:
            status.append(line)
            if field["key"] in ("Pid", "Tgid") and not (field["key"] == "Tgid" and facts.pid):
                facts.pid = int(number) if (number := field["value"].strip()[:10]).isdigit() else 0
        elif re.fullmatch(r"[a-z_][\w.]*", line.strip()) and not facts.raw_wchan:
            facts.raw_wchan = line.strip()
    return [f for f in found if _state(_fields(f.files["status"]))]


def _holds(facts: _Facts | None, key: str) -> bool:
    """Whether a new block begins: none is open, or the open one has this field."""
    return facts is None or any(line.startswith(key + ":") for line in facts.files["status"])


def _state_of(
    facts: _Facts, source: Source, children: tuple[tuple[int, str, str], ...]
) -> ProcessState:
    files = facts.files
    status = _fields(files.get("status", []))
    state, ticks, start = _stat(files.get("stat", []))
    io = _fields(files.get("io", []))
    wchan = "".join(files.get("wchan", [])).strip() or facts.raw_wchan
    task = _main_task(facts)
    if wchan in ("", "0"):
        wchan = task if task not in ("", "0") else ""
    cgroup = facts.cgroup_path or _cgroup_path(files.get("cgroup", []))
    return ProcessState(
        source=source,
        rank=source.rank,
        pid=facts.pid,
        state=_state(status) or state,
        comm=status.get("Name", "") or "".join(files.get("comm", [])).strip(),
        command=" ".join("".join(files.get("cmdline", [])).split())[:4000],
        threads=_number(status.get("Threads")),
        wchan=wchan[:200],
        kernel_stack=tuple(
            line.strip()[:300] for line in files.get("stack", [])[:100] if line.strip()
        ),
        frozen=_frozen(facts),
        cgroup=cgroup[:4000],
        cpu_ticks=ticks,
        read_bytes=_number(io.get("read_bytes")),
        write_bytes=_number(io.get("write_bytes")),
        rss_kb=_number(status.get("VmRSS", "").split(" ")[0]),
        start_ticks=start,
        tracer_pid=_number(status.get("TracerPid")),
        children=children,
    )


def _fields(lines: list[str]) -> dict[str, str]:
    out: dict[str, str] = {}
    for line in lines:
        if match := _FIELD.match(line):
            out.setdefault(match["key"], match["value"].strip())
    return out


def _state(status: dict[str, str]) -> str:
    return status.get("State", "")[:1]


def _stat(lines: list[str]) -> tuple[str, int | None, int | None]:
    """State, CPU ticks (user + system) and start time of a /proc/PID/stat line."""
    text = "".join(lines)
    end = text.rfind(")")
    words = text[end + 1 :].split() if end > 0 else []
    if len(words) < 20:
        return (words[0] if words else ""), None, None
    user, system, start = _number(words[11]), _number(words[12]), _number(words[19])
    ticks = user + system if user is not None and system is not None else None
    return words[0], ticks, start


def _main_task(facts: _Facts) -> str:
    if facts.main_task:
        return facts.main_task["wchan"]
    return "".join(facts.files.get(f"task/{facts.pid}/wchan", [])).strip()


def _cgroup_path(lines: list[str]) -> str:
    """The unified path, else that of the memory controller."""
    paths = {}
    for line in lines:
        parts = line.strip().split(":", 2)
        if len(parts) == 3:
            paths[parts[1]] = parts[2]
    if "" in paths and len(paths) == 1:
        return paths[""]
    for names, path in paths.items():
        if "memory" in names.split(","):
            return path
    return paths.get("", "")


def _frozen(facts: _Facts) -> bool | None:
    """Whether the freezer holds the process; None when nothing says so."""
    text = "\n".join(facts.cgroup.get("freezer.state", []))
    if "FROZEN" in text or "FREEZING" in text:
        return True
    if "THAWED" in text:
        return False
    for name in ("cgroup.events", "cgroup.freeze"):
        body = "\n".join(facts.cgroup.get(name, []))
        if match := re.search(r"(?:^|\n)(?:frozen )?([01])\s*(?:\n|$)", body):
            return match[1] == "1"
        if match := re.search(r"^frozen ([01])", body, re.M):
            return match[1] == "1"
    return None


def _number(text: str | None) -> int | None:
    if text is None or len(text) > 20:
        return None
    text = text.strip()
    return int(text) if text.isascii() and text.isdigit() else None
