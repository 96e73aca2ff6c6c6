"""Key table: what another process has to know of a key ring to check its clients: digests, names and rights. Pure.

Amounts of quotas, weights and secrets of webhooks stay where the ring was read.
"""

from __future__ import annotations

import msgspec

from protocol.access.categories import Category
from protocol.access.keys import Key, KeyRing
from protocol.quotas.accounts import Terms
from protocol.quotas.quota import Quota


class KeyRow(msgspec.Struct, array_like=True, frozen=True):
    """One key; without a digest callers without a key. `limits` are the units that its quota limits, None without a
    quota."""

    digest: bytes
    name: str
    allowed: tuple[str, ...]
    limits: tuple[str, ...] | None


class KeyTable(msgspec.Struct, array_like=True, frozen=True):
    """All keys of a ring, in their order, and callers without a key at the end. `number` counts the rings that there
    were before."""

    number: int
    rows: tuple[KeyRow, ...]


def key_table(ring: KeyRing, number: int) -> KeyTable:
    return KeyTable(
        number,
        tuple(
            [
                KeyRow(digest, key.name, tuple(map(str, sorted(key.allowed))), _limits(key.terms.quota))
                for digest, key in (*ring.by_digest.items(), (b"", ring.anonymous))
            ]
        ),
    )


def _limits(quota: Quota | None) -> tuple[str, ...] | None:
    return None if quota is None else tuple(sorted({str(limit.unit) for limit in quota.limits()}))


def ring_of(table: KeyTable) -> KeyRing:
    """A ring that decides as the one that the table was made of; none of its keys has a quota."""
    *rows, nobody = [(row.digest, Key(Terms(row.name), frozenset(map(Category, row.allowed)))) for row in table.rows]
    return KeyRing(dict(rows), nobody[1])
