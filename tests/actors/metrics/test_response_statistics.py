"""What is counted for the responses of a decoupled model, by their place among their request's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

import pytest
import trio
from msgspec.structs import replace
from trio.testing import MockClock, wait_all_tasks_blocked

from actors.metrics.response_statistics import COUNTED_RESPONSES, ResponseStatistics
from actors.model.model import Model
from backends.interface import Backend, BatchTiming, Responder
from protocol.core import MemoryUsage
from protocol.errors import Cancelled, Internal, InvalidArgument, ServerError
from protocol.messages import InferenceRequest, InferenceResponse
from repository.model_config import ModelTransactionPolicy
from tests.actors.fakes import CONFIG, TIMING, request, spec

DECOUPLED = replace(CONFIG, model_transaction_policy=ModelTransactionPolicy(decoupled=True))
SECOND = 1_000_000_000

# Of one response: how often and how long, in seconds.
Counted = dict[str, tuple[int, float]]


def counted(statistics: ResponseStatistics) -> dict[str, Counted]:
    """What is not zero, by index."""
    return {
        index: {name: (row["count"], row["ns"] / SECOND) for name, row in asdict(each).items() if row["count"]}
        for index, each in statistics.frozen().items()
    }


class Scripted(Backend):
    """Its request's id says what becomes of it, a second each: `out` a response with a tensor, `bare` one without,
    `final` the last response, `error` an error, `cancel` the model's answer to a cancellation, `end` the end alone."""

    can_be_decoupled = True

    async def load(self) -> None:
        pass

    async def execute(self, requests: Sequence[InferenceRequest]) -> None:  # type: ignore[override]  # never called
        raise AssertionError

    async def execute_decoupled(
        self, requests: Sequence[InferenceRequest], responders: Sequence[Responder]
    ) -> BatchTiming:
        for item, responder in zip(requests, responders, strict=True):
            for word in item.id.split():
                await trio.sleep(1)
                match word:
                    case "error":
                        responder.close(InvalidArgument("no"))
                    case "cancel":
                        responder.close(Cancelled("stopped"))
                    case "end":
                        responder.close()
                    case _:
                        outputs = [] if word == "bare" else item.inputs
                        await responder.send(InferenceResponse("m", 1, outputs, "", is_final=word == "final"))
        return TIMING

    def memory_usage(self) -> Sequence[MemoryUsage]:
        return MemoryUsage("GPU", 1, 10), MemoryUsage("CPU", 0, 1), MemoryUsage("CPU", 0, 2)


SENT: Counted = {"compute_infer": (1, 1.0), "compute_output": (1, 0.0), "success": (1, 1.0)}
FAILED: Counted = {"compute_infer": (1, 1.0), "compute_output": (1, 0.0), "fail": (1, 1.0)}


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("out out final", {"0": SENT, "1": SENT, "2": SENT}),
        ("out end", {"0": SENT, "1": {"empty_response": (1, 1.0)}}),
        ("bare out end", {"0": {"empty_response": (1, 1.0)}, "1": SENT, "2": {"empty_response": (1, 1.0)}}),
        ("end", {"0": {"empty_response": (1, 1.0)}}),
        ("out error", {"0": SENT, "1": FAILED}),
        ("out cancel", {"0": SENT, "1": {"cancel": (1, 1.0)}}),
    ],
)
async def test_each_response_counts_at_its_place(
    script: str, expected: dict[str, Counted], nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    model = Model(DECOUPLED, 1, Scripted, [spec(DECOUPLED)])
    await nursery.start(model.run)
    await run(model, script)
    assert counted(model.statistics.responses) == expected


async def run(model: Model, script: str) -> ServerError | None:
    async def ignore(response: InferenceResponse) -> None:
        pass

    try:
        await model.infer_stream(request(id=script), ignore)
    except ServerError as error:
        return error
    finally:
        await wait_all_tasks_blocked()
    return None


async def test_requests_add_up(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    model = Model(DECOUPLED, 1, Scripted, [spec(DECOUPLED)])
    await nursery.start(model.run)
    await run(model, "out end")
    await run(model, "out out end")
    found = counted(model.statistics.responses)
    assert found["0"]["success"] == (2, 2.0)
    assert found["1"] == {**SENT, "empty_response": (1, 1.0)}
    assert found["2"] == {"empty_response": (1, 1.0)}


async def test_a_caller_that_leaves_is_one_cancellation(nursery: trio.Nursery, autojump_clock: MockClock) -> None:
    """However many responses its model gives to nobody."""
    model = Model(DECOUPLED, 1, Scripted, [spec(DECOUPLED)])
    await nursery.start(model.run)
    with trio.move_on_after(1.5):
        await run(model, "out out out out end")
    await trio.sleep(10)
    assert counted(model.statistics.responses) == {"0": SENT, "1": {"cancel": (1, 4.0)}}


async def test_the_time_that_a_slow_caller_takes_is_output_time(
    nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    model = Model(DECOUPLED, 1, Scripted, [spec(DECOUPLED)])
    await nursery.start(model.run)

    async def slowly(response: InferenceResponse) -> None:
        await trio.sleep(100)

    await model.infer_stream(request(id="out " * 70 + "end"), slowly)
    found = counted(model.statistics.responses)
    assert found["65"]["compute_output"][1] == pytest.approx(34, abs=1), (
        "64 fit into the buffer, one is in the caller's hands"
    )
    assert found["65"]["compute_infer"] == (1, 1.0)


def test_later_responses_are_not_counted() -> None:
    statistics = ResponseStatistics()
    for index in (COUNTED_RESPONSES - 1, COUNTED_RESPONSES, 10 * COUNTED_RESPONSES):
        statistics.count_response(index, began=0.0, computed=1.0, ended=1.0)
        statistics.count_empty(index, began=0.0, ended=1.0)
        statistics.count_error(index, Internal("no"), began=0.0, ended=1.0)
    assert len(statistics.frozen()) == COUNTED_RESPONSES
    assert statistics.frozen()[str(COUNTED_RESPONSES - 1)].success.count == 1


async def test_memory_is_that_of_all_instances(nursery: trio.Nursery) -> None:
    model = Model(DECOUPLED, 1, Scripted, [spec(DECOUPLED), spec(DECOUPLED, name="m_1")])
    assert model.memory_usage() == []
    await nursery.start(model.run)
    expected = [MemoryUsage("CPU", 0, 6), MemoryUsage("GPU", 1, 20)]
    assert model.memory_usage() == expected
    assert model.statistics.frozen("m", 1, expected).memory_usage == tuple(expected)


class Shy(Scripted):
    def memory_usage(self) -> Sequence[MemoryUsage]:
        raise RuntimeError("I do not tell")


async def test_a_backend_that_fails_to_tell_is_left_out(
    nursery: trio.Nursery, caplog: pytest.LogCaptureFixture
) -> None:
    model = Model(DECOUPLED, 1, Shy, [spec(DECOUPLED)])
    await nursery.start(model.run)
    assert model.memory_usage() == []
    assert "cannot tell its memory usage" in caplog.text
