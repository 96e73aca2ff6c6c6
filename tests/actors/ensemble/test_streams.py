"""Ensembles with decoupled steps: iterations, their order, errors in the middle, readers that leave."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from actors.metrics.statistics import FailureReason
from protocol.errors import (
    Internal,
    InvalidArgument,
    Unsupported,
)
from protocol.messages import InferenceRequest, InferenceResponse
from repository.model_config import ModelConfig
from tests.actors.ensemble.ensembles import (
    STREAM,
    ComposingModel,
    Toy,
    adds,
    collect,
    counts,
    ensemble_config,
    first_number,
    product,
    request,
    serving,
    step,
    toy,
    vector,
)


async def test_each_response_starts_the_steps_after_it_and_order_is_kept(autojump_clock: MockClock) -> None:
    slower_first = toy("b", before=lambda asked: 10 - first_number(asked))
    ends: list[float] = []

    def function(arrays: Any) -> Any:
        ends.append(float(arrays["I"][0]))
        return {"O": arrays["I"] * 10}

    slower_first.function = function
    async with serving(STREAM, counts(seconds=0.1), slower_first) as model:
        assert model.is_decoupled
        assert await collect(model, request(IN=5)) == [{"OUT": n * 10} for n in range(5)]
        assert ends[0] != 0, "they ran beside each other, and the later ones ended first"
        with pytest.raises(Unsupported, match="is decoupled"):
            await model.infer(request(IN=5))
        statistics = model.statistics.frozen("e", 1)
        assert statistics.inference_stats.success.count == statistics.execution_count == 1


async def test_no_response_is_an_answer_too() -> None:
    async with serving(STREAM, counts(), toy("b")) as model:
        assert await collect(model, request(IN=0)) == []


async def test_tensors_of_two_iterations_never_mix(autojump_clock: MockClock) -> None:
    """Two ways of different length meet again; an outer tensor comes late."""
    config = ensemble_config(
        step("d", "I=IN", "O=T"),
        step("slow", "I=T", "O=A"),
        step("quick", "I=T", "O=B"),
        step("sum", "I=A J=B K=LATE", "O=OUT"),
        step("late", "I=IN", "O=LATE"),
        outputs=["OUT", "T", "LATE"],
    )
    models = (
        counts(seconds=1),
        toy("slow", adds(100), seconds=5),
        toy("quick", adds(1000)),
        toy("sum", lambda x: {"O": x["I"] + x["J"] + x["K"]}, ["I", "J", "K"]),
        toy("late", adds(10_000), seconds=3),
    )
    async with serving(config, *models) as model:
        assert await collect(model, request(IN=4)) == [
            {"OUT": 2 * n + 1100 + 10_004, "T": n, "LATE": 10_004} for n in range(4)
        ]


async def test_decoupled_steps_inside_each_other(autojump_clock: MockClock) -> None:
    config = ensemble_config(
        step("d", "I=IN", "O=T"), step("d", "I=T", "O=U"), step("c", "I=T J=U", "O=OUT"), outputs=["OUT"]
    )
    async with serving(config, counts(seconds=1), toy("c", lambda x: {"O": x["I"] * 10 + x["J"]}, ["I", "J"])) as model:
        got = await collect(model, request(IN=4))
    assert [each["OUT"] for each in got] == [10 * t + u for t in range(4) for u in range(t)]


async def test_an_iteration_that_comes_to_nothing_holds_up_no_other(autojump_clock: MockClock) -> None:
    config = ensemble_config(
        step("d", "I=IN", "O=T"),
        step("odd", "I=T", "C=C"),
        step("d", "I=T", "O=OUT"),
        parameters={"condition:2": "C"},
        max_inflight_requests=2,
    )
    odd = toy("odd", lambda x: {"C": x["I"] % 2 == 1}, outputs=["C:BOOL"], seconds=1)
    async with serving(config, counts(seconds=1), odd) as model:
        assert [each["OUT"] for each in await collect(model, request(IN=5))] == [0, 0, 1, 2]


async def test_an_error_comes_after_the_responses_before_it(autojump_clock: MockClock) -> None:
    def breaks(arrays: Any) -> Any:
        if arrays["I"][0] == 2:
            raise InvalidArgument("boom")
        return {"O": arrays["I"]}

    got: list[dict[str, Any]] = []
    b = toy("b", breaks, seconds=3)
    async with serving(STREAM, counts(seconds=1), b) as model:
        with pytest.raises(InvalidArgument) as caught:
            await collect(model, request(IN=100), got)
    assert caught.value.message == "in ensemble 'e', boom (step 1, model 'b')"
    assert got == [{"OUT": 0}, {"OUT": 1}]


async def test_an_error_after_an_outer_step_comes_in_its_turn_too(autojump_clock: MockClock) -> None:
    """The outer tensor sets the steps of all iterations free at once; the last of them fails first."""
    config = ensemble_config(step("d", "I=IN", "O=T"), step("late", "I=IN", "O=LATE"), step("c", "I=T J=LATE", "O=OUT"))

    def breaks(arrays: Any) -> Any:
        if arrays["I"][0] == 2:
            raise InvalidArgument("boom")
        return {"O": arrays["I"]}

    c = toy("c", breaks, ["I", "J"], before=lambda asked: 5 - 2 * first_number(asked))
    got: list[dict[str, Any]] = []
    async with serving(config, counts(), toy("late", seconds=10), c) as model:
        with pytest.raises(InvalidArgument, match="boom"):
            await collect(model, request(IN=3), got)
    assert got == [{"OUT": 0}, {"OUT": 1}]


async def test_a_step_that_nobody_needs_any_more_does_not_hold_up_the_end_of_a_stream(
    autojump_clock: MockClock,
) -> None:
    config = ensemble_config(
        step("slow", "I=IN", "O=S"),
        step("d", "I=IN", "O=T"),
        step("c", "I=T J=S", "O=OUT"),
        step("b", "I=T", "O=OUT"),
        inputs=["IN", "C:BOOL"],
        parameters={"condition:2": "C", "condition:3": "!C"},
    )
    slow = toy("slow", seconds=1000)
    async with serving(config, slow, counts(), toy("c", product, ["I", "J"]), toy("b")) as model:
        assert await collect(model, request(IN=2, C=False)) == [{"OUT": 0}, {"OUT": 1}]
    assert (trio.current_time(), slow.given_up) == (0, 1)


async def test_an_error_of_the_stream_comes_after_its_responses(autojump_clock: MockClock) -> None:
    d = toy("d", lambda x: [{"O": vector(1)}, {"O": vector(2)}, Internal("broke off")], decoupled=True)
    got: list[dict[str, Any]] = []
    async with serving(STREAM, d, toy("b", seconds=5)) as model:
        with pytest.raises(Internal) as caught:
            await collect(model, request(IN=1), got)
    assert caught.value.message == "in ensemble 'e', broke off (step 0, model 'd')"
    assert got == [{"OUT": 1}, {"OUT": 2}]


async def test_a_reader_that_leaves_stops_the_stream_and_its_iterations(autojump_clock: MockClock) -> None:
    d, b = counts(seconds=1), toy("b", seconds=100)
    async with serving(STREAM, d, b) as model:
        with trio.move_on_after(5.5):
            await collect(model, request(IN=1000))
        await wait_all_tasks_blocked()
        assert (d.given_up, d.running, b.given_up, b.running) == (1, 0, 5, 0)
        assert model.limits.held_bytes == 0


async def test_what_the_reader_raises_ends_the_stream_and_comes_back_as_it_was(autojump_clock: MockClock) -> None:
    async def breaks(response: InferenceResponse) -> None:
        raise ValueError("the connection is gone")

    d = counts(seconds=1)
    async with serving(STREAM, d, toy("b")) as model:
        with pytest.raises(ValueError, match="the connection is gone"):
            await model.infer_stream(request(IN=1000), breaks)
        assert (d.given_up, len(d.log)) == (1, 1)
        assert model.statistics.failures[FailureReason.CANCELED] == 1
        assert model.limits.held_bytes == 0


async def test_a_slow_reader_slows_the_decoupled_step_down(autojump_clock: MockClock) -> None:
    d = counts()
    taken = 0

    async def slowly(response: InferenceResponse) -> None:
        nonlocal taken
        taken += 1
        await trio.sleep(1000)

    b = toy("b")
    async with serving(STREAM, d, b) as model:
        with trio.move_on_after(2500):
            await model.infer_stream(request(IN=100_000), slowly)
        await wait_all_tasks_blocked()
        assert (taken, d.given_up) == (3, 1)
        assert len(b.log) < 200, "those that wait for the reader are bounded"


async def test_an_ensemble_may_be_decoupled_where_no_step_is() -> None:
    config = ensemble_config(step("a", "I=IN", "O=OUT"), more="model_transaction_policy { decoupled: true }")
    finals: list[bool] = []

    async def respond(response: InferenceResponse) -> None:
        finals.append(response.is_final)

    async with serving(config, toy("a")) as model:
        assert await model.infer_stream(request(IN=1), respond) is True
    assert finals == [True]


async def test_a_wanted_output_before_the_decoupled_step_comes_once() -> None:
    config = ensemble_config(step("a", "I=IN", "O=X"), step("d", "I=X", "O=OUT"), outputs=["OUT", "X"])
    d = counts()
    async with serving(config, toy("a"), d) as model:
        assert await collect(model, request(IN=3, outputs=["X"])) == [{"X": 3}]
        assert not d.log
        assert await collect(model, request(IN=2)) == [{"OUT": 0, "X": 2}, {"OUT": 1, "X": 2}]


async def test_responses_that_are_only_a_flag_begin_nothing() -> None:
    d = toy("d", lambda x: [{}, {"O": vector(1)}, {}], decoupled=True)
    async with serving(STREAM, d, toy("b")) as model:
        assert await collect(model, request(IN=1)) == [{"OUT": 1}]


async def test_a_response_of_an_inner_ensemble_counts_though_all_its_outputs_are_left_out() -> None:
    """An ensemble never responds with nothing but a flag."""
    b = toy("b", lambda arrays: {"O": arrays["I"]} if arrays["I"] != 1 else {})
    outer = ensemble_config(step("e", "IN=IN", "OUT=OUT"), name="outer")
    async with serving(STREAM, counts(), b) as inner, serving(outer, inner) as model:
        assert await collect(model, request(IN=3)) == [{"OUT": 0}, {}, {"OUT": 2}]


# The final flag


async def _finals(config: ModelConfig, asked: InferenceRequest, *models: ComposingModel) -> tuple[list[bool], bool]:
    """Whether each response was marked final, and what the stream's end says of that."""
    finals: list[bool] = []

    async def respond(response: InferenceResponse) -> None:
        finals.append(response.is_final)

    async with serving(config, *models) as model:
        return finals, await model.infer_stream(asked, respond)


