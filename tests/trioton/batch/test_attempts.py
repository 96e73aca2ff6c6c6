"""A row on a model that refuses it, fails, or dies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import pytest
import trio
from trio.testing import MockClock

from backends.interface import InstanceDied
from protocol.core import Respond
from protocol.errors import InvalidArgument, ServerError, Unavailable
from protocol.jobs.job import ItemError
from protocol.jobs.rows import ResultRow
from protocol.jobs.source import Position
from protocol.messages import InferenceRequest, InferenceResponse, Tensor
from trioton.batch.attempts import MOST_DEATHS, Attempts, ModelUnavailable, RequestRow
from trioton.in_process import Models


class FakeModels:
    """Raises what comes next for a row's value, and answers it when there is nothing more."""

    def __init__(self, **raised: Sequence[Exception]) -> None:
        self.raised = {name: list(errors) for name, errors in raised.items()}
        self.running = 0
        self.beside: list[tuple[str, int]] = []

    async def infer(self, request: InferenceRequest) -> InferenceResponse:
        name = request.id
        self.running += 1
        try:
            await trio.sleep(0.1)
            self.beside.append((name, self.running))
        finally:
            self.running -= 1
        if errors := self.raised.get(name):
            raise errors.pop(0)
        return InferenceResponse("m", 1, [Tensor.from_numpy("Y", np.zeros(1))])

    async def infer_stream(self, request: InferenceRequest, respond: Respond) -> bool:
        for _ in range(3):
            await respond(await self.infer(request))
        return True


def attempts(models: FakeModels, *, is_decoupled: bool = False, patience: float = 60.0) -> Attempts:
    return Attempts(cast(Models, models), is_decoupled, patience)


def row(name: str, index: int = 0) -> RequestRow:
    return RequestRow(index, name, InferenceRequest("m", [], id=name), Position(index + 1))


def kind_of(result: ResultRow) -> str:
    return "" if result.error is None else result.error.kind


async def test_what_is_unavailable_is_tried_again(autojump_clock: MockClock) -> None:
    models = FakeModels(a=[Unavailable("loading")] * 4)
    trying = attempts(models)
    result = await trying.run(row("a"))
    assert (result.error, len(result.responses), trying.retries) == (None, 1, 4)
    assert trio.current_time() == pytest.approx(5 * 0.1 + 0.5 + 1 + 2 + 4)


async def test_other_errors_are_final(autojump_clock: MockClock) -> None:
    models = FakeModels(a=[InvalidArgument("no")], b=[KeyError("defect")])
    trying = attempts(models)
    first, second = await trying.run(row("a")), await trying.run(row("b"))
    assert first.error == ItemError("INVALID_ARG", "no")
    assert kind_of(second) == "INTERNAL"
    assert trying.retries == 0


async def test_a_line_that_is_no_request_is_not_run() -> None:
    models = FakeModels()
    result = await attempts(models).run(RequestRow(3, "c", InvalidArgument("garbage"), Position(4)))
    assert (result.index, result.custom_id, models.beside) == (3, "c", [])
    assert result.error == ItemError("INVALID_ARG", "garbage")


async def test_a_model_that_refuses_for_too_long_ends_the_run(autojump_clock: MockClock) -> None:
    with pytest.raises(ModelUnavailable, match="gone"):
        await attempts(FakeModels(a=[Unavailable("gone")] * 100), patience=10).run(row("a"))
    assert 10 <= trio.current_time() < 12


async def test_a_row_that_is_refused_while_others_are_answered_has_failed(autojump_clock: MockClock) -> None:
    models = FakeModels(a=[Unavailable("never this one")] * 100)
    trying = attempts(models, patience=10)
    results: list[Any] = []

    async def run_one(name: str) -> None:
        results.append(await trying.run(row(name)))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run_one, "a")
        await trio.sleep(5)
        nursery.start_soon(run_one, "b")
    assert [(result.custom_id, result.error is None) for result in results] == [("b", True), ("a", False)]


async def test_after_a_death_a_row_runs_alone(autojump_clock: MockClock) -> None:
    """The one that is to blame dies again; the others do not."""

    def died() -> ServerError:
        return InstanceDied("it was killed")

    models = FakeModels(good=[died()], bad=[died() for _ in range(MOST_DEATHS)])
    trying = attempts(models)
    results: dict[str, Any] = {}

    async def run_one(name: str) -> None:
        results[name] = await trying.run(row(name))

    async with trio.open_nursery() as nursery:
        for name in ("good", "bad", "other"):
            nursery.start_soon(run_one, name)
    assert results["good"].error is None
    assert results["other"].error is None
    assert "at last alone: it was killed" in results["bad"].error.message
    again = [running for name, running in models.beside[3:]]
    assert again == [1] * (1 + MOST_DEATHS - 1)


async def test_all_responses_of_a_decoupled_model(autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch) -> None:
    trying = attempts(FakeModels(), is_decoupled=True)
    assert len((await trying.run(row("a"))).responses) == 3
    monkeypatch.setattr("actors.jobs.responses.MAX_RESULT_BYTES", 20)
    result = await trying.run(row("a"))
    assert kind_of(result) == "PAYLOAD_TOO_LARGE"
