"""The header fields `RateLimit-Policy` and `RateLimit`, by which clients pace themselves. Pure.

Source: IETF, draft-ietf-httpapi-ratelimit-headers-10. The units of tokens and compute time are our own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

from protocol.quotas.meters import Meter
from protocol.quotas.quota import Limit, Unit

Fields: TypeAlias = tuple[tuple[str, str], ...]
"""Names in lower case, and their values in ASCII."""

POLICY, STATE = "ratelimit-policy", "ratelimit"
_QUOTA_UNITS: Final = {
    Unit.REQUESTS: "",  # the default
    Unit.TOKENS: "tokens",
    Unit.COMPUTE_SECONDS: "compute-seconds",
    Unit.BYTES: "content-bytes",
    Unit.CONCURRENT_REQUESTS: "concurrent-requests",
}


# Integers of structured fields have at most 15 digits (RFC 8941, 3.3.1).
_MOST: Final = 10**15 - 1


def rate_limit_fields(
    held: Sequence[tuple[Limit, Meter]], now: float, waits: Mapping[Limit, float] | None = None
) -> Fields:
    """What is allowed under these limits, and what is left of it; no fields without limits.

    The time of each (`t`) is when all of it is free again; of those by which a request is refused, with `waits`, when
    it may be tried again, so that `Retry-After` does not name an earlier one.
    """
    if not held:
        return ()
    policies = ", ".join(_policy(limit) for limit, _ in held)
    waits = waits or {}
    states = ", ".join(_state(limit, meter, now, waits.get(limit, 0.0)) for limit, meter in held)
    return (POLICY, policies), (STATE, states)


def _policy(limit: Limit) -> str:
    amount, unit = limit.amount, _QUOTA_UNITS[limit.unit]
    number = amount if isinstance(amount, int) else math.floor(amount.limit)
    window = "" if isinstance(amount, int) else f";w={math.ceil(amount.seconds)}"
    return f"{_string(limit.name)};q={min(number, _MOST)}" + (f';qu="{unit}"' if unit else "") + window


def _state(limit: Limit, meter: Meter, now: float, wait: float) -> str:
    seconds = math.ceil(wait or meter.reset(now))
    return f"{_string(limit.name)};r={min(meter.remaining(now), _MOST)};t={min(seconds, _MOST)}"


def _string(text: str) -> str:
    """A string of structured fields (RFC 8941, 3.3.3), which has printable ASCII only."""
    shown = "".join(letter if " " <= letter <= "~" else "?" for letter in text)
    return '"' + shown.replace("\\", "\\\\").replace('"', '\\"') + '"'
