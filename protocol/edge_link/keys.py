"""Keys of clients where the core runs, as edge processes are told of them, and as what they send is charged to them."""

from __future__ import annotations

from protocol.access.categories import Category
from protocol.access.control import KeySource
from protocol.access.key_table import KeyTable, key_table
from protocol.access.keys import KEY_NEEDED
from protocol.edge_link.generation import Generation
from protocol.errors import Unauthenticated
from protocol.quotas.accounts import Account, Charge


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


def charge_to(account: Account) -> Charge:
    """What a request costs in the core. The edge process that has it counts the request and its bytes, so it is neither
    begun nor ended here."""
    return Charge(account)
