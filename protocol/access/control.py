"""Access control of one edge: the check that every call passes first, by restricted APIs and by bearer keys."""

from __future__ import annotations

from typing import Protocol

import trio

from protocol.access.categories import Category
from protocol.access.keys import ANONYMOUS, KeyRing
from protocol.access.restricted import HeaderLookup, RestrictedApis
from protocol.errors import ServerError
from protocol.quotas.accounts import Account, Ledger


class KeySource(Protocol):
    """The source of the current key ring; `keys_file.KeysFile` is one. `changed` is set when the ring is replaced, and
    is itself replaced before. What a ring has decided holds as long as `current` is that same ring. `ledger` has the
    accounts of its keys."""

    @property
    def ledger(self) -> Ledger | None: ...

    @property
    def current(self) -> KeyRing | None: ...

    @property
    def changed(self) -> trio.Event: ...


class _NoKeys:
    """A server without keys."""

    current: KeyRing | None = None
    ledger: Ledger | None = None

    @property
    def changed(self) -> trio.Event:
        return trio.Event()  # never set


NO_KEYS: KeySource = _NoKeys()


class AccessControl:
    """The access rules of one edge: its own restricted APIs, and the keys that all edges share.

    Each that is configured must be content. Without any, `is_open` is true, and a call need not be checked.
    """

    __slots__ = ("_restricted", "is_open", "keys")

    def __init__(self, restricted: RestrictedApis | None = None, keys: KeySource | None = None) -> None:
        self._restricted = restricted or RestrictedApis()
        self.keys = keys or NO_KEYS
        self.is_open = keys is None and self._restricted.is_open

    def check(self, category: Category, headers: HeaderLookup) -> Account | None:
        """Return if the call may be made, with the account of its key; None where there are no keys.

        `headers` gives the first value of a header by its name in lower case, or None.

        Raises:
            Unauthenticated: there is a keys file, and no key of it came with the call.
            Forbidden: the key does not allow the category.
            Restricted: the category's header is missing or has another value.
        """
        if self.is_open:
            return None
        account = None
        ring, ledger = self.keys.current, self.keys.ledger
        if ring is not None and ledger is not None:
            account = ledger.account(ring.check(headers("authorization"), category))
        self._restricted.check(category, headers)
        return account

    def caller(self, headers: HeaderLookup) -> str:
        """The name of the key that a call comes with; `anonymous` where it has none, or there are none."""
        ring = self.keys.current
        return ANONYMOUS if ring is None else ring.name_of(headers("authorization"))

    def key_name(self, headers: HeaderLookup) -> str:
        """As `caller`, for the log: empty where there are no keys."""
        return "" if self.keys.current is None else self.caller(headers)

    async def until_refused(self, category: Category, headers: HeaderLookup) -> ServerError:
        """Wait until a call that was allowed is not any more, since the keys have changed; returns the error."""
        while True:
            changed = self.keys.changed
            try:
                self.check(category, headers)
            except ServerError as refusal:
                return refusal
            await changed.wait()
