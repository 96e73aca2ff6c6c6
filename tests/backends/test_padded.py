"""Shape rules around a backend that knows nothing of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from backends.interface import STARTED, Backend, BatchResult, BatchTiming, Responder
from backends.padded import PaddedBackend
from backends.padding import Padding
from protocol.errors import Internal, ServerError
from protocol.messages import InferenceRequest, InferenceResponse, Tensor
from repository.model_config import ModelParameter
from repository.shape_rules import read_shape_rules
from tests.backends.helpers import answer, infer, loaded, request_of, source_of, spec_of

CONFIG = """
max_batch_size: 8
input [ { name: "X" data_type: TYPE_INT32 dims: [ -1 ] } ]
output [ { name: "Y" data_type: TYPE_INT32 dims: [ -1 ] } ]
"""
RULES = {
    "inputs": {"X": {"dims": {"0": {"multiple": 4}}}},
    "outputs": {"Y": {"dims": {"0": {"input": "X"}}}},
}
TIMING = BatchTiming(1, 2, 3)


class Telling(Backend):
    """Y = X, or what is too short to be trimmed where a 13 is in it; notes the shapes that it gets."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.shapes: list[tuple[int, ...]] = []
        self.life: list[str] = []

    async def load(self) -> None:
        self.life.append("load")

    def respond(self, request: InferenceRequest) -> InferenceResponse:
        x = request.inputs[0].as_numpy()
        self.shapes.append(x.shape)
        return InferenceResponse("m", 1, [Tensor.from_numpy("Y", x[:, :1] if 13 in x else x)])

    async def execute(self, requests: Sequence[InferenceRequest]) -> BatchResult:
        return BatchResult([self.respond(request) for request in requests], TIMING)

    async def execute_decoupled(
        self, requests: Sequence[InferenceRequest], responders: Sequence[Responder]
    ) -> BatchTiming:
        for request, responder in zip(requests, responders, strict=True):
            assert not responder.is_cancelled
            await responder.send(self.respond(request))
            assert responder.send_nowait(self.respond(request))
            responder.close()
        return TIMING

    async def execute_overlapping(self, requests: Sequence[InferenceRequest], free: Callable[[], None]) -> BatchResult:
        free()
        return await self.execute(requests)

    async def execute_decoupled_overlapping(
        self, requests: Sequence[InferenceRequest], responders: Sequence[Responder], free: Callable[[], None]
    ) -> BatchTiming:
        free()
        return await self.execute_decoupled(requests, responders)

    def cancel(self, request: InferenceRequest) -> None:
        self.life.append(f"cancel {request.inputs[0].shape}")

    async def is_ready(self) -> bool:
        return False

    async def wait_died(self) -> None:
        self.life.append("wait_died")

    async def unload(self) -> None:
        self.life.append("unload")


class Notes:
    """A responder that keeps what it is given."""

    is_cancelled = False

    def __init__(self) -> None:
        self.responses: list[InferenceResponse] = []
        self.errors: list[ServerError | None] = []

    async def send(self, response: InferenceResponse) -> None:
        self.responses.append(response)

    def send_nowait(self, response: InferenceResponse) -> bool:
        self.responses.append(response)
        return True

    def close(self, error: ServerError | None = None) -> None:
        self.errors.append(error)


def padded() -> tuple[PaddedBackend, Telling]:
    spec = spec_of(source_of(CONFIG))
    spec.config.parameters["shape_rules"] = ModelParameter(string_value=json.dumps(RULES))
    rules = read_shape_rules(spec.config)
    assert rules is not None
    inner = Telling(spec)
    return PaddedBackend(inner, Padding(rules, spec.config)), inner


def number(*values: int) -> InferenceRequest:
    return request_of(("X", np.array([values], np.int32)))


def computed(inner: Telling, requests: Sequence[InferenceRequest]) -> BatchResult:
    return BatchResult([inner.respond(request) for request in requests], TIMING)


def never(result: object) -> None:
    raise AssertionError("nothing is to come later")


async def test_requests_are_padded_and_responses_trimmed() -> None:
    backend, inner = padded()
    one, two = await infer(backend, number(1, 2, 3), number(1, 2, 3, 4, 5))
    assert inner.shapes == [(1, 4), (1, 8)]
    assert (answer(one)["Y"].tolist(), answer(two)["Y"].tolist()) == ([[1, 2, 3]], [[1, 2, 3, 4, 5]])


