"""Rate limit headers as OpenAI has them. Pure.

Those of the client's key where its quota limits requests or tokens, else those of the model's queue: what it holds
before it refuses requests, and what is free. When a queue will be empty nobody knows, so there is no `reset` of that.
"""

from __future__ import annotations

from protocol.core import InferenceCore, QueueRoom
from protocol.errors import ServerError
from protocol.http.reply import Headers
from protocol.quotas.accounts import Charge
from protocol.quotas.quota import Unit


def limit_headers(core: InferenceCore, model: str, charge: Charge | None = None) -> Headers:
    """None where neither key nor queue has bounds, or the model has gone."""
    quota = {} if charge is None else _of_quota(charge)
    try:
        room = core.queue_room(model) or QueueRoom()
    except ServerError:
        room = QueueRoom()
    return (
        *(quota.get(Unit.REQUESTS) or _pair(b"requests", room.requests, room.requests - room.waiting_requests)),
        *(quota.get(Unit.TOKENS) or _pair(b"tokens", room.tokens, room.tokens - room.waiting_tokens)),
    )


def _of_quota(charge: Charge) -> dict[Unit, Headers]:
    now = charge.account.now()
    found: dict[Unit, Headers] = {}
    for limit, meter in charge.held:
        if limit.unit in (Unit.REQUESTS, Unit.TOKENS) and not isinstance(limit.amount, int):
            unit = limit.unit.encode()
            reset = (b"x-ratelimit-reset-" + unit, _duration(meter.reset(now)))
            found[limit.unit] = (*_pair(unit, int(limit.amount.limit), meter.remaining(now)), reset)
    return found


def _pair(unit: bytes, limit: int, remaining: int) -> Headers:
    if not limit:
        return ()
    return (
        (b"x-ratelimit-limit-" + unit, b"%d" % limit),
        (b"x-ratelimit-remaining-" + unit, b"%d" % max(0, remaining)),
    )


def _duration(seconds: float) -> bytes:
    """As `6m0s`, `1s` or `20ms`."""
    if seconds < 1:
        return b"%dms" % round(seconds * 1000)
    minutes, rest = divmod(round(seconds), 60)
    return b"%dm%ds" % (minutes, rest) if minutes else b"%ds" % rest
