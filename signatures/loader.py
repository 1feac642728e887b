"""Reads the library: strict YAML files to signatures, with located errors, all at once."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from fabwatch.signatures import installed, kept, model
from fabwatch.signatures.model import (
    Case,
    Clue,
    Confusable,
    Grade,
    Library,
    Mitigation,
    Signature,
)
from fabwatch.signatures.shapes import (
    check,
    check_together,
    is_shared,
    read_shapes,
    read_shared,
)
from fabwatch.signatures.strict_yaml import Problems, Reader, Tree, parse, scalar
from fabwatch.signatures.versions import bad_range
from fabwatch.watchdog.evidence import facts as evidence_facts
from fabwatch.watchdog.evidence import shapes as evidence_shapes
from fabwatch.watchdog.evidence import vocabulary as evidence_vocabulary
from fabwatch.watchdog.evidence.facts import Fact, Where
from fabwatch.watchdog.evidence.shapes import Shape, known_of, learn
from fabwatch.watchdog.evidence.vocabulary import VOCABULARY

HOME = Path(__file__).parent / "library"
"""The signatures that come with fabwatch."""
SHARED = Path(__file__).parent / "shapes"
"""Files of line shapes that several of them use."""

_ID = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
_PLACES = ("ranks", "hosts", "devices", "links")


class LibraryError(ValueError):
    """The library has errors; ``problems`` holds one ``file:line: text`` for each of them."""

    def __init__(self, problems: list[str]) -> None:
        self.problems = problems
        super().__init__("\n".join(problems))


def load(*folders: str | Path, builtin: bool = True, packages: bool = False) -> Library:
    """All signatures of the built-in library and of ``folders`` (searched for ``*.yaml``).

    ``packages``: also the folders that installed packages offer, before ``folders``. A file may
    replace a built-in signature by using its id. A look-alike among the built-in ones need not
    name a signature of such a folder in turn: it is made to. Raises LibraryError with every
    located problem of every file, or OSError for a folder that cannot be listed.
    """
    offered, problems = installed.folders() if packages else ([], [])
    every = [*offered, *map(Path, folders)]
    if builtin and not every and not problems:
        return _builtin()
    found: dict[str, Signature] = dict(_builtin().signatures) if builtin else {}
    mine, wrong = read_folders(every)
    found.update(mine)
    _name_in_turn(found, mine)
    problems += [*wrong, *check_links(found)]
    if problems:
        raise LibraryError(problems)
    return Library(dict(sorted(found.items())))


def _name_in_turn(found: dict[str, Signature], mine: Iterable[str]) -> None:
    """Where one side of a look-alike is the user's and only one side names it, both do."""
    own = set(mine)
    for one in list(found.values()):
        for other in one.confusable_with:
            twin = found.get(other.id)
            if twin is None or (one.id in own) == (twin.id in own):
                continue
            if one.id not in {back.id for back in twin.confusable_with}:
                back = Confusable(one.id, other.because, other.tell_apart)
                found[twin.id] = replace(twin, confusable_with=(*twin.confusable_with, back))


@lru_cache(maxsize=1)
def _builtin() -> Library:
    files = list(_files([HOME, SHARED], []))
    key = kept.key_of([*files, *_READERS])
    if (had := kept.get(key)) is not None:
        for name, mine in had.shapes.items():
            learn(name, mine)
        return Library({one.id: replace(one, shapes=known_of(one.path)) for one in had.signatures})
    found, problems = read_folders([HOME, SHARED], samples=False)
    problems += check_links(found)
    if problems:
        raise LibraryError(problems)
    ordered = [replace(one, shapes=()) for _, one in sorted(found.items())]
    declared = {str(path): known_of(str(path)) for path in files}
    kept.put(key, kept.Kept(tuple(ordered), {k: v for k, v in declared.items() if v}))
    return Library(dict(sorted(found.items())))


_CODE = Path(__file__).parent
_READERS = [
    *(_CODE / f"{name}.py" for name in ("loader", "model", "shapes", "strict_yaml", "versions")),
    *(Path(str(one.__file__)) for one in (evidence_facts, evidence_shapes, evidence_vocabulary)),
]
"""The code that what is kept depends on."""


