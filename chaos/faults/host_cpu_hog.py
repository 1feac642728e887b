"""Other work burns the CPUs that a job runs on."""

from __future__ import annotations

import os

from fabwatch.chaos import helpers
from fabwatch.chaos.faults._processes import wait_for
from fabwatch.chaos.model import (
    Fault,
    Mechanism,
    Note,
    Param,
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
from fabwatch.watchdog import procfs


def burnt_s(state: Values, seconds: float = 0.5) -> float:
    """CPU seconds that the helper's burners used in ``seconds``."""
    import time

    def total() -> int:
        one = helpers.helper_of(state)
        kids = (procfs.children(one.pid) or []) if one is not None else []
        return sum(s.cpu_ticks for s in map(procfs.stat, kids) if s is not None)

    before = total()
    time.sleep(seconds)
    return (total() - before) / os.sysconf("SC_CLK_TCK")


class Burners(Mechanism):
    """A helper with one burner for each CPU."""

    name = "burners"
    says = "processes that compute without end; they end with the injector"
    tier = Tier.FAIL_OPEN
    privilege = Privilege.NONE
    needs = ""

    def missing(self) -> str:
        """Every host has it."""
        return ""

    def plan(self, target: Target, options: Values) -> Steps:
        """Where given, on the CPUs of the option only."""
        allowed = sorted(os.sched_getaffinity(0))
        named = [int(c) for c in options.text("cpus").split(",") if c.strip().isdigit()]
        for cpu in named:
            if cpu not in allowed:
                raise Refused(f"cpus={options.text('cpus')}: this process may use {allowed}")
        count = options.whole("burners") or len(named or allowed)
        where = f" on CPUs {','.join(map(str, named))}" if named else ""
        return Steps(
            does=(f"{count} processes compute without end{where}",),
            undoes=("they are killed",),
            state=Values({"threads": count, "cpus": [str(c) for c in named]}),
            found=(f"CPUs {','.join(map(str, allowed))}",),
        )

    def inject(self, state: Values, note: Note) -> None:
        """Start the helper."""
        spec = {"threads": state["threads"], "cpus": state["cpus"]}
        helpers.start("hog", spec, state, note)

    def took_hold(self, state: Values) -> Seen:
        """Whether they use CPU time."""
        used = burnt_s(state)
        says = f"{used:.2f} s of CPU time in 0.5 s"
        return yes(says, cpu_s=used) if used > 0.02 else no(says, cpu_s=used)

    def revert(self, state: Values) -> None:
        """End the helper; its burners die with it."""
        helpers.stop(state)

    def reverted(self, state: Values) -> Seen:
        """Whether it is gone."""
        if wait_for(lambda: not helpers.running(state)):
            return yes("the helper is gone")
        return no("the helper lives")


FAULT = Fault(
    id="host.cpu-hog",
    says="Other work burns the CPUs of the host",
    mechanisms=(Burners(),),
    params=(
        Param("burners", 0, "how many; 0: one for each CPU"),
        Param("cpus", "", "on these only, comma between; empty: anywhere"),
    ),
    expects=(
        "psi-cpu-contention",
        "straggler-host-cpu",
    ),
)
