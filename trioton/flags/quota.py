"""Flags of quotas that several servers have in common. Part of `trioton.settings`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from trioton.flags.fields import INTEGER, UsageError, flag, integer
from trioton.flags.server import SERVER


def _store_place(text: str) -> str:
    if not text.startswith(("redis://", "rediss://")):
        raise ValueError("expected redis://<host>:<port>, or rediss://<host>:<port> for TLS")
    return text


@dataclass(frozen=True, kw_only=True)  # without slots, so that a class may have several such parts
class QuotaFlags:
    """The part of the settings that is about quotas which servers share."""

    quota_store: str | None = flag(
        None,
        _store_place,
        group=SERVER,
        metavar="<url>",
        help="Count what keys use together with all servers that have the same: a Redis server, redis://<host>:<port>, "
        "over TLS rediss://<host>:<port>. Without it each server counts for itself.",
    )
    quota_exchange_ms: int = flag(
        100,
        integer(10, 60_000),
        group=SERVER,
        metavar=INTEGER,
        help="How often, in milliseconds, what keys have used is exchanged with --quota-store.",
    )

    def check_quotas(self, auth_keys_file: Path | None) -> None:
        """Raises UsageError."""
        if self.quota_store is not None and auth_keys_file is None:
            raise UsageError("--quota-store needs --auth-keys-file, whose keys have the quotas")
