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
from protocol.quotas.told import Desk, ToldLedger


class ToldKeys:
    """Implements `control.KeySource`. Its accounts count what was used; requests of those with a quota are charged at
    the `desk`, which is that process."""

    def __init__(self, number: Callable[[], int], desk: Desk | None = None) -> None:
        self.current = KeyRing({})
        self.changed = trio.Event()
        self.ledger = ToldLedger(trio.current_time, desk)
        self.ledger.adopt(self.current.terms)
        self._number = number
        self._told = -1

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
        self.ledger.limited = {row.name: frozenset(row.limits) for row in table.rows if row.limits is not None}
        self.ledger.adopt(self.current.terms)
        changed, self.changed = self.changed, trio.Event()
        changed.set()

    def may_be_refused(self, headers: HeaderLookup, size: int) -> bool:
        """Whether a request of so many bytes had better be decided on by that process, before it is read."""
        account = self.ledger.account(self.current.name_of(headers("authorization")))
        return account.may_be_refused("", size)
