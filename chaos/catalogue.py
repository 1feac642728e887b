"""The faults as tables: for `fabwatch chaos list` and docs/faults.md."""

from __future__ import annotations

from dataclasses import dataclass

from fabwatch.chaos.faults import load
from fabwatch.chaos.model import Fault, Json, Mechanism


@dataclass(frozen=True)
class Entry:
    """A fault on this host. ``missing``: mechanism -> why not, "" where it can be used."""

    fault: Fault
    missing: dict[str, str]

    @property
    def usable(self) -> list[Mechanism]:
        """Mechanisms that this host allows, safest first."""
        return [m for m in self.fault.ordered() if not self.missing[m.name]]

    def as_json(self) -> dict[str, Json]:
        """For --json."""
        return {
            "id": self.fault.id,
            "says": self.fault.says,
            "expects": list(self.fault.expects),
            "options": [
                {"name": p.name, "default": p.default, "says": p.says} for p in self.fault.params
            ],
            "mechanisms": [
                {
                    "name": m.name,
                    "says": m.says,
                    "tier": m.tier.word,
                    "privilege": m.privilege.word,
                    "needs": m.needs,
                    "missing": self.missing[m.name],
                }
                for m in self.fault.ordered()
            ],
        }


def entries() -> list[Entry]:
    """All faults, each probed here."""
    return [Entry(f, {m.name: m.missing() for m in f.mechanisms}) for f in load().values()]


def page() -> str:
    """docs/faults.md without its heading: the same on every host."""
    faults = load().values()
    lines = [
        f"{len(faults)} faults. `fabwatch chaos list` says which of them a host allows, "
        "`fabwatch chaos plan` what one would do.",
        "",
    ]
    lines += ["| fault | what happens | by | heals by | needs | should be diagnosed as |"]
    lines += ["| --- " * 6 + "|"]
    for fault in faults:
        expects = ", ".join(f"`{one}`" for one in fault.expects)
        for number, one in enumerate(fault.ordered()):
            first = number == 0
            lines.append(
                f"| {f'`{fault.id}`' if first else ''} | {fault.says if first else ''} "
                f"| {one.name}: {one.says} | {one.tier.word} | {_needs(one)} "
                f"| {expects if first else ''} |"
            )
    lines += ["", "## Options", "", "| fault | option | default | means |", "| --- " * 4 + "|"]
    for fault in faults:
        for param in fault.params:
            default = "must be given" if param.default is None else f"`{param.default}`"
            lines.append(f"| `{fault.id}` | `{param.name}` | {default} | {param.says} |")
    return "\n".join(lines) + "\n"


def _needs(mechanism: Mechanism) -> str:
    words = {
        "victims": "a process", "ranks": "a job launched for it", "links": "a link",
        "folder": "a directory", "": "nothing",
    }  # fmt: skip
    privilege = "" if not mechanism.privilege else f", {mechanism.privilege.word}"
    return words[mechanism.needs] + privilege