def read_folders(
    folders: Iterable[str | Path], samples: bool = True
) -> tuple[dict[str, Signature], list[str]]:
    """Signatures by id, and all problems; an id used twice among ``folders`` is a problem.

    Shapes are read first, whichever file declares them, and become known to readers of text.
    ``samples`` False leaves out trying the samples of shapes, which is for tests.
    """
    found: dict[str, Signature] = {}
    problems: list[str] = []
    trees: list[tuple[Path, Tree, Problems]] = []
    shapes: dict[str, tuple[Shape, ...]] = {}
    for path in _files(folders, problems):
        own = Problems(str(path))
        try:
            tree = parse(path.read_text(encoding="utf-8"), own)
        except (OSError, UnicodeDecodeError) as err:
            own.add(0, f"cannot be read: {err}")
            tree = None
        if tree is None:
            problems += own.found
            continue
        mine = _shapes(tree, own)
        if mine:
            shapes[str(path)] = mine
            learn(str(path), () if own.found else mine)
        if is_shared(tree):
            problems += own.found
        else:
            trees.append((path, tree, own))
    if samples:
        problems += [text for mine in shapes.values() for text in check(mine)]
    problems += check_together(shapes)
    for path, tree, own in trees:
        signature = _signature(Reader(tree, own, "a signature"), str(path))
        own.found = unfilled(tree, str(path), own.found)
        problems += own.found
        if own.found:
            continue
        if signature.id in found:
            first = found[signature.id].path
            problems.append(f"{path}:1: the id {signature.id!r} is taken by {first}")
        else:
            found[signature.id] = signature
    return found, problems


def _files(folders: Iterable[str | Path], problems: list[str]) -> Iterator[Path]:
    for folder in map(Path, folders):
        if not folder.is_dir():
            problems.append(f"{folder}:0: no such folder of signatures")
            continue
        yield from sorted(p for p in folder.rglob("*.y*ml") if p.suffix in (".yaml", ".yml"))


