"""Change the matcher in every small way, one at a time, and see whether a test notices.

    python tools/mutants.py                       # the matcher's modules, all operators
    python tools/mutants.py --only matching --list
    python tools/mutants.py --every 5 --skip 1    # a fifth of them, evenly over the lines
    python tools/mutants.py --known tests/signatures/equivalent-mutants.md

Each mutant is tried in a forked child with a deadline, which imports the changed module instead
of the real one and runs the matcher's own tests; no file is written. A mutant that a test notices
is killed. The others are printed as ``file:line: before -> after``; what ``--known`` names (the
text between back quotes, without the line number) is equivalent by judgement and not counted.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import copy
import importlib.abc
import importlib.machinery
import io
import itertools
import os
import re
import resource
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:] = [p for p in sys.path if Path(p or ".").resolve() != ROOT / "tools"]

MODULES = {
    "matching": "signatures/matching.py",
    "places": "signatures/places.py",
    "versions": "signatures/versions.py",
}
"""Short name -> file: what decides a grade, the places, and the order."""
TESTS = [
    "tests/signatures/test_signature_matching.py",
    "tests/signatures/test_signature_places.py",
    "tests/signatures/test_signature_versions.py",
]

_COMPARE: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Lt: (ast.LtE, ast.Gt),
    ast.LtE: (ast.Lt, ast.GtE),
    ast.Gt: (ast.GtE, ast.Lt),
    ast.GtE: (ast.Gt, ast.LtE),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
_BINARY: dict[type[ast.operator], tuple[type[ast.operator], ...]] = {
    ast.Add: (ast.Sub,),
    ast.Sub: (ast.Add,),
    ast.Mult: (ast.Div,),
    ast.Div: (ast.Mult,),
    ast.Mod: (ast.Div,),
    ast.BitAnd: (ast.BitOr,),
    ast.BitOr: (ast.BitAnd,),
}
_CALLS = {"any": "all", "all": "any", "min": "max", "max": "min"}


@dataclass(frozen=True)
class Mutant:
    """One change: where, what stood there, what stands there now, and the changed module."""

    file: str
    line: int
    before: str
    after: str
    tree: ast.Module

    @property
    def name(self) -> str:
        """What identifies it, wherever its line moves."""
        return f"{Path(self.file).stem}: {self.before} -> {self.after}"


def mutants(path: Path) -> Iterator[Mutant]:
    """Every mutant of a file, in the order of its lines."""
    source = path.read_text(encoding="utf-8")
    tree = ast.parse(source)
    count = sum(1 for _ in ast.walk(tree))
    skipped = _skipped(tree)
    for number in range(count):
        node = _nth(tree, number)
        if id(node) in skipped:
            continue
        for index, _ in enumerate(_changes(node)):
            changed = copy.deepcopy(tree)
            twin = _nth(changed, number)
            before = _text(twin)
            made = list(_changes(twin))[index]
            if made is not twin:
                _replace(changed, twin, made)
            after = _text(made)
            ast.fix_missing_locations(changed)
            where = path.relative_to(ROOT).as_posix()
            yield Mutant(where, getattr(node, "lineno", 0), before, after, changed)


def _nth(tree: ast.AST, number: int) -> ast.AST:
    for n, node in enumerate(ast.walk(tree)):
        if n == number:
            return node
    raise IndexError(number)


def _text(node: ast.AST) -> str:
    try:
        text = ast.unparse(node)
    except Exception:  # a part that has no text of its own
        text = ast.dump(node)
    return re.sub(r"\s+", " ", text)[:160]


def _skipped(tree: ast.Module) -> set[int]:
    """Docstrings, annotations, imports, decorators, and what only makes a class."""
    out: set[int] = set()
    for node in ast.walk(tree):
        parts: list[ast.AST | None] = []
        words = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if words or isinstance(node, ast.Import | ast.ImportFrom):
            parts = [node]
        elif isinstance(node, ast.FunctionDef):
            parts = [*node.decorator_list, node.returns]
            parts += [a.annotation for a in [*node.args.args, *node.args.kwonlyargs]]
        elif isinstance(node, ast.ClassDef):
            parts = [*node.decorator_list, *node.bases]
        elif isinstance(node, ast.AnnAssign):
            parts = [node.annotation]
        for part in parts:
            if part is not None:
                out |= {id(below) for below in ast.walk(part)}
    return out


def _changes(node: ast.AST) -> Iterator[ast.AST]:
    """The node in every other form; some forms are changes of a copy, none is of the node."""
    if isinstance(node, ast.Compare):
        for at, op in enumerate(node.ops):
            for other in _COMPARE.get(type(op), ()):
                new = copy.deepcopy(node)
                new.ops[at] = other()
                yield new
    elif isinstance(node, ast.BinOp):
        for kind in _BINARY.get(type(node.op), ()):
            yield ast.BinOp(node.left, kind(), node.right)
    elif isinstance(node, ast.BoolOp):
        other_op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        yield ast.BoolOp(other_op, node.values)
        for at in range(len(node.values)):
            rest = [v for n, v in enumerate(node.values) if n != at]
            yield rest[0] if len(rest) == 1 else ast.BoolOp(node.op, rest)
    elif isinstance(node, ast.UnaryOp):
        yield node.operand
    elif isinstance(node, ast.AugAssign):
        for kind in _BINARY.get(type(node.op), ()):
            yield ast.AugAssign(node.target, kind(), node.value)
        yield ast.Assign([node.target], node.value)
    elif isinstance(node, ast.Assign):
        if not (isinstance(node.value, ast.Constant) and node.value.value is None):
            yield ast.Assign(node.targets, ast.Constant(None))
    elif isinstance(node, ast.AnnAssign) and node.value is not None:
        yield ast.AnnAssign(node.target, node.annotation, ast.Constant(None), node.simple)
    elif isinstance(node, ast.Return):
        if node.value is not None and not _is_none(node.value):
            yield ast.Return(ast.Constant(None))
    elif isinstance(node, ast.If | ast.While | ast.IfExp):
        new = copy.deepcopy(node)
        new.test = ast.UnaryOp(ast.Not(), new.test)
        yield new
        for value in (True, False):
            new = copy.deepcopy(node)
            new.test = ast.Constant(value)
            if not (isinstance(node, ast.While) and value):
                yield new
    elif isinstance(node, ast.comprehension):
        for at in range(len(node.ifs)):
            new = copy.deepcopy(node)
            new.ifs.pop(at)
            yield new
            new = copy.deepcopy(node)
            new.ifs[at] = ast.UnaryOp(ast.Not(), new.ifs[at])
            yield new
    elif isinstance(node, ast.Constant):
        yield from _constants(node)
    elif isinstance(node, ast.Call):
        yield from _calls(node)
    elif isinstance(node, ast.Continue):
        yield ast.Break()
    elif isinstance(node, ast.Break):
        yield ast.Continue()
    elif isinstance(node, ast.Lambda):
        yield ast.Lambda(node.args, ast.Constant(None))
    elif isinstance(node, ast.Slice):
        for part in ("lower", "upper", "step"):
            if getattr(node, part) is not None:
                new = copy.deepcopy(node)
                setattr(new, part, None)
                yield new


def _is_none(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _constants(node: ast.Constant) -> Iterator[ast.AST]:
    value = node.value
    if isinstance(value, bool):
        yield ast.Constant(not value)
    elif isinstance(value, int | float):
        yield ast.Constant(value + 1)
        yield ast.Constant(value - 1)
    elif isinstance(value, str):
        yield ast.Constant(f"XX{value}XX")
    elif value is None:
        yield ast.Constant("")


def _calls(node: ast.Call) -> Iterator[ast.AST]:
    if isinstance(node.func, ast.Name) and node.func.id in _CALLS:
        yield ast.Call(ast.Name(_CALLS[node.func.id], ast.Load()), node.args, node.keywords)
    for at, one in enumerate(node.args):
        if not _is_none(one) and not isinstance(one, ast.Starred):
            args = [*node.args]
            args[at] = ast.Constant(None)
            yield ast.Call(node.func, args, node.keywords)
        if len(node.args) > 1:
            yield ast.Call(node.func, [*node.args[:at], *node.args[at + 1 :]], node.keywords)
    for at in range(len(node.keywords)):
        rest = [*node.keywords[:at], *node.keywords[at + 1 :]]
        yield ast.Call(node.func, node.args, rest)


def _replace(tree: ast.AST, old: ast.AST, new: ast.AST) -> None:
    for parent in ast.walk(tree):
        for name, value in ast.iter_fields(parent):
            if value is old:
                setattr(parent, name, new)
                return
            if isinstance(value, list):
                for at, item in enumerate(value):
                    if item is old:
                        value[at] = new
                        return


# ---------------------------------------------------------------------- trying one


class _Instead(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports one module from a tree."""

    def __init__(self, name: str, mutant: Mutant) -> None:
        self.name, self.mutant = name, mutant

    def find_spec(self, name, path=None, target=None):  # type: ignore[no-untyped-def]
        """Ours, or nobody's."""
        if name != self.name:
            return None
        return importlib.machinery.ModuleSpec(name, self, origin=str(ROOT / self.mutant.file))

    def exec_module(self, module):  # type: ignore[no-untyped-def]
        """Run the changed code."""
        module.__file__ = str(ROOT / self.mutant.file)
        exec(compile(self.mutant.tree, module.__file__, "exec"), module.__dict__)


