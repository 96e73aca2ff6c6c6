"""Composes what a server shares of its quotas with others, from its settings. Part of the composition root."""

from __future__ import annotations

from actors.quotas.exchange import QuotaExchange
from protocol.access.keys_file import KeysFile
from protocol.failures import CallbackFailures
from protocol.quotas.shared import SharedMeters
from trioton.settings import Settings


class UnusableQuotaStore(Exception):
    """What `--quota-store` says cannot be used; the text says why."""


def quota_exchange(settings: Settings, keys: KeysFile | None, failures: CallbackFailures) -> QuotaExchange | None:
    """What is to run while the server does; None where nothing is shared. To be called before keys are used. No I/O.

    Raises:
        UnusableQuotaStore: the store's URL is wrong, or a package is missing.
    """
    if settings.quota_store is None or keys is None:
        return None
    try:
        from actors.quotas.redis_store import make_quota_store
    except ImportError as error:
        raise UnusableQuotaStore(f"{error}; install it with: pip install 'trioton[redis]'") from None
    try:
        store = make_quota_store(settings.quota_store)
    except ValueError as error:
        raise UnusableQuotaStore(str(error)) from None
    keys.ledger.shared = SharedMeters()
    return QuotaExchange(keys.ledger.shared, store, settings.quota_exchange_ms / 1000, failures)
