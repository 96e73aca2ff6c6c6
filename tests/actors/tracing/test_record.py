"""The trace of one request: what it notes, and what it leaves out."""

from __future__ import annotations

import time

import numpy as np
import pytest

from actors.tracing.record import MAX_STAMPS, RequestTrace, TensorBudget
from actors.tracing.sampling import TraceSampling
from protocol.messages import Tensor
from protocol.server_settings import TraceSettings

BOTH = ("TIMESTAMPS", "TENSORS")


def trace(*level: str, budget: TensorBudget | None = None, ended: list[RequestTrace] | None = None) -> RequestTrace:
    sampling = TraceSampling(TraceSettings(level or BOTH, 1, file="t.json"))
    return RequestTrace(1, "m", sampling, budget or TensorBudget(1000), ([] if ended is None else ended).append)


def test_stamps_are_of_the_monotonic_clock() -> None:
    made = trace()
    before = time.monotonic_ns()
    made.stamp("REQUEST_START")
    made.stamp("COMPUTE_START", 5)
    (first, ns), second = made.stamps
    assert first == "REQUEST_START"
    assert before <= ns <= time.monotonic_ns()
    assert second == ("COMPUTE_START", 5)


def test_the_level_says_what_is_noted() -> None:
    tensor = Tensor.from_numpy("x", np.zeros(2, np.float32))
    for level, stamps, tensors in ((("TIMESTAMPS",), 1, 0), (("TENSORS",), 0, 1), (BOTH, 1, 1)):
        made = trace(*level)
        made.stamp("QUEUE_START")
        made.record_tensors("TENSOR_QUEUE_INPUT", [tensor])
        assert (len(made.stamps), len(made.tensors)) == (stamps, tensors)


def test_the_end_comes_once() -> None:
    """What a model still says after its client was answered changes nothing."""
    ended: list[RequestTrace] = []
    made = trace(ended=ended)
    made.identify(3, "r")
    made.end()
    made.end()
    made.stamp("COMPUTE_END")
    made.identify(4, "other")
    made.record_tensors("TENSOR_BACKEND_OUTPUT", [Tensor.from_numpy("x", np.zeros(2))])
    assert ended == [made]
    assert (made.model_version, made.request_id, made.stamps, made.tensors) == (3, "r", [], [])


def test_tensors_are_copied() -> None:
    """Their memory may be a client's, who writes the next request into it."""
    array = np.array([1, 2], np.int32)
    made = trace()
    made.record_tensors("TENSOR_QUEUE_INPUT", [Tensor.from_numpy("x", array)])
    array[:] = 0
    assert made.tensors[0].tensor.as_numpy().tolist() == [1, 2]


def test_tensors_beyond_the_budget_are_left_out() -> None:
    budget = TensorBudget(16)
    first, second = trace(budget=budget), trace(budget=budget)
    large, small = (Tensor.from_numpy(name, np.zeros(n, np.int32)) for name, n in (("large", 3), ("small", 1)))
    first.record_tensors("TENSOR_QUEUE_INPUT", [large])
    second.record_tensors("TENSOR_QUEUE_INPUT", [large, small])
    assert [recorded.tensor.name for recorded in second.tensors] == ["small"]
    assert (first.is_cut, second.is_cut) == (False, True)
    first.release()
    first.release()
    third = trace(budget=budget)
    third.record_tensors("TENSOR_QUEUE_INPUT", [large])
    assert len(third.tensors) == 1
    assert not budget.take(1)


def test_a_stream_without_end_does_not_fill_the_memory() -> None:
    made = trace()
    for ns in range(MAX_STAMPS + 1):
        made.stamp("GRPC_SEND_START", ns)
    assert len(made.stamps) == MAX_STAMPS
    assert made.is_cut


@pytest.mark.parametrize("data", [b"", memoryview(b"")])
def test_an_empty_tensor(data: bytes | memoryview) -> None:
    made = trace(budget=TensorBudget(0))
    made.record_tensors("TENSOR_QUEUE_INPUT", [Tensor("x", Tensor.from_numpy("x", np.zeros(1)).datatype, (0,), data)])
    assert made.tensors[0].tensor.as_numpy().tolist() == []