def survives(mutant: Mutant, tests: list[str], limit: float) -> bool:
    """Whether all tests pass with the mutant; endless ones are ended and count as noticed.

    ``limit`` is in seconds of the child's own CPU: on a busy machine a slow child is not endless.
    One that waits without computing is ended after 20 times as long by the clock.
    """
    child = os.fork()
    if child == 0:
        resource.setrlimit(resource.RLIMIT_CPU, (int(limit) + 1, int(limit) + 2))
        os._exit(_try(mutant, tests))
    end = time.monotonic() + 20 * limit
    while time.monotonic() < end:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status) == 0
        time.sleep(0.01)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return False


def _try(mutant: Mutant, tests: list[str]) -> int:
    import pytest

    name = "fabwatch." + mutant.file.removesuffix(".py").replace("/", ".")
    quiet = io.StringIO()
    try:
        sys.meta_path.insert(0, _Instead(name, mutant))
        with contextlib.redirect_stdout(quiet), contextlib.redirect_stderr(quiet):
            options = ["-x", "-q", "-p", "no:cacheprovider", "-o", "timeout=0"]
            return int(pytest.main([*options, "--no-header", *tests]))
    except BaseException:
        return 9


def known(path: Path) -> set[str]:
    """Names of mutants that a person judged equivalent: list items that begin with a back quote."""
    return set(re.findall(r"^- `` (.+?) ``", path.read_text(encoding="utf-8"), re.M))


