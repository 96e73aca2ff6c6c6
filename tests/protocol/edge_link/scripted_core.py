"""A core whose answers a test writes down, and which notes what it was asked."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import trio

from protocol.core import ModelStatistics, ReplyChannel, Respond
from protocol.errors import Cancelled, NotFound, ServerError
from protocol.messages import LATEST_VERSION, InferenceRequest, InferenceResponse
from tests.protocol.submitted import FakeSubmitted


class Submission(FakeSubmitted):
    """Of a request that the test answers."""

    def __init__(self, request: InferenceRequest, reply_to: ReplyChannel) -> None:
        super().__init__(request)
        self._reply_to = reply_to

    def answer(self, reply: InferenceResponse | ServerError) -> None:
        self._reply_to.send_nowait(reply)

    def echo(self) -> None:
        """Answer with the inputs."""
        request = self.request
        self.answer(InferenceResponse(request.model_name, 1, request.inputs, request.id))


class ScriptedCore:
    """Implements as much of `protocol.core.InferenceCore` as crosses a link. Requests are answered with their inputs
    when they are flushed, unless it `holds` them; those for the model `missing` are refused at once."""

    def __init__(self) -> None:
        self.holds = False
        self.submitted: list[Submission] = []
        self.unflushed: list[Submission] = []
        self.flushed: list[int] = []  # how many at a time
        self.asked: list[tuple[Any, ...]] = []
        self.stream: Callable[[InferenceRequest, Respond], Awaitable[bool]] | None = None
        self.streams = 0
        self.batching = True

    def submit(self, request: InferenceRequest, reply_to: ReplyChannel, *, later: bool = False) -> Submission:
        submission = Submission(request, reply_to)
        self.submitted.append(submission)
        if request.model_name == "missing":
            submission.answer(NotFound("there is no such model"))
        else:
            self.unflushed.append(submission)
        if not later:
            self.flush()
        return submission

    def flush(self) -> None:
        unflushed, self.unflushed = self.unflushed, []
        if unflushed:
            self.flushed.append(len(unflushed))
        if not self.holds:
            for submission in unflushed:
                submission.echo()

    @property
    def open(self) -> list[Submission]:
        """What was neither answered nor given up."""
        return [submission for submission in self.submitted if not submission.ending]

    async def infer_stream(self, request: InferenceRequest, respond: Respond) -> bool:
        assert self.stream is not None
        self.streams += 1
        try:
            return await self.stream(request, respond)
        finally:
            self.streams -= 1

    def cancel(self, name: str, request_id: str, version: int = LATEST_VERSION) -> int:
        found = [each for each in self.open if each.request.id == request_id]
        for each in found:
            each.answer(Cancelled(f"[request id: {request_id}] was cancelled"))
        return len(found)

    def is_batching(self, name: str, version: int = LATEST_VERSION) -> bool:
        self.asked.append((name, version))
        return self.batching

    def is_live(self) -> bool:
        raise RuntimeError("a defect")

    def each_statistics(self, name: str = "", version: int = LATEST_VERSION) -> Iterator[ModelStatistics]:
        return (ModelStatistics(f"model-{number}-{'x' * 100}", "1") for number in range(20_000))

    async def unload_model(self, name: str, *, unload_dependents: bool = False) -> None:
        self.asked.append((name, unload_dependents))
        try:
            await trio.sleep_forever()
        except trio.Cancelled:
            self.asked.append((name, "cancelled"))
            raise
