"""Read evidence of any kind from any place into one Reading.

``read(["run/incidents/0001"])``, ``read([Path("folder")])``, ``read(["-"])`` for standard input.
"""

from __future__ import annotations

import io
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar, cast

import msgspec

from fabwatch.watchdog.evidence import bundle, sections, shapes, text_shapes
from fabwatch.watchdog.evidence.artefact import Artefact, Parser, decode, looks_binary
from fabwatch.watchdog.evidence.bundle import incidents_of as incidents_of
from fabwatch.watchdog.evidence.inputs import Budget, Found, artefacts, standard_input
from fabwatch.watchdog.evidence.ledger import Evidence, Ledger
from fabwatch.watchdog.evidence.naming import Hint, hint_of
from fabwatch.watchdog.evidence.observations import (
    Exit,
    GpuReport,
    JobShape,
    LinkCounters,
    LogEvent,
    Measured,
    Observation,
    Parsed,
    ProcessState,
    ProgressPage,
    PythonError,
    RankStacks,
    RankTrace,
    RasReport,
    ReadError,
    Source,
    Stall,
)
from fabwatch.watchdog.evidence.parsers import all_parsers, flight_recorder, sysfs
from fabwatch.watchdog.evidence.settle import settle

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Reading:
    """Everything that was read, by type, and how complete it is.

    ``looked`` names the sources that were read, also those in which nothing was found.
    ``roots`` are the paths given, which labels in citations are relative to. ``incidents`` are
    incident directories seen there; only the current one of a run is read. ``unrecognised`` are
    labels of files that no parser knows.
    """

    traces: tuple[RankTrace, ...] = ()
    pages: tuple[ProgressPage, ...] = ()
    stacks: tuple[RankStacks, ...] = ()
    processes: tuple[ProcessState, ...] = ()
    exits: tuple[Exit, ...] = ()
    errors: tuple[PythonError, ...] = ()
    events: tuple[LogEvent, ...] = ()
    ras: tuple[RasReport, ...] = ()
    gpus: tuple[GpuReport, ...] = ()
    links: tuple[LinkCounters, ...] = ()
    stalls: tuple[Stall, ...] = ()
    shapes: tuple[JobShape, ...] = ()
    measured: tuple[Measured, ...] = ()
    looked: tuple[Source, ...] = ()
    ledger: Ledger = field(default_factory=Ledger)
    problems: tuple[ReadError, ...] = ()
    roots: tuple[str, ...] = ()
    incidents: tuple[Path, ...] = ()
    unrecognised: tuple[str, ...] = ()

    @property
    def empty(self) -> bool:
        """True when nothing at all could be used."""
        return not self.looked and not self.stalls and not self.shapes


@dataclass
class _Collected:
    """What has been read so far."""

    observations: list[Observation] = field(default_factory=list)
    looked: list[Source] = field(default_factory=list)
    problems: list[ReadError] = field(default_factory=list)
    unrecognised: list[str] = field(default_factory=list)
    incidents: list[Path] = field(default_factory=list)
    ledger: Ledger = field(default_factory=Ledger)
    by_path: dict[str, Evidence] = field(default_factory=dict)
    modified: dict[str, float] = field(default_factory=dict)
    explicit: set[str] = field(default_factory=set)


def read(paths: Sequence[Path | str]) -> Reading:
    """Read all evidence in ``paths``: files, directories, archives, ``"-"`` for standard input.

    Never raises for what it finds there; problems are collected, each with its place.
    """
    got = _Collected()
    budget = Budget()
    labels = _labels(paths)
    for given, label in zip(paths, labels, strict=True):
        if given == "":
            problem = "an empty name says nothing of where to look"
            got.problems.append(ReadError("''", "", problem, "give a file or directory, or ."))
        elif str(given) == "-" and sys.stdin is None:
            got.problems.append(ReadError("stdin", "", "is closed", "pipe the evidence in"))
        elif str(given) == "-":
            stream = os.fdopen(os.dup(sys.stdin.fileno()), "rb")
            _take(standard_input("stdin", stream, budget), got)
        else:
            _root(Path(given), label, budget, got)
    return _reading(got, tuple(str(p) for p in paths))


def _labels(paths: Sequence[Path | str]) -> list[str]:
    """Prefixes for labels: none for a single path, else names, made unique."""
    if len(paths) == 1:
        return [""]
    seen: dict[str, int] = {}
    out = []
    for path in paths:
        name = Path(path).name or str(path)
        seen[name] = seen.get(name, 0) + 1
        out.append(name if seen[name] == 1 else f"{name}~{seen[name]}")
    return out


