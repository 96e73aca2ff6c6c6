"""Generation: runs the inferences of one call, and gives each piece of text to the receiver of its choice.

Several run at once, in a nursery of the call. The first that fails ends all; a client that leaves cancels all, and each
model's request with them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import trio

from protocol.core import Respond, RespondsAtOnce
from protocol.http.openai.codec.tensors import TextPart, decode_text_response
from protocol.http.openai.observation import observed_run
from protocol.messages import InferenceRequest, InferenceResponse
from protocol.text.model import TensorNames


class StreamingCore(Protocol):
    """What of the core runs inferences."""

    async def infer_stream(self, request: InferenceRequest, respond: Respond) -> bool:
        """As `InferenceCore.infer_stream`."""
        ...


class Receiver(Protocol):
    """The receiver of one choice."""

    async def take(self, part: TextPart) -> bool:
        """The next piece; returns whether more is wanted. Awaited before the model gives another one."""
        ...

    def take_at_once(self, part: TextPart) -> bool:
        """Take a piece in the middle of a text, after which more is wanted, without waiting; False where that cannot
        be, and nothing was taken."""
        ...

    async def end(self) -> None:
        """The model has ended."""


class _Inference(RespondsAtOnce):
    """One inference, from its request to its receiver. Given up, it cancels the model, but no receiver that is sending:
    half an event would spoil all that follows."""

    def __init__(self, core: StreamingCore, request: InferenceRequest, names: TensorNames, receiver: Receiver) -> None:
        self._core = core
        self._request = request
        self._names = names
        self._receiver = receiver
        self._scope = trio.CancelScope()
        self._is_taking = False
        self._is_given_up = False
        self._shown = ""  # of a model whose responses have all text so far

    async def run(self) -> None:
        """Returns at the end of the model, or when no more is wanted."""
        with self._scope:
            await self._core.infer_stream(self._request, self)
        if not self._is_given_up:
            await self._receiver.end()

    def respond_at_once(self, response: InferenceResponse) -> bool:
        if response.is_final or self._is_given_up or self._names.accumulates:
            return False
        return self._receiver.take_at_once(decode_text_response(response, self._names))

    async def __call__(self, response: InferenceResponse) -> None:
        part = decode_text_response(response, self._names)
        if self._request.gen_ai is not None:
            self._request.gen_ai.first_token()
        if self._names.accumulates and part.text:
            part.text = self._new_text(part)
        self._is_taking = True
        try:
            wants_more = await self._receiver.take(part)
        finally:
            self._is_taking = False
        if self._is_given_up or not wants_more:
            self._scope.cancel()

    def _new_text(self, part: TextPart) -> str:
        """What is new of all text so far. A letter whose bytes have not all come is held back: it would change."""
        text = part.text if part.finish_reason else part.text.rstrip("\N{REPLACEMENT CHARACTER}")
        new = text[len(self._shown) :]
        self._shown += new
        return new

    def give_up(self) -> None:
        self._is_given_up = True
        if not self._is_taking:
            self._scope.cancel()


async def generate_all(
    core: StreamingCore, requests: Sequence[InferenceRequest], names: TensorNames, receivers: Sequence[Receiver]
) -> None:
    """Raises what the first that fails raises."""
    with observed_run(requests):
        await _run_all(core, requests, names, receivers)


async def _run_all(
    core: StreamingCore, requests: Sequence[InferenceRequest], names: TensorNames, receivers: Sequence[Receiver]
) -> None:
    inferences = [
        _Inference(core, request, names, receiver) for request, receiver in zip(requests, receivers, strict=True)
    ]
    if len(inferences) == 1:
        await inferences[0].run()
        return
    failures: list[Exception] = []

    async def run(inference: _Inference) -> None:
        try:
            await inference.run()
        except Exception as error:
            failures.append(error)
            for each in inferences:
                each.give_up()

    async with trio.open_nursery() as nursery:
        for inference in inferences:
            nursery.start_soon(run, inference)
    if failures:
        raise failures[0]