def read(path: Path) -> tuple[Signature | None, list[str]]:
    """The signature in ``path`` and the problems found; None if there are any."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as err:
        return None, [f"{path}:0: cannot be read: {err}"]
    return read_text(text, str(path))


def read_text(text: str, path: str) -> tuple[Signature | None, list[str]]:
    """The signature in ``text``; ``path`` is what problems print."""
    problems = Problems(path)
    tree = parse(text, problems)
    if tree is None:
        return None, problems.found
    shapes = _shapes(tree, problems)
    if shapes:
        learn(path, () if problems.found else shapes)
        problems.found += [*check(shapes), *check_together({path: shapes})]
    signature = _signature(Reader(tree, problems, "a signature"), path)
    problems.found = unfilled(tree, path, problems.found)
    return (None, problems.found) if problems.found else (signature, [])


_TODO = re.compile(r"\bTODO\b")


def unfilled(tree: Tree, path: str, found: list[str]) -> list[str]:
    """``found`` with every TODO that a draft still holds, by line; it stands for its follow-ups."""
    todos = {line: text for line, text in _todos(tree)}
    if not todos:
        return found
    told = [f"{path}:{line}: still to be filled in: {text}" for line, text in todos.items()]
    rest = [text for text in found if _line_of(text, path) not in todos]
    return sorted([*told, *rest], key=lambda text: _line_of(text, path))


def _todos(tree: Tree, key: str = "") -> Iterator[tuple[int, str]]:
    if isinstance(tree.value, str):
        if _TODO.search(tree.value):
            text = " ".join(tree.value.split())
            yield tree.line, f"{key}: {text}" if key else text
    elif isinstance(tree.value, list):
        for one in tree.value:
            yield from _todos(one, key)
    else:
        for name, one in tree.value.items():
            yield from _todos(one, name)


def _line_of(problem: str, path: str) -> int:
    line = problem.removeprefix(f"{path}:").split(":", 1)[0]
    return int(line) if line.isdigit() else 0


def _shapes(tree: Tree, problems: Problems) -> tuple[Shape, ...]:
    """What a file declares under ``shapes``, be it a signature or a shared file."""
    if is_shared(tree):
        return read_shared(tree, problems)
    if not isinstance(tree.value, dict) or "shapes" not in tree.value:
        return ()
    only = Tree({"shapes": tree.value["shapes"]}, tree.line)
    return read_shapes(Reader(only, problems, "a signature").items("shapes"), problems)


def _signature(top: Reader, path: str) -> Signature:
    schema = top.text("schema", required=True)
    if schema and schema != "1":
        top.complain(f"schema {schema!r} is not known; this reads schema 1")
    name = top.text("id", required=True)
    if name and not _ID.fullmatch(name):
        top.complain(f"the id {name!r} must be kebab-case")
    if name and Path(path).suffix and Path(path).stem != name:
        top.complain(f"the file must be called {name}.yaml")
    clues = tuple(_clue(item, top.problems) for item in top.items("clues", required=True))
    _check_clues(clues, top)
    blames = top.texts("blames") or model.BLAMES[:-1]
    for blame in blames:
        if blame not in model.BLAMES:
            top.complain(f"'blames' may hold {', '.join(model.BLAMES)}, not {blame!r}")
    out = Signature(
        id=name,
        title=top.text("title", required=True),
        layer=_layer(top),
        symptom=top.text("symptom", required=True, one_of=model.SYMPTOMS),
        summary=top.text("summary", required=True),
        playbook=top.text("playbook", required=True),
        clues=clues,
        status=top.text("status", one_of=model.STATUSES) or "tested",
        aliases=top.texts("aliases"),
        parents=top.texts("parents"),
        explains=top.texts("explains"),
        blames=blames,
        names_cause=top.flag("names_cause", default=True),
        reproduce=top.text("reproduce"),
        applies_to=_applies_to(top),
        confusable_with=tuple(
            _confusable(item, top.problems) for item in top.items("confusable_with")
        ),
        mitigations=tuple(_mitigation(item, top.problems) for item in top.items("mitigations")),
        capture_next=top.texts("capture_next"),
        references=top.texts("references", required=True),
        cases=tuple(_case(item, top.problems) for item in top.items("tests", required=True)),
        path=path,
        shapes=known_of(path),
    )
    top.take("shapes")
    top.done()
    return out


def _layer(top: Reader) -> str:
    said = top.text("layer", required=True, one_of=(*model.LAYERS, *model.LAYER_NAMES))
    return model.LAYER_NAMES.get(said, said)


def _applies_to(top: Reader) -> tuple[tuple[str, str], ...]:
    tree = top.take("applies_to")
    if tree is None:
        return ()
    reader = Reader(tree, top.problems, "applies_to")
    out = []
    for key in sorted(reader.left):
        wanted = reader.text(key)
        if not wanted:
            continue
        if problem := bad_range(key, wanted):
            reader.complain(problem)
        out.append((key, wanted))
    return tuple(out)


def _fact_name(reader: Reader, name: str) -> str:
    if name and name not in VOCABULARY:
        reader.complain(f"no fact is called {name!r}; see watchdog/evidence/vocabulary.py")
    return name


def _clue(tree: Tree, problems: Problems) -> Clue:
    reader = Reader(tree, problems, "a clue")
    detail: list[tuple[str, tuple[str, ...]]] = []
    wanted = reader.take("detail")
    if wanted is not None:
        inner = Reader(wanted, problems, "detail")
        detail = [(key, inner.texts(key, required=True)) for key in sorted(inner.left)]
    clue = Clue(
        fact=_fact_name(reader, reader.text("fact", required=True)),
        name=reader.text("name"),
        on=reader.text("on"),
        required=reader.flag("required"),
        present=reader.number("present"),
        absent=reader.number("absent"),
        group=reader.text("group"),
        detail=tuple(detail),
        why=reader.text("why", required=True),
        line=tree.line,
    )
    if not clue.required and not clue.present and not clue.absent:
        reader.complain("the clue weighs nothing: give 'present', 'absent' or 'required'")
    if clue.name and clue.on:
        reader.complain("a clue either binds ('name') or looks at a binding ('on'), not both")
    reader.done()
    return clue


def _check_clues(clues: tuple[Clue, ...], top: Reader) -> None:
    bound: set[str] = set()
    for clue in clues:
        if clue.on and clue.on not in bound:
            top.complain(f"no earlier clue is called {clue.on!r}", clue.line)
        if clue.name:
            bound.add(clue.name)
    if clues and not any(clue.required for clue in clues):
        top.complain("no clue is required; without one the signature fits everything")


def _confusable(tree: Tree, problems: Problems) -> Confusable:
    reader = Reader(tree, problems, "a look-alike")
    out = Confusable(
        id=reader.text("id", required=True),
        because=reader.text("because", required=True),
        tell_apart=tuple(
            _fact_name(reader, name) for name in reader.texts("tell_apart", required=True)
        ),
    )
    reader.done()
    return out


def _mitigation(tree: Tree, problems: Problems) -> Mitigation:
    reader = Reader(tree, problems, "a mitigation")
    keys = ("id", "do", "scope", "risk", "check", "undo", "undo_when")
    out = Mitigation(**{key: reader.text(key, required=True) for key in keys})
    reader.done()
    return out


def _case(tree: Tree, problems: Problems) -> Case:
    reader = Reader(tree, problems, "a test")
    name = reader.text("name", required=True)
    facts: list[Fact] = []
    wanted = reader.take("facts", required=True)
    if wanted is not None:
        inner = Reader(wanted, problems, "facts")
        for key, value in inner.left.items():
            _fact_name(inner, key)
            for one in value.value if isinstance(value.value, list) else [value]:
                facts.append(_fact(key, one, problems))
    unknown = tuple(_fact_name(reader, one) for one in reader.texts("unknown"))
    expect = reader.text("expect", required=True, one_of=tuple(g.value for g in Grade))
    where = _where(reader)
    hosts: list[tuple[int, str]] = []
    host_map = reader.take("host_of")
    if host_map is not None:
        inner = Reader(host_map, problems, "host_of")
        hosts = [(_rank(key, inner), inner.text(key)) for key in sorted(inner.left)]
    reader.done()
    grades = {g.value: g for g in Grade}
    return Case(
        name, tuple(facts), unknown, grades.get(expect, Grade.POSSIBLE), where, tuple(hosts),
        tree.line,
    )  # fmt: skip


def _rank(text: str, reader: Reader) -> int:
    if not text.isdigit():
        reader.complain(f"{text!r} is no rank")
        return 0
    return int(text)


def _where(reader: Reader) -> Where | None:
    if not any(place in reader.left for place in _PLACES):
        return None
    ranks = sorted({_rank(one, reader) for one in reader.texts("ranks")})
    hosts, devices, links = (tuple(sorted(set(reader.texts(p)))) for p in _PLACES[1:])
    return Where(tuple(ranks), hosts, devices, links)


def _fact(name: str, tree: Tree, problems: Problems) -> Fact:
    reader = Reader(tree, problems, f"the fact {name}")
    where = _where(reader) or Where()
    cites = reader.texts("cites")
    detail = tuple((key, scalar(value)) for key, value in sorted(reader.left.items()))
    return Fact(name, where, detail, cites)


def check_links(found: dict[str, Signature]) -> list[str]:
    """Problems of signatures with each other: unknown ids, one-sided look-alikes, rings."""
    problems: list[str] = []
    library = Library(found)
    for one in found.values():
        here = f"{one.path}:1: {one.id}"
        for what, names in (("parents", one.parents), ("explains", one.explains)):
            for name in names:
                if name not in found:
                    problems.append(f"{here}: {what} names {name!r}, which does not exist")
        for other in one.confusable_with:
            if other.id not in found:
                problems.append(f"{here}: the look-alike {other.id!r} does not exist")
            elif one.id not in {back.id for back in found[other.id].confusable_with}:
                problems.append(f"{here}: {other.id} does not name it as a look-alike in turn")
        if one.id in library.ancestors(one.id):
            problems.append(f"{here}: is its own ancestor")
    return problems