def _root(path: Path, label: str, budget: Budget, got: _Collected) -> None:
    """An incident with what its run adds, a run with its current incident, or anything."""
    if bundle.is_incident(path):
        got.incidents.append(path)
        run = bundle.run_of(path)
        _ledger(path, label, got)
        _take(artefacts(path, label, budget, _skip_ours(path)), got)
        if run is not None and bundle.current(bundle.incidents_of(run)) in (path, path.resolve()):
            _run_parts(run, f"{label}/run" if label else "run", budget, got)
    elif bundle.is_run(path):
        found = bundle.incidents_of(path)
        got.incidents.extend(found)
        chosen = bundle.current(found)
        if chosen is not None:
            prefix = f"incidents/{chosen.name}"
            prefix = f"{label}/{prefix}" if label else prefix
            _ledger(chosen, prefix, got)
            _take(artefacts(chosen, prefix, budget, _skip_ours(chosen)), got)
        _run_parts(path, label, budget, got)
    else:
        for below in _incidents_below(path):
            got.incidents.append(below)
            prefix = below.relative_to(path).as_posix()
            _ledger(below, f"{label}/{prefix}" if label else prefix, got)
        _take(artefacts(path, label, budget, _skip_nothing), got)


def _incidents_below(path: Path) -> list[Path]:
    try:
        return [p for p in sorted(path.iterdir())[:10_000] if p.is_dir() and bundle.is_incident(p)]
    except OSError:
        return []


def _run_parts(run: Path, label: str, budget: Budget, got: _Collected) -> None:
    for name in bundle.RUN_PARTS:
        part = run / name
        if part.exists():
            place = f"{label}/{name}" if label else name
            _take(artefacts(part, place, budget, _skip_nothing), got)


def _skip_nothing(path: Path) -> bool:
    return False


def _skip_ours(root: Path) -> Callable[[Path], bool]:
    def skip(path: Path) -> bool:
        if path.suffix in bundle.LEFTOVERS:
            return True
        return path.parent == root and path.name in bundle.OURS | {"ledger.jsonl"}

    return skip


def _ledger(incident: Path, label: str, got: _Collected) -> None:
    file = incident / "ledger.jsonl"
    try:
        ledger, bad = Ledger.read(file)
    except OSError:
        return
    _add_ledger(ledger.lines, label, got)
    place = f"{label}/ledger.jsonl" if label else "ledger.jsonl"
    for text in bad[:100]:
        problem = text.removeprefix(f"{file}:")
        number, _, why = problem.partition(":")
        got.problems.append(ReadError(place, number, f"not a ledger line:{why}", "line left out"))


def _add_ledger(lines: Iterable[Evidence], label: str, got: _Collected) -> None:
    for line in lines:
        got.ledger.add(line)
        if line.path:
            got.by_path[f"{label}/{line.path}" if label else line.path] = line
        elif line.expected:  # it was looked for, and rightly there is none
            file = f"{label}/ledger.jsonl" if label else "ledger.jsonl"
            got.looked.append(
                Source(file, line.source, line.rank, line.host or None, line.snapshot)
            )


def _take(found: Iterator[Found], got: _Collected) -> None:
    for one in found:
        if isinstance(one, ReadError):
            got.problems.append(one)
        else:
            _one(one, got)


def _one(artefact: Artefact, got: _Collected) -> None:
    """Sniff and parse one artefact; a parser's own failure is a problem, never an exception."""
    evidence = got.by_path.get(artefact.path)
    if evidence is not None:
        artefact = _told(artefact, evidence)
    if artefact.hint.snapshot is not None:
        got.explicit.add(artefact.path)
    if artefact.modified is not None:
        got.modified[artefact.path] = artefact.modified
    try:
        head = artefact.head()
    except OSError as err:
        got.problems.append(artefact.error(f"cannot be read: {err}", advice="fix access"))
        return
    if not head.strip(b"\0 \t\r\n"):
        if not head:
            got.problems.append(artefact.error("is empty", advice="nothing was saved"))
        return
    chosen = _readers(head, artefact)
    try:
        parts = _parts(artefact, head, chosen)
    except OSError as err:
        got.problems.append(artefact.error(f"cannot be read: {err}", advice="copy it again"))
        return
    if parts:
        unknown = len(got.unrecognised)
        for part, readers in parts:
            _read_one(part, part.head(), readers, got)
        del got.unrecognised[unknown:]  # words between the outputs
    else:
        _read_one(artefact, head, chosen, got)


