"""The header fields `RateLimit-Policy` and `RateLimit`, by which clients pace themselves. Pure.

Source: IETF, draft-ietf-httpapi-ratelimit-headers-10. The units of tokens and compute time are our own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
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


def rate_limit_fields(held: Sequence[tuple[Limit, Meter]], now: float) -> Fields:
    """What is allowed under these limits, and what is left of it; no fields without limits."""
    if not held:
        return ()
    policies = ", ".join(_policy(limit) for limit, _ in held)
    states = ", ".join(_state(limit, meter, now) for limit, meter in held)
    return (POLICY, policies), (STATE, states)


def _policy(limit: Limit) -> str:
    amount, unit = limit.amount, _QUOTA_UNITS[limit.unit]
    number = amount if isinstance(amount, int) else math.floor(amount.limit)
    window = "" if isinstance(amount, int) else f";w={math.ceil(amount.seconds)}"
    return f"{_string(limit.name)};q={number}" + (f';qu="{unit}"' if unit else "") + window


def _state(limit: Limit, meter: Meter, now: float) -> str:
    return f"{_string(limit.name)};r={meter.remaining(now)};t={math.ceil(meter.reset(now))}"


def _string(text: str) -> str:
    """A string of structured fields (RFC 8941, 3.3.3), which has printable ASCII only."""
    shown = "".join(letter if " " <= letter <= "~" else "?" for letter in text)
    return '"' + shown.replace("\\", "\\\\").replace('"', '\\"') + '"'
