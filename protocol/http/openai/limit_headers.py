"""Rate limit headers as OpenAI has them: what a model's queue holds before it refuses requests, and what is free. Pure.

The limits here are bounds of a queue, not rates: when it will be empty nobody knows, so there is no `reset`.
"""

from __future__ import annotations

from protocol.core import InferenceCore
from protocol.errors import ServerError
from protocol.http.reply import Headers


def limit_headers(core: InferenceCore, model: str) -> Headers:
    """None where the model's queue has no bounds, or the model has gone."""
    try:
        room = core.queue_room(model)
    except ServerError:
        return ()
    if room is None:
        return ()
    return (
        *_pair(b"requests", room.requests, room.waiting_requests),
        *_pair(b"tokens", room.tokens, room.waiting_tokens),
    )


def _pair(unit: bytes, limit: int, used: int) -> Headers:
    if not limit:
        return ()
    remaining = max(0, limit - used)
    return ((b"x-ratelimit-limit-" + unit, b"%d" % limit), (b"x-ratelimit-remaining-" + unit, b"%d" % remaining))
