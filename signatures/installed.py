"""Finds folders of signatures that installed packages offer, without importing any of them.

A package offers its folder by an entry point of the group ``fabwatch.signatures``:
``[project.entry-points."fabwatch.signatures"]``, ``acme = "acme_failures.library"`` is the folder
``library`` inside the package ``acme_failures``. Nothing of the package is executed.
"""

from __future__ import annotations

import importlib.util
import re
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

GROUP = "fabwatch.signatures"


def folders() -> tuple[list[Path], list[str]]:
    """The folders by name of the entry point, and one problem for each that is not there."""
    found: list[Path] = []
    problems: list[str] = []
    for point in sorted(entry_points(group=GROUP), key=lambda one: (one.name, one.value)):
        folder, problem = _folder(point)
        if folder is None:
            problems.append(f"{_said(point)}: {problem}")
        elif folder not in found:
            found.append(folder)
    return found, problems


def _folder(point: EntryPoint) -> tuple[Path | None, str]:
    steps = [step for step in re.split(r"[.:]", point.value.split("[")[0].strip()) if step]
    if not steps or not all(step.isidentifier() for step in steps):
        return None, "it must name a package and folders in it, as in acme.library"
    try:
        spec = importlib.util.find_spec(steps[0])
    except (ImportError, ValueError, AttributeError) as err:
        return None, f"the package {steps[0]} cannot be looked for: {err}"
    if spec is None:
        return None, f"there is no package {steps[0]}"
    homes = [Path(home) for home in spec.submodule_search_locations or ()]
    for home in homes:
        folder = home.joinpath(*steps[1:])
        if folder.is_dir():
            return folder, ""
    return None, f"there is no folder {'/'.join(steps)}; is it part of the package's data?"


def _said(point: EntryPoint) -> str:
    """``acme-failures 1.2: entry point acme = acme.library``, as a person finds it."""
    dist = point.dist
    name = f"{dist.metadata['Name']} {dist.version}" if dist is not None else "an installed package"
    return f"{name}: entry point {point.name} = {point.value} [{GROUP}]"
