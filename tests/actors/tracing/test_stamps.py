"""What a request's trace notes on its way through a model."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from actors.model.model import Model
from actors.tracing.record import RequestTrace, TensorBudget
from actors.tracing.sampling import TraceSampling
from actors.tracing.stamps import begin_compute, end_compute, traces_of
from backends.interface import Backend, BatchTiming, Responder
from protocol.errors import Internal, InvalidArgument
from protocol.messages import InferenceRequest, InferenceResponse
from protocol.server_settings import TraceSettings
from tests.actors.fakes import CONFIG, TIMING, Caller, FakeBackend, fake_backend, request, spec, tensor
from tests.actors.test_decoupled import DECOUPLED

COMPUTE = ["COMPUTE_START", "COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START", "COMPUTE_END"]


def traced(request: InferenceRequest) -> tuple[InferenceRequest, RequestTrace]:
    sampling = TraceSampling(TraceSettings(("TIMESTAMPS", "TENSORS"), 1, file="t"))
    trace = RequestTrace(1, "m", sampling, TensorBudget(1000), lambda trace: None)
    request.trace = trace
    return request, trace


def names(trace: RequestTrace) -> list[str]:
    """In the order in which they happened."""
    return [name for name, _ in sorted(trace.stamps, key=lambda stamp: stamp[1])]


async def served(nursery: trio.Nursery, backend: type[FakeBackend]) -> Model:
    model = Model(CONFIG, 7, backend, [spec()])
    await nursery.start(model.run)
    return model


async def test_a_request_that_is_answered(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    model = await served(nursery, fake_backend())
    asked, trace = traced(request(id="r", value=2))
    await model.infer(asked)
    assert names(trace) == ["REQUEST_START", "QUEUE_START", *COMPUTE, "REQUEST_END"]
    assert (trace.model_version, trace.request_id) == (7, "r")
    assert [(recorded.activity, recorded.tensor.name) for recorded in trace.tensors] == [
        ("TENSOR_QUEUE_INPUT", "IN"),
        ("TENSOR_BACKEND_OUTPUT", "OUT"),
    ]
    assert trace.tensors[1].tensor.as_numpy().tolist() == [[2, 2]]


async def test_a_request_that_is_refused(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    """It never was in the queue; its trace says which version refused it."""
    model = await served(nursery, fake_backend())
    asked, trace = traced(InferenceRequest("m", [tensor(name="OTHER")]))
    with pytest.raises(InvalidArgument):
        await model.infer(asked)
    assert names(trace) == ["REQUEST_START"]
    assert trace.model_version == 7


async def test_a_request_that_fails(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    def fail(backend: FakeBackend, requests: Sequence[InferenceRequest]) -> None:
        raise ZeroDivisionError

    model = await served(nursery, fake_backend(on_execute=fail))
    asked, trace = traced(request())
    with pytest.raises(Internal):
        await model.infer(asked)
    assert names(trace) == ["REQUEST_START", "QUEUE_START", "COMPUTE_START", "COMPUTE_END", "REQUEST_END"]
    assert [recorded.activity for recorded in trace.tensors] == ["TENSOR_QUEUE_INPUT"]


async def test_a_request_whose_client_has_gone(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    """The edge ends the trace; what the batch still does is not in it."""
    model = await served(nursery, fake_backend(seconds=10))
    asked, trace = traced(request())
    with trio.move_on_after(1):
        await model.infer(asked)
    trace.end()
    await trio.sleep(20)
    assert names(trace) == ["REQUEST_START", "QUEUE_START", "COMPUTE_START", "REQUEST_END"]


async def test_only_the_traced_of_a_batch_are_stamped(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    backend = fake_backend(seconds=1)
    model = await served(nursery, backend)
    asked, trace = traced(request(id="traced"))
    nursery.start_soon(model.infer, request(id="first"))
    await wait_all_tasks_blocked()
    async with trio.open_nursery() as asking:
        asking.start_soon(model.infer, request(id="plain"))
        asking.start_soon(model.infer, asked)
    assert sorted(backend.batches[1]) == ["plain", "traced"]
    assert names(trace)[2:6] == COMPUTE


class Twice(Backend):
    """Replies a request with two responses, long after it has taken it."""

    can_be_decoupled = True

    async def load(self) -> None:
        self.answering: list[Responder] = []

    async def execute(self, requests: Sequence[InferenceRequest]) -> None:  # type: ignore[override]  # never called
        raise AssertionError

    async def execute_decoupled(
        self, requests: Sequence[InferenceRequest], responders: Sequence[Responder]
    ) -> BatchTiming:
        self.answering.extend(responders)
        return TIMING

    async def wait_died(self) -> None:
        while True:
            await trio.sleep(1)
            while self.answering:
                responder = self.answering.pop()
                for is_final in (False, True):
                    await trio.sleep(1)
                    await responder.send(InferenceResponse("m", 1, [tensor(name="OUT")], is_final=is_final))


async def test_a_request_to_a_decoupled_model(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    """Its computation ends with its last response, not when the instance has taken it."""
    model = Model(DECOUPLED, 1, Twice, [spec(DECOUPLED)])
    await nursery.start(model.run)
    asked, trace = traced(request())

    async def respond(response: InferenceResponse) -> None:
        trace.stamp(f"RESPONSE_{response.is_final}")

    await model.infer_stream(asked, respond)
    happened = names(trace)
    # Where the last response leaves before the batch's times are known, the two between are missing.
    between = {"COMPUTE_INPUT_END", "COMPUTE_OUTPUT_START"}
    every = {"REQUEST_START", "QUEUE_START", *COMPUTE, "RESPONSE_False", "RESPONSE_True", "REQUEST_END"}
    assert every - between <= set(happened) <= every
    assert happened.index("COMPUTE_START") < happened.index("COMPUTE_END")
    assert happened.index("RESPONSE_False") < happened.index("RESPONSE_True")
    assert happened[-1] == "REQUEST_END"
    assert [recorded.activity for recorded in trace.tensors] == ["TENSOR_QUEUE_INPUT"] + 2 * ["TENSOR_BACKEND_OUTPUT"]


class AtOnce(Twice):
    """Sends both responses before it says how it spent its time."""

    async def execute_decoupled(
        self, requests: Sequence[InferenceRequest], responders: Sequence[Responder]
    ) -> BatchTiming:
        for is_final in (False, True):
            await responders[0].send(InferenceResponse("m", 1, [tensor(name="OUT")], is_final=is_final))
        await trio.sleep(1)
        return TIMING


async def test_nothing_is_computed_after_the_last_response(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    """Also while a slow client keeps the trace open."""
    model = Model(DECOUPLED, 1, AtOnce, [spec(DECOUPLED)])
    await nursery.start(model.run)
    asked, trace = traced(request())

    async def respond(response: InferenceResponse) -> None:
        await trio.sleep(5)

    await model.infer_stream(asked, respond)
    assert names(trace) == ["REQUEST_START", "QUEUE_START", "COMPUTE_START", "COMPUTE_END", "REQUEST_END"]


async def test_the_timing_is_counted_back_from_the_end() -> None:
    callers = [Caller(), Caller()]
    _, trace = traced(callers[1].item.request)
    traces = traces_of([caller.item for caller in callers])
    begin_compute(traces)
    end_compute(traces, BatchTiming(compute_input_ns=1, compute_infer_ns=200, compute_output_ns=30))
    at = dict(trace.stamps)
    assert at["COMPUTE_END"] - at["COMPUTE_OUTPUT_START"] == 30
    assert at["COMPUTE_OUTPUT_START"] - at["COMPUTE_INPUT_END"] == 200
