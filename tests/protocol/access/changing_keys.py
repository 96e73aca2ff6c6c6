"""Keys that a test changes: a source of them without a file."""

from __future__ import annotations

import trio

from protocol.access.keys import KeyRing
from protocol.quotas.accounts import Ledger


class ChangingKeys:
    """Implements `protocol.access.control.KeySource`."""

    def __init__(self, text: str) -> None:
        self.current = KeyRing.parse(text, source="test")
        self.changed = trio.Event()
        self.ledger = Ledger(trio.current_time)
        self.ledger.adopt(self.current.terms)

    def change(self, text: str) -> None:
        self.current = KeyRing.parse(text, source="test")
        self.ledger.adopt(self.current.terms)
        changed, self.changed = self.changed, trio.Event()
        changed.set()
