"""Tell from a command line what an armed environment cannot reach."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

_PYTHON = re.compile(r"(?:python|pypy)[\d.]*t?d?$")
_CONTAINERS = frozenset({"docker", "podman", "nerdctl"})
_SLURM_EXPORT = ("SRUN_EXPORT_ENV", "SLURM_EXPORT_ENV")


@dataclass(frozen=True)
class Reach:
    """Reasons, "" where there is none.

    ``nothing``: no variable arrives in the ranks. ``probe``: the probe does not, the variables
    do. ``note``: variables arrive, yet perhaps not on every host.
    """

    nothing: str = ""
    probe: str = ""
    note: str = ""


def reach_of(argv: Sequence[str], environ: Mapping[str, str]) -> Reach:
    """What ``argv`` keeps from its children, as far as a command line shows it.

    A script's inside is not looked at: what it hides shows later, when a rank has no page.
    """
    nothing, probe, note = "", "", ""
    for index, word in enumerate(argv):
        name, rest = word.rsplit("/", 1)[-1], argv[index + 1 :]
        if name in _CONTAINERS and _first_words(rest, {"run", "exec", "create"}):
            nothing = nothing or (
                f"`{name}` gives the container neither this environment nor these directories; "
                "run fabwatch inside it"
            )
        elif name == "srun":
            nothing = nothing or _srun(rest, environ)
            note = note or "on other hosts only where the run directory is shared"
        elif name == "env" and {"-i", "-", "--ignore-environment"} & set(_options(rest)):
            nothing = nothing or "`env -i` empties the environment"
        elif name == "sudo" and index == 0 and not _keeps_environment(rest):
            nothing = nothing or "`sudo` resets the environment; use sudo -E"
        elif name == "ssh" and index == 0:
            nothing = nothing or "`ssh` does not carry the environment; run fabwatch on that host"
        elif name in ("mpirun", "mpiexec", "orterun"):
            note = note or "ranks on other hosts get it only where the launcher passes it on (-x)"
        elif _PYTHON.match(name):
            flags = _python_flags(rest)
            stopped = next((f for f in "IES" if f in flags), "")
            if stopped:
                probe = probe or (
                    f"`{name} -{stopped}` does not run a sitecustomize from PYTHONPATH; "
                    "outside collectors only"
                )
    return Reach(nothing, probe, note)


def _options(words: Sequence[str]) -> list[str]:
    """The leading words that start with a dash."""
    out = []
    for word in words:
        if not word.startswith("-"):
            break
        out.append(word)
    return out


def _first_words(words: Sequence[str], wanted: set[str]) -> bool:
    """Whether one of ``wanted`` comes among the words before the image or the command."""
    return bool(wanted & set(words[:6]))


def _keeps_environment(words: Sequence[str]) -> bool:
    return any(
        word == "--preserve-env" or re.match(r"-[A-Za-z]*E", word) for word in _options(words)
    )


def _srun(words: Sequence[str], environ: Mapping[str, str]) -> str:
    """Why srun exports nothing of ours, or ""."""
    value, shown = "", ""
    for name in _SLURM_EXPORT:
        if name in environ:
            value, shown = environ[name], f"{name}={environ[name]}"
            break
    for index, word in enumerate(words):
        if word == "--":
            break
        if word.startswith("--export="):
            value, shown = word.split("=", 1)[1], f"srun {word}"
        elif word == "--export" and index + 1 < len(words):
            value, shown = words[index + 1], f"srun --export={words[index + 1]}"
    names = [part.strip().upper() for part in value.split(",") if part.strip()]
    if not names or "ALL" in names:
        return ""
    return f"`{shown}` keeps the environment from the tasks; add ALL, or run fabwatch in each task"


def _python_flags(words: Sequence[str]) -> str:
    """The single-letter options of an interpreter's command line, before script, -m or -c."""
    flags = ""
    skip = False
    for word in words:
        if skip:
            skip = False
            continue
        if word.startswith("--") and word != "--":
            skip = word == "--check-hash-based-pycs"
            continue
        if len(word) < 2 or not word.startswith("-") or word == "--":
            break
        for at, letter in enumerate(word[1:], 1):
            flags += letter
            if letter in "cm":
                return flags
            if letter in "WX":
                skip = at == len(word) - 1
                break
    return flags
