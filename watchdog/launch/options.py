"""What a user may ask of the wrapper, from command line, environment and configuration file."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

TRUE = frozenset({"1", "true", "yes", "on"})
FALSE = frozenset({"0", "false", "no", "off", ""})


class OptionsError(ValueError):
    """Values that cannot be used: all of them, each with where it was given."""

    def __init__(self, problems: list[str]) -> None:
        self.problems = problems
        super().__init__("\n".join(problems))


@dataclass(frozen=True, kw_only=True)
class LaunchOptions:
    """What the wrapper was asked to do.

    ``out``: directory of runs. ``stall_after``: seconds, or "auto" (None means the same).
    ``grace``: seconds. ``notify``: a shell command. ``signatures``: a directory.
    ``keep``: how many runs stay in ``out``; None prunes nothing. Raises OptionsError.
    """

    out: str = "./fabwatch-runs"
    stall_after: float | str | None = "auto"
    on_stall: str = "report"
    grace: float = 10.0
    probe: bool = True
    timing: bool = False
    quiet: bool = False
    notify: str | None = None
    signatures: str | None = None
    keep: int | None = None
    job_name: str = ""

    def __post_init__(self) -> None:
        problems = []
        for field in fields(self):
            try:
                value = _READ[field.name](getattr(self, field.name))
            except ValueError as err:
                problems.append(f"{field.name.replace('_', '-')}: {err}")
            else:
                object.__setattr__(self, field.name, value)
        if problems:
            raise OptionsError(problems)


def options_from(
    cli: Mapping[str, Any], environ: Mapping[str, str], cwd: Path | None = None
) -> LaunchOptions:
    """Merge what was given; the command line wins over FABWATCH_* over the file in ``cwd``.

    ``cli``: field name -> value, None where an option was not given. The file is fabwatch.toml,
    or else pyproject.toml's [tool.fabwatch]; only those of ``cwd`` are read, never of a folder
    above it, since ``notify`` is a command. Raises OptionsError that names every bad value's place.
    """
    values: dict[str, Any] = {}
    problems: list[str] = []

    def take(name: str, raw: Any, where: str) -> None:
        try:
            values[name] = _READ[name](raw)
        except ValueError as err:
            problems.append(f"{where}: {err}")

    for name, raw, where in _from_file(cwd or Path(), problems):
        take(name, raw, where)
    for name in _READ:
        variable = f"FABWATCH_{name.upper()}"
        if variable in environ:
            take(name, environ[variable], variable)
    if "FABWATCH_NO_PROBE" in environ:
        try:
            values["probe"] = not _flag(environ["FABWATCH_NO_PROBE"])
        except ValueError as err:
            problems.append(f"FABWATCH_NO_PROBE: {err}")
    for name, raw in cli.items():
        if raw is None:
            continue
        if name == "no_probe":
            if raw:
                values["probe"] = False
        elif name not in _READ:
            problems.append(f"--{name.replace('_', '-')}: no such option")
        else:
            take(name, raw, f"--{name.replace('_', '-')}")
    if problems:
        raise OptionsError(problems)
    return LaunchOptions(**values)


def _from_file(cwd: Path, problems: list[str]) -> list[tuple[str, Any, str]]:
    """(option, value, where) of the one configuration file that counts in ``cwd``."""
    for name, path in (("fabwatch.toml", ()), ("pyproject.toml", ("tool", "fabwatch"))):
        file = cwd / name
        try:
            text = file.read_text(encoding="utf-8")
        except (FileNotFoundError, NotADirectoryError):
            continue
        except (OSError, UnicodeDecodeError) as err:
            if not path:
                problems.append(f"{file}: cannot be read: {err}")
            continue
        if path and "fabwatch" not in text:
            continue  # somebody else's file: whether it parses is not our business
        table = _table(file, text, path, problems)
        if table is None:
            continue
        out = []
        for key, value in table.items():
            where = f"{file}:{_line_of(text, key, path)}: {key}"
            option = key.replace("-", "_")
            if option == "no_probe" and isinstance(value, bool):
                out.append(("probe", not value, where))
            elif option in _READ:
                out.append((option, value, where))
            elif key == "chaos" and isinstance(value, dict):
                continue  # where faults may be injected: read by that side
            else:
                known = ", ".join(n.replace("_", "-") for n in _READ)
                problems.append(f"{where}: no such option; there are {known}")
        return out
    return []


def _table(
    file: Path, text: str, path: tuple[str, ...], problems: list[str]
) -> Mapping[str, Any] | None:
    """Parse ``text`` and go down ``path``; None where there is no such table."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    try:
        table: Any = tomllib.loads(text)
    except tomllib.TOMLDecodeError as err:
        problems.append(f"{file}: not valid TOML: {err}")
        return None
    for part in path:
        if not isinstance(table, dict) or part not in table:
            return None
        table = table[part]
    if not isinstance(table, dict):
        problems.append(f"{file}: [{'.'.join(path)}] must be a table")
        return None
    return table


