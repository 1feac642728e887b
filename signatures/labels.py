"""Reads labelled evidence: folders or bundles of which somebody knows what was wrong.

A ``truth.json`` labels its own folder, or, with names of folders as keys, those beside it. A
``truth.yaml`` labels the ``NAME.tar.gz`` beside it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fabwatch.signatures.model import LAYER_NAMES
from fabwatch.signatures.strict_yaml import Problems, Tree, parse


@dataclass(frozen=True)
class Case:
    """One labelled piece of evidence. ``right`` are the acceptable ids, none for a healthy job.

    ``expected`` says which answer is asked: name-the-cause, healthy, or a word for undecidable.
    """

    name: str
    folder: Path
    cause: str
    right: tuple[str, ...]
    layer: str
    expected: str
    ranks: tuple[int, ...] | None = None
    fabric: str = ""
    symptom: str = ""


def cases(folder: Path) -> Iterator[Case]:
    """Every labelled case below ``folder``, sorted by the path of its label.

    Raises ValueError, naming file and reason, for a label that cannot be read.
    """
    for path in sorted([*folder.rglob("truth.json"), *folder.rglob("truth.yaml")]):
        truth = _truth(path)
        if path.suffix == ".yaml":
            for name, one in sorted(truth.items()):
                bundle = path.with_name(f"{name}.tar.gz")
                if bundle.is_file() and isinstance(one, dict):
                    yield _case(bundle, folder, one)
        elif all(isinstance(one, dict) for one in truth.values()):
            for name, one in sorted(truth.items()):
                if (path.parent / name).is_dir():
                    yield _case(path.parent / name, folder, one)
        else:
            yield _case(path.parent, folder, truth)


def evidence(case: Case) -> list[Path]:
    """The files of a case that a person would have; never its label."""
    if case.folder.is_file():
        return [case.folder]
    return [p for p in sorted(case.folder.iterdir()) if p.name != "truth.json"]


def _truth(path: Path) -> dict[str, Any]:
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".yaml":
        problems = Problems(str(path))
        tree = parse(text, problems)
        found = None if tree is None or problems.found else _plain(tree)
        told = problems.found[0] if problems.found else f"{path}:1: is no mapping"
    else:
        try:
            found, told = json.loads(text), f"{path}:1: is no mapping"
        except ValueError as err:
            raise ValueError(f"{path}: no JSON: {err}") from None
    if not isinstance(found, dict):
        raise ValueError(told)
    return found


def _plain(tree: Tree) -> Any:
    if isinstance(tree.value, dict):
        return {key: _plain(one) for key, one in tree.value.items()}
    if isinstance(tree.value, list):
        return [_plain(one) for one in tree.value]
    return int(tree.value) if tree.value.isdigit() and not tree.quoted else tree.value


def _case(where: Path, folder: Path, truth: dict[str, Any]) -> Case:
    cause = str(truth.get("cause_id") or "")
    right = [*map(str, _first(truth, "acceptable_cause_ids", "signatures", "accept") or [])]
    expected = str(truth.get("expected_answer") or "name-the-cause")
    if not cause and not right:
        expected = "healthy"
    elif cause and expected == "name-the-cause" and cause not in right:
        right = [cause, *right]
    ranks = _first(truth, "culprit_ranks", "ranks")
    layer = str(truth.get("layer") or "")
    return Case(
        where.relative_to(folder).as_posix(),
        where,
        cause or (right[0] if right else "healthy"),
        tuple(right),
        LAYER_NAMES.get(layer, layer),
        expected,
        tuple(ranks) if isinstance(ranks, list) else None,
        str(truth.get("fabric") or ""),
        str(truth.get("symptom") or ""),
    )


def _first(truth: dict[str, Any], *keys: str) -> Any:
    return next((truth[key] for key in keys if truth.get(key) is not None), None)
