"""Keys that a test changes: a source of them without a file."""

from __future__ import annotations

import trio

from protocol.access.keys import KeyRing


class ChangingKeys:
    """Implements `protocol.access.control.KeySource`."""

    def __init__(self, text: str) -> None:
        self.current = KeyRing.parse(text, source="test")
        self.changed = trio.Event()

    def change(self, text: str) -> None:
        self.current = KeyRing.parse(text, source="test")
        changed, self.changed = self.changed, trio.Event()
        changed.set()
