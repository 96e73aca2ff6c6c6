"""Runs the inferences of one call that are answered once each, some at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import trio

from protocol.core import InferenceCore
from protocol.errors import Internal
from protocol.messages import InferenceRequest, InferenceResponse

T = TypeVar("T")

# Of one call, at one time.
_MOST_RUNNING = 64
# Bytes of an answer that is read on the loop.
_READ_IN_THREAD_ABOVE = 1 << 17


async def single_answers(
    core: InferenceCore, requests: Sequence[InferenceRequest], read: Callable[[int, InferenceResponse], T]
) -> list[T]:
    """What `read` makes of the answer to each, in order, of a large one in a thread; it gets the place of the request,
    too. The first inference that fails ends all."""
    found: dict[int, T] = {}
    failures: list[Exception] = []
    waiting = iter(enumerate(requests))

    async def work() -> None:
        try:
            for place, request in waiting:
                response = await _answer(core, request)
                if sum(tensor.byte_size for tensor in response.outputs) > _READ_IN_THREAD_ABOVE:
                    found[place] = await trio.to_thread.run_sync(read, place, response)
                else:
                    found[place] = read(place, response)
        except Exception as error:
            failures.append(error)
            nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        for _ in range(min(len(requests), _MOST_RUNNING)):
            nursery.start_soon(work)
    if failures:
        raise failures[0]
    return [found[place] for place in range(len(requests))]


async def _answer(core: InferenceCore, request: InferenceRequest) -> InferenceResponse:
    answers: list[InferenceResponse] = []

    async def keep(response: InferenceResponse) -> None:
        if response.outputs:
            answers.append(response)

    await core.infer_stream(request, keep)
    if len(answers) != 1:
        raise Internal(f"model '{request.model_name}': expected 1 response, got {len(answers)}")
    return answers[0]
