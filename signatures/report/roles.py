"""Says what a verdict asks of each role: training engineer, fabric engineer, cluster admin."""

from __future__ import annotations

from collections.abc import Iterator

from fabwatch.signatures.asking import ranks_text
from fabwatch.signatures.report.text import clean, listed
from fabwatch.signatures.verdict import Candidate, Verdict

ROLES = {
    "training": "training engineer",
    "fabric": "fabric engineer",
    "admin": "cluster admin",
}
"""Word of --role -> who that is."""

OWNERS = {
    "application": "training",
    "runtime": "training",
    "numerics": "training",
    "performance": "training",
    "fabric": "fabric",
    "gpu": "admin",
    "host": "admin",
    "scheduler": "admin",
}
"""Layer of the failure -> who has the means to end it."""

_NETWORK = ("ip -s", "ibstat", "ss -", "ncclras", "perfquery", "ethtool", "switch")
_MACHINE = ("dmesg", "nvidia-smi", "/proc/pressure", "cgroup", "memory.events", "sacct", "kubectl")


def owner_of(verdict: Verdict) -> str:
    """The role that is to act first, "" when nothing is diagnosed."""
    best = verdict.best
    if verdict.outcome != "diagnosed" or best is None:
        return ""
    return OWNERS.get(best.layer, "training")


def advice(verdict: Verdict, role: str) -> tuple[str, ...]:
    """Sentences for one of ROLES: whose turn it is, what to do, what to fetch. KeyError else."""
    tellers = {"training": _training, "fabric": _fabric, "admin": _admin}
    told = [*tellers[role](verdict)]
    return tuple(clean(text) for text in dict.fromkeys(told))


def _mine(verdict: Verdict, role: str) -> Iterator[str]:
    """What its owner does about each cause: the first, and confirmed ones at ranks of their own."""
    if verdict.outcome != "diagnosed" or verdict.best is None:
        return
    taken: set[int] = set()
    for one in verdict.signatures:
        ranks = set(one.where.ranks)
        apart = one.grade == "confirmed" and ranks and not ranks & taken
        if one.decided and (one is verdict.best or apart):
            taken |= ranks
            if OWNERS.get(one.layer, "training") == role and one.mitigations:
                step = one.mitigations[0]
                yield (
                    f"Yours: {one.title} ({one.id}). {_sentence(step.do)} "
                    f"Risk: {_sentence(step.risk)}"
                )


def _sentence(text: str) -> str:
    text = " ".join(text.split())
    return text if text.endswith(".") or not text else f"{text}."


def _turn(verdict: Verdict, role: str) -> Iterator[str]:
    """Whose turn it is when it is not this role's."""
    owner, best = owner_of(verdict), verdict.best
    if owner and owner != role and best is not None:
        yield f"It is the {ROLES[owner]}'s turn: {best.id} ({best.layer})."


def _training(verdict: Verdict) -> Iterator[str]:
    yield from _mine(verdict, "training")
    yield from _turn(verdict, "training")
    for root in verdict.hang.roots:
        if root.frame and root.ranks and set(root.ranks) <= set(verdict.culprits.ranks):
            yield f"Code to look at: {root.frame} ({ranks_text(root.ranks)})."
    if verdict.outcome == "waiting":
        yield "Nothing to do: somebody waits longer than usual, without a sign of a failure."
    elif verdict.outcome == "cannot-tell":
        yield "Do not restart before what is asked for is saved: a restart destroys it."
    elif verdict.outcome == "diagnosed" and owner_of(verdict) != "training":
        yield "Your code is not accused. Keep the bundle; restart once they say that it is mended."


def _fabric(verdict: Verdict) -> Iterator[str]:
    why = f" ({'; '.join(verdict.fabric_reasons[:2])})" if verdict.fabric_reasons else ""
    yield f"The fabric is {verdict.fabric}{why}."
    yield from _mine(verdict, "fabric")
    if verdict.fabric == "convicted":
        places = [*verdict.culprits.links, *verdict.culprits.hosts]
        if places:
            yield f"Look at {listed(places, 6)}."
    elif verdict.fabric == "acquitted":
        yield "Nothing for you to do; no link is to be taken down on this evidence."
    else:
        yield from (f"Would tell: {text}" for text in verdict.asks if _about(text, _NETWORK))
    yield from _turn(verdict, "fabric")


def _admin(verdict: Verdict) -> Iterator[str]:
    yield from _mine(verdict, "admin")
    yield from _turn(verdict, "admin")
    owner, best = owner_of(verdict), verdict.best
    if owner == "admin" and verdict.culprits.hosts:
        yield f"Hosts: {listed(verdict.culprits.hosts, 6)}."
    if owner == "admin" and verdict.culprits.devices:
        yield f"Devices: {listed(verdict.culprits.devices, 6)}."
    if owner == "admin" and best is not None and _undo(best):
        yield f"Undo: {_undo(best)}"
    if verdict.outcome != "diagnosed" or owner == "training":
        yield "No host is to be drained on this evidence."
    if verdict.outcome == "cannot-tell":
        yield from (f"Would tell: {text}" for text in verdict.asks if _about(text, _MACHINE))


def _undo(best: Candidate) -> str:
    if not best.mitigations:
        return ""
    step = best.mitigations[0]
    return f"{_sentence(step.undo)} When: {_sentence(step.undo_when)}"


def _about(text: str, words: tuple[str, ...]) -> bool:
    return any(word in text for word in words)