def _read_one(artefact: Artefact, head: bytes, chosen: Sequence[Parser], got: _Collected) -> None:
    """Read one artefact or part with the parsers that know it."""
    if not chosen:
        if _is_ledger(head):
            _loose_ledger(artefact, got)
        elif artefact.name not in bundle.OURS:
            _other(artefact, head, got)
        return
    kinds = []
    for parser in chosen:
        try:
            parsed = parser.parse(artefact)
        except OSError as err:
            got.problems.append(artefact.error(f"cannot be read: {err}", advice="copy it again"))
            continue
        except (Exception, RecursionError) as err:
            got.problems.append(
                artefact.error(
                    f"the {parser.NAME} parser failed: {type(err).__name__}: {err}",
                    advice="please report this with the file",
                )
            )
            continue
        _add(parsed, got)
        kinds.append(parsed.looked[0].kind if parsed.looked else parser.MAKES[0])
    if kinds and not any(p.NAME in _SCANNED for p in chosen) and not looks_binary(head):
        try:
            got.observations.extend(text_shapes.look(artefact, kinds[0]))
        except OSError as err:
            got.problems.append(artefact.error(f"cannot be read: {err}", advice="copy it again"))


def _readers(head: bytes, artefact: Artefact) -> list[Parser]:
    """The parsers to read it with: one, or all whose outputs people paste into one text."""
    if sysfs.place_of(artefact) is not None:
        return [cast(Parser, sysfs)]
    best = choose(head, artefact.name)
    for parser in all_parsers():
        asked = getattr(parser, "ASKED", None)
        if asked is not None and artefact.asked and asked.search(artefact.asked):
            best = parser  # the command says what it is, though its output has no heading
    if best is None:
        return []
    if not getattr(best, "PASTED", False):
        return [best]
    others = []
    for parser in all_parsers():
        if parser is best:
            continue
        least = (
            _SURE if getattr(parser, "PASTED", False) else _LOG if parser.NAME == "job-log" else 0
        )
        if least and parser.sniff(head, artefact.name) >= least:
            others.append(parser)
    return [best, *others]


_SURE, _LOG = 80, 50
"""How sure a parser must be to read a text that another one knows better."""


def _parts(
    artefact: Artefact, head: bytes, whole: Sequence[Parser]
) -> list[tuple[Artefact, list[Parser]]]:
    """The outputs that were pasted into one text, each with its parsers; [] when it is one."""
    known = whole[0] if whole else None
    if known is not None and known.NAME in _OWN_FORM:
        return []
    if artefact.size > sections.MAX_BYTES or _DATA.match(head):
        return []
    if not _is_text(artefact, head) or artefact.name in bundle.OURS:
        return []
    data, cut = artefact.read(sections.MAX_BYTES)
    if cut or not sections.may_hold_parts(data):
        return []
    out: list[tuple[Artefact, list[Parser]]] = []
    copied = 0
    for part in sections.merged(sections.split(decode(data))):
        copied += part.first + len(part.text)
        if copied > sections.MAX_COPIED:
            return []
        one = _part(artefact, part)
        out.append((one, _readers(one.head(), one)))
    kinds = {readers[0].NAME for _, readers in out if readers}
    owners = {(one.hint.host, one.hint.rank) for one, readers in out if readers}
    mine = {(artefact.hint.host, artefact.hint.rank)}
    if not kinds or (owners <= mine and kinds <= {known.NAME if known else ""}):
        return []
    return out


def _part(artefact: Artefact, part: sections.Part) -> Artefact:
    """A part as an artefact of its own, with what its heading tells."""
    data = part.text.encode()
    file = part.file
    told = hint_of(file) if file else Hint()
    hint = artefact.hint
    return Artefact(
        artefact.path,
        file.rsplit("/", 1)[-1] if file else artefact.name,
        lambda: io.BytesIO(data),
        len(data),
        artefact.modified,
        replace(
            hint,
            rank=part.rank if part.rank is not None else (told.rank if file else hint.rank),
            host=part.host or told.host or hint.host,
            pid=told.pid if told.pid is not None else hint.pid,
        ),
        part.first - 1,
        part.asked,
    )


_DATA = re.compile(rb"\s*(?:\{|\[\s*[\[{\"]|\x80)")

_OWN_FORM = frozenset({"flight-recorder", "watch-files", "ras", "stack-bundles"})
"""Parsers of one artefact in a form of its own, in which headings stand for something else."""


