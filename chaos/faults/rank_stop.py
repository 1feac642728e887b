"""A rank is stopped as by kill -STOP: state T, no thread runs."""

from __future__ import annotations

import signal

from fabwatch.chaos.faults._processes import (
    names,
    send,
    signalable,
    state_letter,
    victims,
    victims_json,
    wait_for,
)
from fabwatch.chaos.model import (
    Fault,
    Mechanism,
    Note,
    Privilege,
    Refused,
    Seen,
    Steps,
    Target,
    Tier,
    Values,
    no,
    yes,
)


class Signal(Mechanism):
    """SIGSTOP, and SIGCONT to undo it."""

    name = "sigstop"
    says = "SIGSTOP; SIGCONT undoes it"
    tier = Tier.JOURNAL
    privilege = Privilege.NONE
    needs = "victims"

    def missing(self) -> str:
        """Every kernel has it."""
        return ""

    def plan(self, target: Target, options: Values) -> Steps:
        """Refused when it is stopped already: the undo would continue what we did not stop."""
        signalable(target)
        for victim in target.victims:
            if state_letter(victim) in "Tt":
                raise Refused(f"pid {victim.pid} is stopped already")
        return Steps(
            does=tuple(f"kill -STOP {v.pid}" for v in target.victims),
            undoes=tuple(f"kill -CONT {v.pid}" for v in target.victims),
            state=Values({"victims": victims_json(target)}),
            found=(f"{names(target)} may be signalled",),
        )

    def inject(self, state: Values, note: Note) -> None:
        """Stop them."""
        for victim in victims(state):
            send(victim, signal.SIGSTOP)

    def took_hold(self, state: Values) -> Seen:
        """Whether each is in state T."""
        held = victims(state)
        if wait_for(lambda: all(state_letter(v) == "T" for v in held)):
            return yes("state T", processes=len(held))
        return no("states " + " ".join(state_letter(v) or "gone" for v in held))

    def revert(self, state: Values) -> None:
        """Continue them."""
        for victim in victims(state):
            send(victim, signal.SIGCONT)

    def reverted(self, state: Values) -> Seen:
        """Whether none is in state T."""
        held = victims(state)
        if wait_for(lambda: all(state_letter(v) != "T" for v in held)):
            return yes("nobody is in state T")
        return no("states " + " ".join(state_letter(v) or "gone" for v in held))


FAULT = Fault(
    id="rank.stop",
    says="A rank is stopped by a signal",
    mechanisms=(Signal(),),
    expects=("process-stopped-sigstop",),
)
