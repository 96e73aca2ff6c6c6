"""Generation: runs the inferences of one call, and gives each piece of text to the receiver of its choice.

Several run at once, in a nursery of the call. The first that fails ends all; a client that leaves cancels all, and each
model's request with them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import trio

from protocol.core import InferenceCore
from protocol.http.openai.codec.tensors import TextPart, decode_text_response
from protocol.messages import InferenceRequest, InferenceResponse
from protocol.text.model import TensorNames


class Receiver(Protocol):
    """The receiver of one choice."""

    async def take(self, part: TextPart) -> bool:
        """The next piece; returns whether more is wanted. Awaited before the model gives another one."""
        ...

    async def end(self) -> None:
        """The model has ended."""


async def generate(core: InferenceCore, request: InferenceRequest, names: TensorNames, receiver: Receiver) -> None:
    """Run one inference to its end, or until its receiver wants no more."""
    with trio.CancelScope() as running:

        async def respond(response: InferenceResponse) -> None:
            if not await receiver.take(decode_text_response(response, names)):
                running.cancel()

        await core.infer_stream(request, respond)
    await receiver.end()


async def generate_all(
    core: InferenceCore, requests: Sequence[InferenceRequest], names: TensorNames, receivers: Sequence[Receiver]
) -> None:
    """Raises what the first that fails raises."""
    if len(requests) == 1:
        await generate(core, requests[0], names, receivers[0])
        return
    failures: list[Exception] = []

    async def run(request: InferenceRequest, receiver: Receiver) -> None:
        try:
            await generate(core, request, names, receiver)
        except Exception as error:
            failures.append(error)
            nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        for request, receiver in zip(requests, receivers, strict=True):
            nursery.start_soon(run, request, receiver)
    if failures:
        raise failures[0]