def _ends_late() -> Toy:
    """Two responses, and after a second more nothing but the final flag."""
    return toy("d", lambda x: [{"O": vector(1)}, {"O": vector(2)}, {}], decoupled=True, seconds=1, flags_last=True)


async def test_the_last_response_is_final_where_the_step_has_ended_before_it(autojump_clock: MockClock) -> None:
    finals = await _finals(STREAM, request(IN=3), counts(seconds=1), toy("b", seconds=5))
    assert finals == ([False, False, True], True)


async def test_the_last_response_of_slow_iterations_is_final_whichever_ends_last(autojump_clock: MockClock) -> None:
    slower_first = toy("b", before=lambda asked: 10 - first_number(asked))
    assert await _finals(STREAM, request(IN=3), counts(), slower_first) == ([False, False, True], True)


async def test_a_step_whose_last_response_is_marked_makes_that_of_the_ensemble_final(autojump_clock: MockClock) -> None:
    direct = ensemble_config(step("d", "I=IN", "O=OUT"))
    assert await _finals(direct, request(IN=3), counts(seconds=1, flags_last=True)) == ([False, False, True], True)
    assert await _finals(STREAM, request(IN=1), counts(flags_last=True), toy("b")) == ([True], True)


async def test_an_end_that_comes_later_than_the_last_response_is_told_by_itself(autojump_clock: MockClock) -> None:
    assert await _finals(STREAM, request(IN=0), _ends_late(), toy("b")) == ([False, False], False)
    assert await _finals(STREAM, request(IN=0), _ends_late(), toy("b", seconds=5)) == ([False, True], True)
    assert await _finals(STREAM, request(IN=0), counts(), toy("b")) == ([], False)


