"""What a measurement saw: yes, no, or nobody could look."""

from __future__ import annotations

from dataclasses import dataclass, field

from fabwatch.chaos.model.values import Json


@dataclass(frozen=True)
class Seen:
    """``known``: True / False / None (nobody could look). ``figures`` in the units they name."""

    known: bool | None
    says: str
    figures: dict[str, float] = field(default_factory=dict)

    def as_json(self) -> dict[str, Json]:
        """For the journal."""
        figures: dict[str, Json] = dict(self.figures)
        word = {True: "yes", False: "no", None: "unknown"}[self.known]
        return {"known": word, "says": self.says, "figures": figures}


def yes(says: str, **figures: float) -> Seen:
    """It is so."""
    return Seen(True, says, figures)


def no(says: str, **figures: float) -> Seen:
    """It is not so."""
    return Seen(False, says, figures)


def unknown(says: str, **figures: float) -> Seen:
    """Nobody could look."""
    return Seen(None, says, figures)