def main(argv: list[str]) -> int:
    """Print the survivors and the figures; 1 when fewer than ``--least`` per cent are killed."""
    parser = argparse.ArgumentParser(prog="tools/mutants.py", description=__doc__.split("\n")[0])
    parser.add_argument("--only", choices=sorted(MODULES), action="append")
    parser.add_argument("--known", type=Path, help="a page of equivalent mutants")
    parser.add_argument("--list", action="store_true", help="print the mutants and end")
    parser.add_argument("--least", type=float, default=95.0, metavar="PERCENT")
    parser.add_argument(
        "--limit", type=float, default=20.0, metavar="SECONDS", help="of CPU for each"
    )
    parser.add_argument("--every", type=int, default=1, metavar="N", help="only each Nth mutant")
    parser.add_argument("--skip", type=int, default=0, metavar="N", help="begin after N mutants")
    parser.add_argument("--lines", help="only mutants of lines A-B")
    given = parser.parse_args(argv)
    import hypothesis  # noqa: F401 - once, before the forks, with all that is never changed
    import pytest  # noqa: F401

    import fabwatch.signatures.model
    import fabwatch.watchdog.evidence.shapes  # noqa: F401

    os.chdir(ROOT)
    tests = [one for one in TESTS if Path(one).exists()]
    for name in given.only or MODULES:
        path = ROOT / MODULES[name]
        same = Mutant(MODULES[name], 1, "", "", ast.parse(path.read_text(encoding="utf-8")))
        if not given.list and not survives(same, tests, 10 * given.limit):
            print(f"{MODULES[name]}: the tests fail without any change", file=sys.stderr)
            return 2
    excused = known(given.known) if given.known else set()
    low, high = map(int, given.lines.split("-")) if given.lines else (0, 1 << 30)
    total = killed = equivalent = 0
    for name in given.only or MODULES:
        for one in itertools.islice(mutants(ROOT / MODULES[name]), given.skip, None, given.every):
            if not low <= one.line <= high:
                continue
            if given.list:
                print(f"{one.file}:{one.line}: {one.before} -> {one.after}")
                continue
            total += 1
            if not survives(one, tests, given.limit):
                killed += 1
                if one.name in excused:
                    print(f"{one.file}:{one.line}: is killed, but called equivalent: {one.name}")
            elif one.name in excused:
                equivalent += 1
            else:
                print(f"{one.file}:{one.line}: {one.before} -> {one.after}", flush=True)
    if given.list:
        return 0
    judged = max(total - equivalent, 1)
    share = 100 * killed / judged
    print(
        f"{total} mutants, {equivalent} equivalent, {killed} of the other {total - equivalent} "
        f"killed ({share:.1f} %)"
    )
    return 0 if share >= given.least else 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
