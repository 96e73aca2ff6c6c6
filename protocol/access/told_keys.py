"""Told keys: the keys of a server in another process than the one that reads their file.

    keys file -> [key table] -> link -> [told keys] -> access control

That process counts its key rings where this one sees it at once (`number`), and sends each as a table a little later.
In between these keys are out of date, and whoever asks has that process decide.
"""

from __future__ import annotations

from collections.abc import Callable

import trio

from protocol.access.key_table import KeyTable, ring_of
from protocol.access.keys import KeyRing
from protocol.access.restricted import HeaderLookup
from protocol.quotas.accounts import Ledger


class ToldKeys:
    """Implements `control.KeySource`. Its accounts count what was used, and limit nothing: callers with a quota are
    that process's (`are_elsewhere`)."""

    def __init__(self, number: Callable[[], int]) -> None:
        self.current = KeyRing({})
        self.changed = trio.Event()
        self.ledger = Ledger(trio.current_time)
        self.ledger.adopt(self.current.terms)
        self._number = number
        self._told = -1
        self._limited: frozenset[str] = frozenset()

    @property
    def are_current(self) -> bool:
        """Whether they are those in force."""
        return self._number() == self._told

    def take(self, table: KeyTable) -> None:
        """These are in force; older ones that come late are no harm."""
        if table.number <= self._told:
            return
        self._told = table.number
        self.current = ring_of(table)
        self._limited = frozenset(row.name for row in table.rows if row.is_limited)
        self.ledger.adopt(self.current.terms)
        changed, self.changed = self.changed, trio.Event()
        changed.set()

    def are_elsewhere(self, headers: HeaderLookup) -> bool:
        """Whether the process that has all of the keys is to decide on a call with these headers."""
        if not self.are_current:
            return True
        return bool(self._limited) and self.is_limited(self.current.name_of(headers("authorization")))

    def is_limited(self, name: str) -> bool:
        """Whether the key of this name has a quota."""
        return name in self._limited
