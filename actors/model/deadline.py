"""Request deadline: the `timeout` parameter as a deadline for the whole request, where no queue policy uses it.

Triton's dynamic batcher and sequence batcher have their own rules for it; with any other model it would have no effect.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TypeVar

import trio

from protocol.errors import DeadlineExceeded
from protocol.messages import InferenceRequest
from repository.model_config import ModelConfig

T = TypeVar("T")


def queue_takes_timeout(config: ModelConfig) -> bool:
    """Whether the model's scheduler limits a request's time in the queue by its `timeout`."""
    if config.sequence_batching is not None:
        return True
    batching = config.dynamic_batching
    if batching is None:
        return False
    default = () if batching.default_queue_policy is None else (batching.default_queue_policy,)
    return any(
        policy.allow_timeout_override and policy.default_timeout_microseconds
        for policy in (*default, *batching.priority_queue_policy.values())
    )


async def within_timeout(request: InferenceRequest, call: Awaitable[T]) -> T:
    """The result of the call, if that is in time; else it is cancelled, wherever it is.

    Raises:
        DeadlineExceeded: it was not.
    """
    with trio.move_on_after(request.timeout_microseconds / 1e6):
        return await call
    raise DeadlineExceeded(
        f"[request id: {request.id or '<id_unknown>'}] timeout of {request.timeout_microseconds} microseconds expired "
        f"before model '{request.model_name}' answered"
    )