def _other(artefact: Artefact, head: bytes, got: _Collected) -> None:
    """A file of no known kind: read if the library knows a line of it, else said to be unknown."""
    try:
        found = text_shapes.look(artefact, "other-text") if _is_text(artefact, head) else []
    except OSError as err:
        got.problems.append(artefact.error(f"cannot be read: {err}", advice="copy it again"))
        return
    by_origin = shapes.known().by_origin
    got.observations.extend(found)
    if all(by_origin[one.get("shape")].background for one in found):
        got.unrecognised.append(artefact.path)
    else:
        got.looked.append(artefact.source("other-text"))


_CODE = (".md", ".py", ".c", ".h", ".cc", ".cu", ".cpp", ".rs", ".go", ".js", ".html", ".css")
"""Files that tell of failures without showing one."""


def _is_text(artefact: Artefact, head: bytes) -> bool:
    nul = b"\0" in head[:4096] and head[:2] not in (b"\xff\xfe", b"\xfe\xff")
    told = artefact.name == "truth.json" or artefact.name.endswith(_CODE)
    return not (nul or told or looks_binary(head))


_SCANNED = frozenset({"job-log", "flight-recorder", "watch-files"})
"""Parsers that look for shapes themselves, or whose artefacts are no text for people."""


def _add(parsed: Parsed, got: _Collected) -> None:
    got.observations.extend(parsed.observations)
    got.problems.extend(parsed.errors)
    got.looked.extend(parsed.looked)


def choose(head: bytes, name: str) -> Parser | None:
    """The parser that is surest of these first bytes; None when none is."""
    if head[:1] == b"\x80" and flight_recorder.sniff(head, name) > _SURE:
        return cast(Parser, flight_recorder)  # no text: the others would search it in vain
    best: Parser | None = None
    score = 0
    for parser in all_parsers():
        try:
            mine = parser.sniff(head, name)
        except Exception:
            mine = 0
        if mine > score:
            best, score = parser, mine
    return best


def _told(artefact: Artefact, line: Evidence) -> Artefact:
    """The artefact with what the ledger says about it, which is surer than its name."""
    hint = artefact.hint
    told = Hint(
        hint.rank if line.rank is None else line.rank,
        line.host or hint.host,
        hint.pid if line.pid is None else line.pid,
        line.snapshot,
        hint.attempt,
        hint.local_rank,
    )
    return Artefact(
        artefact.path, artefact.name, artefact.opener, artefact.size, artefact.modified, told
    )


def _is_ledger(head: bytes) -> bool:
    first = head.split(b"\n", 1)[0]
    return first.startswith(b"{") and b'"source"' in first and b'"status"' in first


def _loose_ledger(artefact: Artefact, got: _Collected) -> None:
    data, _ = artefact.read(64 * 1024 * 1024)
    decoder = msgspec.json.Decoder(Evidence)
    folder = artefact.path.rpartition("/")[0]
    for number, raw in enumerate(data.split(b"\n"), 1):
        if raw.strip():
            try:
                _add_ledger([decoder.decode(raw)], folder, got)
            except (msgspec.MsgspecError, RecursionError) as err:
                got.problems.append(artefact.error(f"not a ledger line: {err}", str(number)))


def _reading(got: _Collected, roots: tuple[str, ...]) -> Reading:
    observations, looked = settle(
        got.observations, got.looked, got.by_path, got.modified, got.explicit
    )

    def of(kind: type[_T]) -> tuple[_T, ...]:
        return tuple(o for o in observations if isinstance(o, kind))

    return Reading(
        of(RankTrace),
        of(ProgressPage),
        of(RankStacks),
        of(ProcessState),
        of(Exit),
        of(PythonError),
        of(LogEvent),
        of(RasReport),
        of(GpuReport),
        of(LinkCounters),
        of(Stall),
        of(JobShape),
        of(Measured),
        looked,
        got.ledger,
        tuple(got.problems),
        roots,
        tuple(got.incidents),
        tuple(got.unrecognised),
    )


def versions_of(reading: Reading) -> dict[str, str]:
    """``nccl``, ``torch``, ``arch`` as far as the evidence says what was really loaded."""
    out: dict[str, str] = {}
    for shape in reading.shapes:
        for name, version in shape.versions:
            out.setdefault(name.lower(), version)
    for report in reading.ras:
        if report.nccl_version:
            out.setdefault("nccl", report.nccl_version)
    for trace in reading.traces:
        if trace.comm_lib_version and trace.backend == "nccl":
            out.setdefault("nccl", trace.comm_lib_version)
    for page in reading.pages:
        if page.torch_version:
            out.setdefault("torch", page.torch_version)
    for event in reading.events:
        if event.kind == "shape:version.reported" and event.get("of"):
            out.setdefault(event.get("of"), event.get("version"))
    return out
