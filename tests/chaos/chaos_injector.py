"""Inject one fault in a process of its own: arguments as JSON in argv[1].

Prints one JSON line when the fault is in force, then waits for a line on standard input, and
prints one more when all is over.
"""

from __future__ import annotations

import json
import socket
import sys
from pathlib import Path

from fabwatch.chaos.faults import find
from fabwatch.chaos.injection import injected
from fabwatch.chaos.journal import Store
from fabwatch.chaos.model import Limits, Target, Values, Victim


def target_of(values: dict) -> Target:
    """The inverse of Target.as_json, as far as tests need it."""
    victims = tuple(Victim.from_json(Values(one)) for one in values["victims"])
    return Target(
        victims, tuple(values["ranks"]), (), values["folder"], values["control"], values["world"]
    )


def main() -> None:
    ask = json.loads(sys.argv[1])
    plan = find(ask["fault"]).plan(
        target_of(ask["target"]), ask["options"], limit_s=ask["limit_s"],
        mechanism=ask["mechanism"], limits=Limits(tiers=frozenset(range(1, 8))),
    )  # fmt: skip
    with injected(
        plan, yes_break=[socket.gethostname()], store=Store(Path(ask["store"])),
        beside=ask.get("beside", ()),
    ) as one:  # fmt: skip
        told = {"id": one.id, "guardian": one.guardian.pid, "held": one.held.known}
        print(json.dumps(told), flush=True)
        sys.stdin.readline()
    print(json.dumps({"healed": one.healed.known, "held": one.held.known}), flush=True)


if __name__ == "__main__":
    main()