def _line_of(text: str, key: str, path: tuple[str, ...]) -> int:
    """The line where ``key`` is set, within its table; 1 where it cannot be told."""
    head = f"[{'.'.join(path)}]"
    inside = not path
    for number, line in enumerate(text.splitlines(), 1):
        bare = line.strip()
        if bare.startswith("["):
            inside = bare.replace(" ", "").startswith(head) if path else inside
        elif inside and re.match(rf"[\"']?{re.escape(key)}[\"']?\s*=", bare):
            return number
    return 1


def _text(raw: Any) -> str:
    if not isinstance(raw, (str, Path)):
        raise ValueError(f"{raw!r} is not a text")
    if "\0" in str(raw):
        raise ValueError("holds a NUL character")
    return str(raw)


def _out(raw: Any) -> str:
    text = _text(raw)
    if not text:
        raise ValueError("is empty; give a directory")
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]+://", text):
        raise ValueError(f"{text}: runs are written to a local directory; copy them afterwards")
    return text


def _seconds(raw: Any) -> float:
    try:
        value = math.nan if isinstance(raw, bool) else float(raw)
    except (TypeError, ValueError):
        value = math.nan
    if not 0 <= value < math.inf:
        raise ValueError(f"{raw!r} is not a number of seconds, 0 or more")
    return value


def _stall_after(raw: Any) -> float | str:
    if raw is None or raw == "auto":
        return "auto"
    try:
        value = _seconds(raw)
    except ValueError:
        value = 0.0
    if value <= 0:
        raise ValueError(f"{raw!r} is neither auto nor a number of seconds above 0")
    return value


def _on_stall(raw: Any) -> str:
    if raw not in ("report", "kill"):
        raise ValueError(f"{raw!r} is neither report nor kill")
    return str(raw)


def _flag(raw: Any) -> bool:
    if isinstance(raw, bool):
        return raw
    if isinstance(raw, str) and raw.strip().lower() in TRUE | FALSE:
        return raw.strip().lower() in TRUE
    raise ValueError(f"{raw!r} is neither 1 nor 0")


def _optional_text(raw: Any) -> str | None:
    return None if raw is None or raw == "" else _text(raw)


def _keep(raw: Any) -> int | None:
    if raw is None or raw == "":
        return None
    try:
        value = 0 if isinstance(raw, (bool, float)) else int(raw)
    except (TypeError, ValueError):
        value = 0
    if value < 1:
        raise ValueError(f"{raw!r} is not a number of runs, 1 or more")
    return value


_READ: dict[str, Callable[[Any], Any]] = {
    "out": _out,
    "stall_after": _stall_after,
    "on_stall": _on_stall,
    "grace": _seconds,
    "probe": _flag,
    "timing": _flag,
    "quiet": _flag,
    "notify": _optional_text,
    "signatures": _optional_text,
    "keep": _keep,
    "job_name": lambda raw: _text(raw or ""),
}
"""Option -> what reads and checks one value; raises ValueError."""
