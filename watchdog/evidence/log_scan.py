"""One pass over a mixed log: events, exceptions, exits, stacks and who runs where.

Lines are read in blocks. A block without any literal of any pattern costs one search; inside
others only lines that hold one are taken apart.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, field

from fabwatch.watchdog.evidence.artefact import LINE_BYTES, Artefact, decode
from fabwatch.watchdog.evidence.elastic_report import Item, Report
from fabwatch.watchdog.evidence.faulthandler_text import THREAD, ThreadStacks
from fabwatch.watchdog.evidence.log_lines import Line, unmix
from fabwatch.watchdog.evidence.log_patterns import LITERALS, PATTERNS
from fabwatch.watchdog.evidence.nccl_lines import (
    NCCL_PATTERNS,
    PREFIX,
    PROXY_OP,
    PROXY_SUB,
    STAMP,
)
from fabwatch.watchdog.evidence.observations import (
    Exit,
    JobShape,
    LogEvent,
    Observation,
    PythonError,
    RankStacks,
    ReadError,
    Source,
)
from fabwatch.watchdog.evidence.opnames import normal_op
from fabwatch.watchdog.evidence.shapes import EVERY, OFTEN, Shapes, Sieve, known
from fabwatch.watchdog.evidence.text_shapes import event_of
from fabwatch.watchdog.evidence.tracebacks import Raised, Tracebacks

KEEP_FIRST = 2000
"""Events of one kind and rank kept from the start of a log; after them, one in 100."""

_OTHER_LITERALS = (
    "NCCL ", "Traceback (most", '  File "', "Error", "Exception", "Interrupt", "SystemExit",
    "ACTIVE OPS", "(most recent call first)", "Failures:", "Root Cause (first", "Last error:",
    "Stack trace of the failed collective:", "it/s", "s/it",
)  # fmt: skip
# Long literals that another one covers only cost time.
_RARE = frozenset({"it/s", "s/it", "NCCL "})


def _shortest(texts: set[str]) -> tuple[bytes, ...]:
    """The texts without those that hold another one of them."""
    ordered = sorted(texts, key=lambda text: (len(text), text))
    kept = [a for i, a in enumerate(ordered) if not any(b in a for b in ordered[:i])]
    return tuple(text.encode() for text in kept)


ANY = re.compile(b"|".join(map(re.escape, _shortest({*LITERALS, *_OTHER_LITERALS}))))
_LOUD = ("NCCL WARN", "NCCL ATTN", "NCCL DIAG", "NCCL CALL", "NCCL TRACE")
_SET_UP = (" - Init START", "Init COMPLETE", "nNodes ")
# Lines of some come by the million and say the same: only some of them are looked at.
_WANTED: dict[bytes, int] = {
    **{text.encode(): EVERY for text in {*LITERALS, *_OTHER_LITERALS} - _RARE},
    **{text.encode(): EVERY for text in (*_LOUD, *_SET_UP)},
    **{text: OFTEN for text in (b"it/s", b"s/it", b"NCCL INFO")},
}

_KNOWN = re.compile("|".join(re.escape(text) for text in LITERALS))
_QUIET = 500
PATTERN_CHARS = 4096
"""How much of a line is searched for patterns."""

_FASTEST = 1e5
_RATE = re.compile(r"(?P<rate>\d+(?:\.\d+)?) ?(?P<unit>it/s|s/it)")
_STEP = re.compile(
    r"(?:\bstep|\biter(?:ation)?|\bbatch)\b[ :=]*\[?(?P<step>\d{1,12})"
    r"|\| *(?P<bar>\d{1,12})/\d+ \[",
    re.I,
)
_FAILED_FRAME = re.compile(r"^#\d+ (?P<function>.+?) from (?P<file>.+):(?P<line>\d+)\s*$")
_PG = re.compile(
    r"\[PG ID (?P<pg_id>\d+) PG GUID (?P<pg_guid>[^\s(\]]+)(?:\((?P<pg_desc>[^)]*)\))? "
    r"Rank (?P<pg_rank>\d+)\]"
)
_OWN_RANK = re.compile(r"\[(?:Rank|RANK) (?P<rank>\d{1,7})\]")
_LAUNCHER = re.compile(
    r"torch/distributed/(?:run|launch|elastic|launcher)|torchrun\b|accelerate/commands|"
    r"deepspeed/launcher|ray/(?:_private|worker)"
)
_LAUNCHER_TYPES = ("ChildFailedError", "SignalException", "ProcessRaisedException", "Rendezvous")


@dataclass
class Scan:
    """What one log held."""

    artefact: Artefact
    kind: str
    events: list[LogEvent] = field(default_factory=list)
    errors: list[PythonError] = field(default_factory=list)
    stacks: list[RankStacks] = field(default_factory=list)
    problems: list[ReadError] = field(default_factory=list)
    items: list[Item] = field(default_factory=list)
    nccl_ranks: dict[tuple[str, int], dict[int, int]] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    ended_by_launcher: set[int] = field(default_factory=set)

    def observations(self) -> tuple[Observation, ...]:
        """Everything, typed."""
        return (
            *self.events,
            *self.errors,
            *self.stacks,
            *self._exits(),
            *self._shapes(),
        )

    def _exits(self) -> list[Exit]:
        """Exits of torchelastic's report, the root first, then by time and place."""
        source = self.artefact.source("job-log")
        best: dict[tuple[int, int | None], Item] = {}
        for item in self.items:
            if item.rank is None or item.code is None:
                continue
            key = (item.rank, item.pid)
            if key not in best or item.root:
                best[key] = item
        ordered = sorted(best.values(), key=lambda i: (not i.root, i.when or 0.0, i.line))
        out = []
        for order, item in enumerate(ordered, 1):
            rank, code = item.rank, item.code
            assert rank is not None and code is not None
            host = item.fields.get("host") or source.host
            own = Source(source.path, "job-log", rank, host, source.snapshot)
            told = item.pid in self.ended_by_launcher
            out.append(
                Exit(
                    own,
                    rank,
                    item.pid,
                    None if code < 0 else code,
                    -code if code < 0 else None,
                    item.when,
                    order,
                    not item.root and (told or code == -15),
                    None,
                    source.cite(item.line),
                )
            )
        return out

    def _shapes(self) -> list[JobShape]:
        """Who is who, by the largest communicator of each process; versions as they were told."""
        ranks: dict[int, list[tuple[int, str, int]]] = defaultdict(list)
        for (host, pid), comms in self.nccl_ranks.items():
            size = max(comms)
            ranks[size].append((comms[size], host, pid))
        for size, who in list(ranks.items()):
            # Several communicators of this size: none of them is the whole job.
            if size < max(ranks) or len({rank for rank, _, _ in who}) < len(who):
                del ranks[size]
        known = [
            (item.rank, item.fields.get("host", ""), item.pid)
            for item in self.items
            if item.rank is not None and item.pid is not None
        ]
        source = self.artefact.source(self.kind)
        versions = tuple(sorted(self.versions.items()))
        out = [
            JobShape(self.artefact.source("nccl-log"), size, tuple(sorted(set(who))), versions)
            for size, who in ranks.items()
        ]
        if known:
            out.append(JobShape(source, None, tuple(sorted(set(known))), versions))
        if not out and versions:
            out.append(JobShape(source, None, (), versions))
        return out


