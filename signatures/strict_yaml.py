"""Reads YAML without guessing: scalars stay text, doubled keys and other surprises are errors.

YAML 1.1 turns ``12:30:45`` into 45045, ``2.20`` into 2.2 and ``no`` into false. Here a scalar is
the text that stands in the file; whoever wants a number asks for one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

_TAGS = frozenset(
    f"tag:yaml.org,2002:{name}"
    for name in ["str", "int", "float", "bool", "null", "timestamp", "merge", "value", "seq", "map"]
)
"""Tags that YAML gives by itself; any other was written by hand, and is refused."""
_NUMBER = re.compile(r"-?\d+(\.\d+)?")


@dataclass(frozen=True, slots=True)
class Tree:
    """A value with its line (from 1): text, a list of trees, or a mapping of trees."""

    value: str | list[Tree] | dict[str, Tree]
    line: int
    quoted: bool = False


class Problems:
    """Located errors of one file, collected so that all can be told at once."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.found: list[str] = []

    def add(self, line: int, text: str) -> None:
        """Remember ``path:line: text``."""
        self.found.append(f"{self.path}:{line}: {text}")


def parse(text: str, problems: Problems) -> Tree | None:
    """The tree of the one document in ``text``; None, and a problem, when it is no YAML."""
    import yaml  # not at the top: a kept library needs none

    loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        node = yaml.compose(text, Loader=loader)
    except yaml.YAMLError as err:
        mark = getattr(err, "problem_mark", None)
        what = getattr(err, "problem", None) or str(err)
        problems.add(mark.line + 1 if mark else 1, f"no YAML: {what}")
        return None
    if node is None:
        problems.add(1, "the file is empty")
        return None
    return _tree(node, problems, set())


def _tree(node: Any, problems: Problems, above: set[int]) -> Tree:
    line = node.start_mark.line + 1
    if id(node) in above:
        problems.add(line, "a YAML alias that contains itself; write the value out")
        return Tree("", line)
    if node.tag not in _TAGS:
        problems.add(line, f"the tag {node.tag} is not allowed here; remove it")
    above = above | {id(node)}
    if node.id == "sequence":
        return Tree([_tree(one, problems, above) for one in node.value], line)
    if node.id == "mapping":
        return Tree(_mapping(node, problems, above), line)
    style = getattr(node, "style", None)
    return Tree(str(node.value), line, quoted=style in ("'", '"', "|", ">"))


def _mapping(node: Any, problems: Problems, above: set[int]) -> dict[str, Tree]:
    out: dict[str, Tree] = {}
    for key, value in node.value:
        line = key.start_mark.line + 1
        if key.id != "scalar":
            problems.add(line, "a key must be plain text")
        elif key.value == "<<":
            problems.add(line, "merge keys (<<) are not allowed; write the keys out")
        elif key.value in out:
            problems.add(line, f"the key {key.value!r} stands here for the second time")
        else:
            out[key.value] = _tree(value, problems, above)
    return out


class Reader:
    """A mapping being read by a schema: typed access, and complaints about what is left over."""

    def __init__(self, tree: Tree, problems: Problems, what: str) -> None:
        self.problems = problems
        self.what = what
        self.line = tree.line
        self.left: dict[str, Tree] = {}
        if isinstance(tree.value, dict):
            self.left = dict(tree.value)
        else:
            problems.add(tree.line, f"{what} must be a mapping")

    def complain(self, text: str, line: int | None = None) -> None:
        """Remember a problem at ``line``, or at the start of this mapping."""
        self.problems.add(self.line if line is None else line, text)

    def take(self, key: str, required: bool = False) -> Tree | None:
        """The raw tree under ``key``; a complaint if it is required and missing."""
        tree = self.left.pop(key, None)
        if tree is None and required:
            self.complain(f"{self.what} needs {key!r}")
        return tree

    def text(self, key: str, required: bool = False, one_of: tuple[str, ...] = ()) -> str:
        """Text, stripped; "" when missing or wrong (a complaint then says so)."""
        tree = self.take(key, required)
        if tree is None:
            return ""
        if not isinstance(tree.value, str):
            self.complain(f"{key!r} must be text", tree.line)
            return ""
        value = tree.value.strip()
        if required and not value:
            self.complain(f"{key!r} must not be empty", tree.line)
        elif one_of and value not in one_of:
            self.complain(f"{key!r} is {value!r}; it must be one of {', '.join(one_of)}", tree.line)
        return value

    def flag(self, key: str, default: bool = False) -> bool:
        """``true`` or ``false``, nothing else."""
        tree = self.take(key)
        if tree is None:
            return default
        if tree.value not in ("true", "false"):
            self.complain(f"{key!r} must be true or false", tree.line)
        return tree.value == "true"

    def number(self, key: str, default: float = 0.0) -> float:
        """A decimal number such as 20, -3 or 2.5."""
        tree = self.take(key)
        if tree is None:
            return default
        if not isinstance(tree.value, str) or not _NUMBER.fullmatch(tree.value):
            self.complain(f"{key!r} must be a number", tree.line)
            return default
        return float(tree.value)

    def texts(self, key: str, required: bool = False) -> tuple[str, ...]:
        """A list of texts; one text stands for a list of one."""
        tree = self.take(key, required)
        if tree is None:
            return ()
        items = tree.value if isinstance(tree.value, list) else [tree]
        out = []
        for item in items:
            if isinstance(item.value, str) and item.value.strip():
                out.append(item.value.strip())
            else:
                self.complain(f"{key!r} must hold texts", item.line)
        if required and not out:
            self.complain(f"{key!r} must not be empty", tree.line)
        return tuple(out)

    def items(self, key: str, required: bool = False) -> list[Tree]:
        """A list of trees."""
        tree = self.take(key, required)
        if tree is None:
            return []
        if not isinstance(tree.value, list):
            self.complain(f"{key!r} must be a list", tree.line)
            return []
        return tree.value

    def done(self) -> None:
        """Complain about every key that nobody asked for."""
        for key, tree in self.left.items():
            self.complain(f"{self.what} does not know the key {key!r}", tree.line)


def scalar(tree: Tree) -> str | int | float | bool:
    """The value of an unquoted scalar as a fact's detail holds it: number, flag, else text."""
    text = tree.value if isinstance(tree.value, str) else ""
    if tree.quoted:
        return text
    if text in ("true", "false"):
        return text == "true"
    if _NUMBER.fullmatch(text):
        return float(text) if "." in text else int(text)
    return text
