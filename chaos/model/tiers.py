"""How sure a mechanism is to heal, and what it needs to be allowed."""

from __future__ import annotations

import enum


class Tier(enum.IntEnum):
    """Who undoes the fault when the injector is gone. Lower is safer.

    KERNEL: the kernel frees it when its holder dies. TIME_LIMIT: a clock in the kernel or in the
    victim. FAIL_OPEN: a helper whose death lets everything through. NAMESPACE: dies with a
    namespace of our own. PROCESS: ends with the victim itself, nothing is left to undo. JOURNAL:
    stays until the guardian or a later run undoes what the journal says. IRREVERSIBLE: nothing
    can undo it; off unless asked for.
    """

    KERNEL = 1
    TIME_LIMIT = 2
    FAIL_OPEN = 3
    NAMESPACE = 4
    PROCESS = 5
    JOURNAL = 6
    IRREVERSIBLE = 7

    @property
    def word(self) -> str:
        """As people write it: ``time-limit``."""
        return self.name.lower().replace("_", "-")


class Privilege(enum.IntEnum):
    """What a mechanism needs. NONE: only processes and files of the same user."""

    NONE = 0
    USER_NAMESPACE = 1
    ROOT = 2

    @property
    def word(self) -> str:
        """As people write it."""
        return self.name.lower().replace("_", "-")