class _Scanner:
    """The state of one pass."""

    def __init__(self, scan: Scan, shapes: Shapes) -> None:
        self.scan = scan
        self.shapes = shapes
        self.sources: dict[str, Source] = {}
        self.tracebacks = Tracebacks()
        self.reports: dict[str, Report] = {}
        self.stacks: dict[str, tuple[ThreadStacks, Line]] = {}
        self.counts: dict[tuple[str, int | None], int] = defaultdict(int)
        self.once: set[tuple[object, ...]] = set()
        self.who: dict[str, Line] = {}
        self.failed: dict[str, tuple[int, Line, list[str]]] = {}
        self.last_error: set[str] = set()
        self.proxy: tuple[int, Line, list[str]] | None = None
        self.rate: dict[str, float] = {}
        self.step: tuple[int, str, Line] | None = None

    @property
    def busy(self) -> bool:
        """True while something spans lines, so that none may be skipped."""
        return (
            self.tracebacks.busy
            or bool(self.stacks)
            or bool(self.failed)
            or bool(self.last_error)
            or self.proxy is not None
            or any(report.open for report in self.reports.values())
        )

    def expire(self, number: int) -> None:
        """Close what has been open for long, so that the rest of a log is not read line by line."""
        for raised in self.tracebacks.expire(number):
            self._raised(raised)
        for stream, (first, _, _) in list(self.failed.items()):
            if number - first > _QUIET:
                self._end_failed(stream)
        for stream, (stacks, _) in list(self.stacks.items()):
            if number - stacks.last > 4 * _QUIET:
                self._end_stack(stream)
        self.last_error.clear()
        for report in self.reports.values():
            report.expire(number)

    # -------------------------------------------------------------- one line

    def line(self, raw: bytes, number: int) -> None:
        """Take one line apart."""
        text = decode(raw[:LINE_BYTES])
        if "\r" in text:
            parts = [part for part in text.split("\r") if part.strip()]
            for part in parts[-50:]:
                self._line(unmix(part), number)
            return
        self._line(unmix(text), number)

    def _line(self, line: Line, number: int) -> None:
        body = line.body
        stream = line.stream
        if stream not in self.who and len(self.who) < 200_000:
            self.who[stream] = line
        if "NCCL " in body and (match := PREFIX.search(body)):
            self._shaped(line, number, match)
            self._nccl(line, number, match)
            return
        self._shaped(line, number, None)
        if (self.proxy is not None or body.startswith("ACTIVE OPS")) and self._proxy(line, number):
            return
        if self.failed and self._failed_stack(line, number):
            return
        if self._report(line, number) or self._thread(line, number):
            return
        if stream in self.last_error:
            self.last_error.discard(stream)
            if body.strip():
                self._event("nccl.last-error", line, number, {"message": body.strip()[:400]})
        if body.lstrip().startswith("Last error:"):
            self.last_error.add(stream)
        for raised in self.tracebacks.feed(stream, body, number):
            self._raised(raised)
        self._patterns(line, number)
        if "it/s" in body or "s/it" in body:
            self._rate(line, number)

    def _shaped(self, line: Line, number: int, nccl: re.Match[str] | None) -> None:
        """Events of the shapes that the library declares."""
        kind = "nccl-log" if nccl else self.scan.kind
        for shape, fields in self.shapes.match(line.body, kind):
            if nccl:
                fields.setdefault("pid", nccl["pid"])
                if nccl["dev"]:
                    fields.setdefault("dev", nccl["dev"])
                if line.when is None and (stamp := STAMP.search(line.body)):
                    line.when = unmix(f"{stamp[1].replace('_', ' ')} x").when
            rank = self._rank(line, dict(fields) if nccl is None else {"pg_id": "nccl"})
            key = (f"shape:{shape.fact}", rank)
            self.counts[key] += 1
            if self.counts[key] > KEEP_FIRST and self.counts[key] % 100:
                continue
            if line.pid is not None:
                fields.setdefault("pid", str(line.pid))
            host = (nccl["host"] if nccl else None) or line.host or self.scan.artefact.hint.host
            self.scan.events.append(
                event_of(shape, fields, self._source(kind), number, line, rank, host)
            )

    def _patterns(self, line: Line, number: int) -> None:
        body = line.body[:PATTERN_CHARS]
        if "Stack trace of the failed collective:" in body:
            self.failed[line.stream] = (number, line, [])
        if _KNOWN.search(body) is None:
            return
        seen: set[str] = set()
        for pattern in PATTERNS:
            if pattern.literal not in body or pattern.kind in seen:
                continue
            for match in pattern.regex.finditer(body):
                fields = {k: v for k, v in match.groupdict().items() if v is not None}
                if pattern.kind == "cuda.error" and "cuda.sticky-error" in seen:
                    continue
                seen.add(pattern.kind)
                self._matched(pattern.kind, line, number, fields)

    def _matched(self, kind: str, line: Line, number: int, fields: dict[str, str]) -> None:
        for name in ("pg_rank2", "pg_rank3"):
            if name in fields:
                fields["pg_rank"] = fields.pop(name)
        if "pg_id2" in fields:
            fields["pg_id"] = fields.pop("pg_id2")
        if "rank_pid2" in fields:
            fields["rank_pid"] = fields.pop("rank_pid2")
        if "[PG ID" in line.body and "pg_guid" not in fields and (pg := _PG.search(line.body)):
            fields.update({k: v for k, v in pg.groupdict().items() if v is not None})
        for name in ("op", "started_op"):
            if name in fields:
                fields[name] = normal_op(fields[name])
        if kind in ("elastic.signal-sent", "elastic.sigkill-sent"):
            self.scan.ended_by_launcher.add(int(fields["rank_pid"][:12]))
        self._event(kind, line, number, fields)

    # -------------------------------------------------------------- events

    def _source(self, kind: str) -> Source:
        if kind not in self.sources:
            self.sources[kind] = self.scan.artefact.source(kind)
        return self.sources[kind]

    def _rank(self, line: Line, fields: dict[str, str]) -> int | None:
        if line.rank is not None:
            return line.rank
        hint = self.scan.artefact.hint.rank
        if hint is not None:
            return hint
        # In lines of old torch, [Rank N] is all there is; a group's rank is only the rank in it.
        group = fields.get("pg_id")
        if fields.get("pg_rank") and group in (None, "0") and len(fields["pg_rank"]) < 9:
            return int(fields["pg_rank"])
        if match := _OWN_RANK.search(line.body[:200]):
            return int(match["rank"]) if group is None else None
        return None

    def _event(
        self,
        kind: str,
        line: Line,
        number: int,
        fields: dict[str, str],
        *,
        source_kind: str = "",
        host: str | None = None,
    ) -> None:
        rank = self._rank(line, fields) if source_kind != "nccl-log" else line.rank
        if rank is None and source_kind == "nccl-log":
            rank = self.scan.artefact.hint.rank
        key = (kind, rank)
        self.counts[key] += 1
        if self.counts[key] > KEEP_FIRST and self.counts[key] % 100:
            return
        if line.local_rank is not None and "local_rank" not in fields:
            fields["local_rank"] = str(line.local_rank)
        if line.task is not None:
            fields["task"] = str(line.task)
        if line.pid is not None and "pid" not in fields:
            fields["pid"] = str(line.pid)
        self.scan.events.append(
            LogEvent(
                self._source(source_kind or self.scan.kind),
                kind,
                number,
                line.body.strip()[:1000],
                rank,
                host or line.host or self.scan.artefact.hint.host,
                line.when,
                tuple(fields.items()),
            )
        )

    # -------------------------------------------------------------- NCCL's own lines

    def _nccl(self, line: Line, number: int, match: re.Match[str]) -> None:
        message = match["msg"]
        host, pid = match["host"], int(match["pid"])
        if line.when is None and (stamp := STAMP.search(line.body)):
            line.when = unmix(f"{stamp[1].replace('_', ' ')} x").when
        base = {"pid": match["pid"], "level": match["level"]}
        if match["dev"]:
            base["dev"] = match["dev"]
        if match["src"]:
            base["src"] = f"{match['src']}:{match['line']}"
        found = False
        for pattern in NCCL_PATTERNS:
            if pattern.literal not in message:
                continue
            hit = pattern.regex.search(message)
            if hit is None:
                continue
            fields = {k: v for k, v in hit.groupdict().items() if v is not None}
            if pattern.name in ("init-start", "init-complete", "topology"):
                size, rank = int(fields["nranks"][:9]), int(fields["rank"][:9])
                comms = self.scan.nccl_ranks.setdefault((host, pid), {})
                comms.setdefault(size, rank)
            elif pattern.name == "version":
                self.scan.versions.setdefault("nccl", fields["version"])
                self.scan.versions.setdefault("nccl_cuda", fields["cuda"])
            # "rank" of a communicator is not the rank of the job.
            if "rank" in fields:
                fields["comm_rank"] = fields.pop("rank")
            if pattern.once:
                key = (host, pid, pattern.name, *fields.items())
                if key in self.once or len(self.once) > 200_000:
                    found = True
                    break
                self.once.add(key)
            found = True
            self._event(
                f"nccl-log.{pattern.name}", line, number, {**base, **fields},
                source_kind="nccl-log", host=host,
            )  # fmt: skip
            break
        if not found and match["level"] in ("WARN", "ATTN"):
            self._event(
                "nccl-log.warn", line, number, {**base, "message": message[:400]},
                source_kind="nccl-log", host=host,
            )  # fmt: skip

    def _proxy(self, line: Line, number: int) -> bool:
        """A dump of the proxy's operations: a chain of lines after ACTIVE OPS."""
        body = line.body.strip()
        if body.startswith("ACTIVE OPS"):
            self._end_proxy()
            self.proxy = (number, line, [])
            return True
        assert self.proxy is not None
        if PROXY_OP.match(body):
            if len(self.proxy[2]) < 10_000:
                self.proxy[2].append(body)
            return True
        if body in ("|", "v", "[X]", "", "X") or (
            body.startswith(("[", "|", "v")) and len(body) < 4
        ):
            return True
        self._end_proxy()
        return False

    def _end_proxy(self) -> None:
        if self.proxy is None:
            return
        number, line, ops = self.proxy
        self.proxy = None
        if not ops:
            self._event("nccl-log.proxy-idle", line, number, {}, source_kind="nccl-log")
            return
        kinds, counts, peers, channels, states = (dict[str, None]() for _ in range(5))
        for text in ops:
            match = PROXY_OP.match(text)
            assert match is not None
            kinds[match["kind"]] = counts[match["opcount"]] = None
            for sub in PROXY_SUB.finditer(match["subs"]):
                peers[sub["peer"]] = channels[sub["channel"]] = None
                if sub["state"].strip():
                    states[sub["state"]] = None
        fields = {
            "ops": str(len(ops)),
            "kinds": ",".join(kinds),
            "peers": ",".join(sorted(peers, key=int)),
            "channels": ",".join(sorted(channels, key=int)),
            "states": "".join(states),
            "opcounts": ",".join(sorted(counts, key=int)),
        }
        self._event("nccl-log.proxy-active", line, number, fields, source_kind="nccl-log")

    # -------------------------------------------------------------- things of several lines

    def _failed_stack(self, line: Line, number: int) -> bool:
        """Frames below "Stack trace of the failed collective", which carry no prefix."""
        stream = line.stream
        match = _FAILED_FRAME.match(line.body)
        if stream not in self.failed:
            if match is None and (stream or len(self.failed) < 100):
                return False
            stream = next(reversed(self.failed))
        frames = self.failed[stream][2]
        if match is not None:
            if len(frames) < 100:
                frames.append(f"{match['file']}:{match['line']} {match['function']}")
            return True
        self._end_failed(stream)
        return False

    def _end_failed(self, stream: str) -> None:
        first, head, frames = self.failed.pop(stream)
        if frames:
            self._event("nccl.failed-collective-stack", head, first, {"frames": " | ".join(frames)})

    def _report(self, line: Line, number: int) -> bool:
        report = self.reports.get(line.stream)
        if report is None:
            if "Failures:" not in line.body and "Root Cause (first" not in line.body:
                return False
            report = self.reports[line.stream] = Report()
        return report.feed(line.body, number)

    def _thread(self, line: Line, number: int) -> bool:
        held = self.stacks.get(line.stream)
        if held is None:
            if "(most recent call first)" not in line.body or not THREAD.match(line.body):
                return False
            held = self.stacks[line.stream] = (ThreadStacks(), line)
        if held[0].feed(line.body, number):
            return True
        if line.body.strip() and not held[0].open:
            self._end_stack(line.stream)
        return False

    def _end_stack(self, stream: str) -> None:
        held, line = self.stacks.pop(stream)
        threads = held.finish()
        if threads:
            rank = line.rank if line.rank is not None else self.scan.artefact.hint.rank
            source = self.scan.artefact.source("python-stack", rank=rank, host=line.host)
            self.scan.stacks.append(RankStacks(source, rank, line.pid, False, "", threads))

    def _raised(self, raised: Raised) -> None:
        line = self.who.get(raised.stream, Line(""))
        name = raised.type.rsplit(".", 1)[-1]
        text = raised.text
        if raised.chained:
            text = f"{text} (after {', '.join(raised.chained[-3:])})"
        ours = sum(1 for f in raised.frames if _LAUNCHER.search(f.file))
        if name.startswith(_LAUNCHER_TYPES) or (raised.frames and ours * 2 > len(raised.frames)):
            self._event(
                "elastic.child-failed" if name == "ChildFailedError" else "elastic.launcher-error",
                Line(f"{raised.type}: {text}"[:1000], raised.stream, host=line.host),
                raised.last,
                {"error": raised.type},
            )
            return
        rank = line.rank if line.rank is not None else self.scan.artefact.hint.rank
        if rank is None and (match := _OWN_RANK.search(text[:200])):
            rank = int(match["rank"])
        self.counts["exception", rank] += 1
        if self.counts["exception", rank] > KEEP_FIRST:
            return
        source = self.scan.artefact.source(self.scan.kind, rank=rank, host=line.host)
        self.scan.errors.append(
            PythonError(
                source,
                rank,
                raised.type,
                text[:4096],
                raised.frames,
                line.when,
                source.cite(raised.last),
            )
        )

    # -------------------------------------------------------------- progress

    def _rate(self, line: Line, number: int) -> None:
        found = list(_RATE.finditer(line.body))
        if not found:
            return
        match = found[-1]
        rate = float(match["rate"][:12])
        if match["unit"] == "s/it":
            rate = 1.0 / rate if rate else 0.0
        if rate > _FASTEST:  # a download or a tokenizer, not training
            return
        step = _STEP.search(line.body)
        said = (step["step"] or step["bar"] or "") if step else ""
        before = self.rate.get(line.stream)
        self.step = (number, said, line)
        if before is not None and rate and 0.5 < before / rate < 2.0:
            return
        self.rate[line.stream] = rate
        self._event("progress.rate", line, number, {"rate": f"{rate:.6g}", "step": said})

    # -------------------------------------------------------------- the end

    def finish(self) -> None:
        """Close whatever is open."""
        self._end_proxy()
        for stream in list(self.failed):
            self._end_failed(stream)
        for stream in list(self.stacks):
            self._end_stack(stream)
        for raised in self.tracebacks.finish():
            self._raised(raised)
        for report in self.reports.values():
            self.scan.items.extend(report.items)
        self.scan.items.sort(key=lambda item: item.line)
        if self.step is not None:
            number, said, line = self.step
            self._event("progress.last", line, number, {"step": said})
        for (kind, rank), count in sorted(self.counts.items(), key=str):
            if count > KEEP_FIRST:
                whose = "" if rank is None else f" of rank {rank}"
                self.scan.problems.append(
                    self.scan.artefact.error(
                        f"{count} lines of {kind}{whose}",
                        advice=f"after the first {KEEP_FIRST} one in 100 is kept",
                    )
                )
        self.scan.events.sort(key=lambda event: event.line)


