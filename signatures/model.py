"""What a signature is: the typed form of one file of the library.

The format is written down in docs/signatures.md; :mod:`fabwatch.signatures.loader` reads it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from fabwatch.watchdog.evidence.facts import Fact, Where
from fabwatch.watchdog.evidence.shapes import Shape

CONFIRMED_AT = 20.0
"""Decibans from which a signature is confirmed: 100 to 1."""
LIKELY_AT = 10.0
"""Decibans from which a signature is likely: 10 to 1."""
RULED_OUT_AT = -10.0
"""Decibans down to which (inclusive) a signature is ruled out: 1 to 10."""

LAYERS = (
    "application",
    "runtime",
    "fabric",
    "gpu",
    "host",
    "scheduler",
    "numerics",
    "performance",
)
LAYER_NAMES = {"program": "application"}
"""Other names of layers -> ours; they are understood wherever a layer is read."""
SYMPTOMS = ("hang", "crash", "slowdown", "wrong-numbers")
STATUSES = ("draft", "tested", "stable", "deprecated")
BLAMES = ("ranks", "hosts", "devices", "links", "nobody")


class Grade(str, Enum):
    """How far a signature is supported. The order of members is the order of reports."""

    CONFIRMED = "confirmed"
    LIKELY = "likely"
    POSSIBLE = "possible"
    CANNOT_TELL = "cannot-tell"
    RULED_OUT = "ruled-out"

    @property
    def order(self) -> int:
        """0 for the best grade."""
        return _ORDER[self]

    @property
    def stands(self) -> bool:
        """Good enough to be said aloud: likely or confirmed."""
        return self in (Grade.CONFIRMED, Grade.LIKELY)


_ORDER: dict[Grade, int] = {grade: number for number, grade in enumerate(Grade)}


@dataclass(frozen=True, slots=True)
class Clue:
    """One fact that speaks for or against. ``present``/``absent`` are decibans.

    ``name`` binds the places of the fact; ``on`` wants the fact at the places of that binding.
    Of clues with one ``group`` only the strongest counts; required clues with one group are
    alternatives. ``detail`` narrows the fact: each key must have one of the given values.
    """

    fact: str
    name: str = ""
    on: str = ""
    required: bool = False
    present: float = 0.0
    absent: float = 0.0
    group: str = ""
    detail: tuple[tuple[str, tuple[str, ...]], ...] = ()
    why: str = ""
    line: int = 0


@dataclass(frozen=True, slots=True)
class Confusable:
    """A look-alike; knowing one of the facts ``tell_apart`` (yes or no) tells the two apart."""

    id: str
    because: str
    tell_apart: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Mitigation:
    """A bounded action: what to do, how far it reaches, what it may cost, how to undo it."""

    id: str
    do: str
    scope: str
    risk: str
    check: str
    undo: str
    undo_when: str


@dataclass(frozen=True, slots=True)
class Case:
    """An inline test: these facts hold, those in ``unknown`` nobody looked for, others are no."""

    name: str
    facts: tuple[Fact, ...]
    unknown: tuple[str, ...]
    expect: Grade
    where: Where | None = None
    hosts: tuple[tuple[int, str], ...] = ()
    line: int = 0


@dataclass(frozen=True, slots=True)
class Signature:
    """One documented failure mode.

    ``parents`` are more general signatures that hold as well when this one does; ``explains`` are
    signatures that are a consequence of this one. ``names_cause`` False: the signature describes
    a state without its cause, so it can never make a diagnosis. ``blames`` says which places of
    the match are culprits.
    """

    id: str
    title: str
    layer: str
    symptom: str
    summary: str
    playbook: str
    clues: tuple[Clue, ...]
    status: str = "tested"
    aliases: tuple[str, ...] = ()
    parents: tuple[str, ...] = ()
    explains: tuple[str, ...] = ()
    blames: tuple[str, ...] = ("ranks", "hosts", "devices", "links")
    names_cause: bool = True
    reproduce: str = ""
    applies_to: tuple[tuple[str, str], ...] = ()
    confusable_with: tuple[Confusable, ...] = ()
    mitigations: tuple[Mitigation, ...] = ()
    capture_next: tuple[str, ...] = ()
    references: tuple[str, ...] = ()
    cases: tuple[Case, ...] = ()
    path: str = ""
    shapes: tuple[Shape, ...] = ()

    @property
    def blamed(self) -> str:
        """The name of the binding that is blamed: the first one of the file, "" if none."""
        return next((clue.name for clue in self.clues if clue.name), "")

    def facts(self) -> tuple[str, ...]:
        """Every fact name that the clues and look-alikes mention, once."""
        names = [clue.fact for clue in self.clues]
        names += [name for other in self.confusable_with for name in other.tell_apart]
        return tuple(dict.fromkeys(names))


@dataclass(frozen=True, slots=True)
class Library:
    """All signatures by id, sorted by id."""

    signatures: Mapping[str, Signature] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.signatures)

    def get(self, name: str) -> Signature | None:
        """The signature with that id or alias, or None."""
        if name in self.signatures:
            return self.signatures[name]
        return next((s for s in self.signatures.values() if name in s.aliases), None)

    def ancestors(self, name: str) -> frozenset[str]:
        """Ids of all parents of ``name``, their parents included."""
        seen: set[str] = set()
        todo = [name]
        while todo:
            found = self.signatures.get(todo.pop())
            for parent in found.parents if found else ():
                if parent not in seen:
                    seen.add(parent)
                    todo.append(parent)
        return frozenset(seen)
