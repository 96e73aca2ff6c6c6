"""Keys of clients where the core runs, as edge processes are told of them, and as what they send is charged to them."""

from __future__ import annotations

import math
from contextlib import suppress

from protocol.access.categories import Category
from protocol.access.control import KeySource
from protocol.access.key_table import KeyTable, key_table
from protocol.access.keys import KEY_NEEDED
from protocol.edge_link.charges import LinkCharge, note_used
from protocol.edge_link.frames import BrokenFrame
from protocol.edge_link.generation import Generation
from protocol.edge_link.texts import UsedText, decode_text
from protocol.errors import Unauthenticated
from protocol.quotas.accounts import Account


class TellingKeys:
    """One for all links. `keys` are those in force; whoever replaces them moves the generation's count of them."""

    def __init__(self, keys: KeySource, generation: Generation) -> None:
        self._keys = keys
        self._generation = generation

    def table(self) -> KeyTable | None:
        """None where there are no keys."""
        ring = self._keys.current
        return None if ring is None else key_table(ring, self._generation.keys)

    def account(self, name: str) -> Account:
        """That of a key for inference, as an edge process has found it.

        Raises:
            Unauthenticated: the key was taken away since.
        """
        ring, ledger = self._keys.current, self._keys.ledger
        if ring is None or ledger is None or not ring.allows(name, Category.INFERENCE):
            raise Unauthenticated(KEY_NEEDED)
        return ledger.account(name)

    async def admit(self, name: str, model: str, size: float) -> None:
        """Charge a request that does not come here, for the edge process has found it to be wrong.

        Raises:
            Unauthenticated, QuotaExceeded: that is why it is to be refused.
        """
        account = self.account(name)
        await account.wait_known(model, is_early=True)
        charge = LinkCharge(account)
        charge.admit(model, size)
        charge.end()

    def note_used(self, text: memoryview) -> None:
        """As an edge process tells it. Raises BrokenFrame."""
        used = decode_text(text, UsedText)
        if not (0 <= used.requests <= 1 and math.isfinite(used.size) and 0 <= used.tokens < math.inf):
            raise BrokenFrame(f"it has used {used.requests} requests, {used.size} bytes and {used.tokens} tokens")
        with suppress(Unauthenticated):  # the key is gone
            note_used(self.account(used.key), used)