def _block(scanner: _Scanner, sieve: Sieve, first: int, block: bytes) -> None:
    """Take the lines of interest of one block apart, and all lines while something is open."""
    at, number = 0, first
    size = len(block)
    for start in [*sieve.starts(block), size]:
        while scanner.busy and at < start:
            end = block.find(b"\n", at)
            end = size if end < 0 else end
            scanner.line(block[at : min(end, at + LINE_BYTES)], number)
            at, number = end + 1, number + 1
            if number % 256 == 0:
                scanner.expire(number)
        if start < at or start >= size:
            continue
        number += block.count(b"\n", at, start)
        end = block.find(b"\n", start)
        end = size if end < 0 else end
        scanner.line(block[start : min(end, start + LINE_BYTES)], number)
        at, number = end + 1, number + 1


def scan(artefact: Artefact, kind: str) -> Scan:
    """Read one log. ``kind`` is the source that events belong to. Never raises for content."""
    out = Scan(artefact, kind)
    shapes = known()
    scanner = _Scanner(out, shapes)
    sieve = shapes.sieve(_WANTED)
    try:
        for first, block in artefact.blocks():
            _block(scanner, sieve, first, block)
    except OSError as err:
        out.problems.append(
            artefact.error(f"could only be read in part: {err}", advice="copy it again")
        )
    scanner.finish()
    return out
