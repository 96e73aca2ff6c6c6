"""The one question that an edge asks before anything else in a call: may it be made?"""

from __future__ import annotations

from typing import Protocol

from protocol.access.categories import Category
from protocol.access.keys import KeyRing
from protocol.access.restricted import HeaderLookup, RestrictedApis


class KeySource(Protocol):
    """Where the current ring comes from; `keys_file.KeysFile` is one."""

    @property
    def current(self) -> KeyRing: ...


class AccessControl:
    """The access rules of one edge: its own restricted APIs, and the keys that all edges share.

    Each that is configured must be content. Without any, `is_open` is true, and a call need not be checked.
    """

    __slots__ = ("_keys", "_restricted", "is_open")

    def __init__(self, restricted: RestrictedApis | None = None, keys: KeySource | None = None) -> None:
        self._restricted = restricted or RestrictedApis()
        self._keys = keys
        self.is_open = keys is None and self._restricted.is_open

    def check(self, category: Category, headers: HeaderLookup) -> None:
        """Return if the call may be made.

        `headers` gives the first value of a header by its name in lower case, or None.

        Raises:
            Unauthenticated: there is a keys file, and no key of it came with the call.
            Forbidden: the key does not allow the category.
            Restricted: the category's header is missing or has another value.
        """
        if self.is_open:
            return
        if self._keys is not None:
            self._keys.current.check(headers("authorization"), category)
        self._restricted.check(category, headers)