def test_a_batch_that_is_begun_by_a_call_is_padded_and_trimmed_too() -> None:
    """With its callers that have gone already, where the backend is told of them before."""
    backend, inner = padded()
    first, second = number(1, 2, 3), number(13, 2)
    assert backend.begin([first], never) is None
    assert inner.shapes == []
    inner.begin = lambda requests, done, free=None: computed(inner, requests)  # type: ignore[method-assign]
    backend.cancel(second)
    assert inner.life == []
    result = backend.begin([first, second], never)
    assert inner.life == ["cancel (1, 4)"]
    assert isinstance(result, BatchResult)
    assert answer(result.responses[0])["Y"].tolist() == [[1, 2, 3]]
    assert isinstance(result.responses[1], Internal)


def test_a_batch_that_ends_after_the_call_is_trimmed_then() -> None:
    """Until then the backend is told of the request that it has."""
    backend, inner = padded()
    ended: list[BatchResult | Exception] = []
    begun: list[Callable[[BatchResult | Exception], None]] = []
    inner.begin = lambda requests, done, free=None: begun.append(done) or STARTED  # type: ignore[method-assign,func-returns-value]
    good, bad = number(1, 2, 3), number(1, 2)
    assert backend.begin([good], ended.append) is STARTED
    assert backend.begin([bad], ended.append) is STARTED
    backend.cancel(bad)
    assert inner.life == ["cancel (1, 4)"]
    begun[0](computed(inner, [number(1, 2, 3, 0)]))
    begun[1](Internal("broken"))
    first, second = ended
    assert isinstance(first, BatchResult)
    assert answer(first.responses[0])["Y"].tolist() == [[1, 2, 3]]
    assert isinstance(second, Internal)


def test_a_beginning_that_raises_leaves_nothing() -> None:
    backend, inner = padded()

    def refuse(requests: Sequence[InferenceRequest], done: object, free: object = None) -> None:
        raise Internal("broken")

    inner.begin = refuse  # type: ignore[method-assign]
    with pytest.raises(Internal, match="broken"):
        backend.begin([number(1, 2)], never)
    assert not backend._given


async def test_a_response_that_cannot_be_trimmed_fails_its_request_alone() -> None:
    backend, _ = padded()
    good, bad = await infer(backend, number(1, 2), number(13, 2))
    assert answer(good)["Y"].tolist() == [[1, 2]]
    with pytest.raises(Internal, match="output 'Y': the shape rules trim"):
        answer(bad)


async def test_the_responses_of_decoupled_models_are_trimmed_too() -> None:
    backend, inner = padded()
    good, bad = Notes(), Notes()
    assert await backend.execute_decoupled([number(1, 2), number(13, 2)], [good, bad]) == TIMING
    assert [answer(response)["Y"].tolist() for response in good.responses] == [[[1, 2]], [[1, 2]]]
    assert good.errors == [None]
    assert (bad.responses, [type(error) for error in bad.errors[:1]]) == ([], [Internal])
    assert inner.shapes == [(1, 4)] * 4


async def test_the_backend_is_told_to_cancel_the_request_that_it_was_given() -> None:
    """The padded one, as long as it has it."""
    backend, inner = padded()
    request = number(1, 2)
    result = await backend.execute_overlapping([request], lambda: backend.cancel(request))
    assert answer(result.responses[0])["Y"].tolist() == [[1, 2]]
    assert inner.life == ["cancel (1, 4)"]
    notes = Notes()
    await backend.execute_decoupled_overlapping([request], [notes], lambda: backend.cancel(request))
    assert [answer(response)["Y"].tolist() for response in notes.responses] == [[[1, 2]], [[1, 2]]]
    assert inner.life == ["cancel (1, 4)"] * 2
    backend.cancel(request)
    assert inner.life == ["cancel (1, 4)"] * 2


async def test_its_life_is_that_of_the_backend_in_it() -> None:
    made, inner = padded()
    async with loaded(lambda _: made, inner.spec) as backend:  # type: ignore[arg-type]  # any callable will do
        await backend.wait_died()
        assert not await backend.is_ready()
    assert inner.life == ["load", "wait_died", "unload"]