async def test_the_last_response_of_streams_inside_each_other_is_final(autojump_clock: MockClock) -> None:
    config = ensemble_config(step("d", "I=IN", "O=T"), step("d", "I=T", "O=U"), step("b", "I=U", "O=OUT"))
    # The second stream of three gives one response, the third two; the first none.
    finals = await _finals(config, request(IN=3), counts(), toy("b", seconds=1))
    assert finals == ([False, False, True], True)
    finals = await _finals(config, request(IN=3), counts(seconds=1, flags_last=True), toy("b"))
    assert finals == ([False, False, True], True)


async def test_an_inner_stream_without_responses_may_yet_come_after_the_last_one(autojump_clock: MockClock) -> None:
    config = ensemble_config(step("d", "I=IN", "O=T"), step("less", "I=T", "O=OUT"))
    less = toy("less", lambda x: [{"O": x["I"]}] * int(2 - x["I"][0]), decoupled=True, before=lambda asked: 1)
    finals = await _finals(config, request(IN=3), counts(seconds=2), less)
    assert finals == ([False, False, False], False)


async def test_the_final_flag_passes_through_an_ensemble_in_an_ensemble(autojump_clock: MockClock) -> None:
    outer = ensemble_config(step("e", "IN=IN", "OUT=T"), step("c", "I=T", "O=OUT"), name="outer")
    async with serving(STREAM, counts(seconds=1), toy("b", seconds=5)) as inner:
        assert await _finals(outer, request(IN=3), inner, toy("c")) == ([False, False, True], True)


async def test_no_response_before_an_error_is_final(autojump_clock: MockClock) -> None:
    finals: list[bool] = []

    async def respond(response: InferenceResponse) -> None:
        finals.append(response.is_final)

    d = toy("d", lambda x: [{"O": vector(1)}, Internal("broke off")], decoupled=True)
    async with serving(STREAM, d, toy("b", seconds=5)) as model:
        with pytest.raises(Internal):
            await model.infer_stream(request(IN=1), respond)
    assert finals == [False]
