"""The verdict: what a diagnosis says, in the shape of verdict.json (fabwatch.verdict/1).

Keys of the contract stay; others may be added. Everything is plain data, so that a reader needs
no fabwatch.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

SCHEMA: Literal["fabwatch.verdict/1"] = "fabwatch.verdict/1"

Outcome = Literal["diagnosed", "waiting", "healthy", "cannot-tell"]
Symptom = Literal["hang", "crash", "slowdown", "wrong-numbers", "none"]
Fabric = Literal["convicted", "acquitted", "undecided"]


class Culprits(msgspec.Struct, frozen=True, kw_only=True):
    """Who is to blame: global ranks, host names, devices, links. Empty lists: nobody is named."""

    ranks: tuple[int, ...] = ()
    hosts: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    links: tuple[str, ...] = ()


class Reason(msgspec.Struct, frozen=True, kw_only=True):
    """One fact that was weighed: ``worth`` in decibans, ``known`` is yes, no or unknown."""

    fact: str
    known: Literal["yes", "no", "unknown"]
    worth: float
    cites: tuple[str, ...] = ()
    why: str = ""


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """One bounded mitigation."""

    id: str
    do: str
    scope: str = ""
    risk: str = ""
    check: str = ""
    undo: str = ""
    undo_when: str = ""


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """One signature of the verdict, with the reasons for and against it.

    ``asks`` are sentences: a fact that nobody could look for, and how to fetch it. ``decided`` is
    False for signatures that describe a state without its cause.
    """

    id: str
    title: str
    layer: str
    grade: str
    decibans: float
    where: Culprits
    reasons: tuple[Reason, ...] = ()
    asks: tuple[str, ...] = ()
    mitigations: tuple[Advice, ...] = ()
    playbook: str = ""
    summary: str = ""
    untold: tuple[str, ...] = ()
    references: tuple[str, ...] = ()
    decided: bool = True


class HangRoot(msgspec.Struct, frozen=True, kw_only=True):
    """A root of the wait-for graph: who is waited for, in which operation, where its code is.

    ``suspects`` are those who are left when evidence does not separate ``ranks``; ``sure`` is
    False when a gap in the evidence points there.
    """

    ranks: tuple[int, ...]
    kind: str
    group: str = ""
    op: str = ""
    seq: int | None = None
    frame: str = ""
    cites: tuple[str, ...] = ()
    suspects: tuple[int, ...] = ()
    sure: bool = True
    why: str = ""


class Hang(msgspec.Struct, frozen=True, kw_only=True):
    """Who waits for whom."""

    roots: tuple[HangRoot, ...] = ()
    waiting: tuple[int, ...] = ()
    since: float | None = None


class LedgerCounts(msgspec.Struct, frozen=True, kw_only=True, rename="kebab"):
    """How many attempts to get evidence ended how, and one line for each gap."""

    ok: int = 0
    partial: int = 0
    failed: int = 0
    timed_out: int = 0
    not_armed: int = 0
    absent: int = 0
    gaps: tuple[str, ...] = ()


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds; None when the evidence does not say."""

    last_progress_to_detect_s: float | None = None
    detect_to_captured_s: float | None = None
    captured_to_verdict_s: float | None = None


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What is wrong, with whom, why we think so, and what to fetch next."""

    schema: Literal["fabwatch.verdict/1"] = SCHEMA
    outcome: Outcome
    symptom: Symptom
    fabric: Fabric
    culprits: Culprits
    signatures: tuple[Candidate, ...] = ()
    hang: Hang = Hang()
    ledger: LedgerCounts = LedgerCounts()
    timing: Timing = Timing()
    asks: tuple[str, ...] = ()
    fabric_reasons: tuple[str, ...] = ()
    contradictions: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    ranks: tuple[tuple[int, str, int], ...] = ()
    standing: tuple[str, ...] = ()
    """Where processes stand, one text each, when nothing more is known of them."""

    @property
    def best(self) -> Candidate | None:
        """The first signature, None without any."""
        return self.signatures[0] if self.signatures else None


_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Verdict).decode

EXIT_CODES: dict[str, int] = {"diagnosed": 0, "healthy": 1, "waiting": 1, "cannot-tell": 3}
"""Outcome -> exit code of ``fabwatch match`` (2 is for usage errors and unreadable paths)."""


def dumps(verdict: Verdict) -> bytes:
    """Indented JSON with a newline at the end."""
    return msgspec.json.format(_encode(verdict), indent=2) + b"\n"


def loads(data: bytes | str) -> Verdict:
    """The verdict in ``data``. Raises msgspec.MsgspecError for anything else."""
    return _decode(data)


def read(path: Path) -> Verdict:
    """The verdict of a file. Raises OSError or msgspec.MsgspecError."""
    return loads(path.read_bytes())
