"""Ensembles that run: models that are functions, under virtual time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from actors.ensemble.composition import Composition
from actors.metrics.statistics import FailureReason
from actors.model.model import Model
from protocol.errors import (
    Cancelled,
    Internal,
    InvalidArgument,
    NotFound,
    ServerError,
    Unavailable,
    Unsupported,
)
from protocol.messages import InferenceRequest
from tests.actors.ensemble.ensembles import (
    CHAIN,
    WIDE,
    Toy,
    adds,
    ensemble,
    ensemble_config,
    fails,
    numbers,
    product,
    request,
    serving,
    step,
    toy,
)
from tests.actors.fakes import CONFIG, TIMING, fake_backend, spec


async def test_a_chain_answers_what_its_steps_make(autojump_clock: MockClock) -> None:
    async with serving(CHAIN, toy("a", adds(1), seconds=1), toy("b", adds(10), seconds=2)) as model:
        response = await model.infer(request("r", IN=5))
    assert (numbers(response), response.id, response.model_name, response.model_version) == ({"OUT": 16}, "r", "e", 1)
    assert trio.current_time() == 3


async def test_steps_beside_each_other_run_at_the_same_time(autojump_clock: MockClock) -> None:
    models = toy("a", adds(1), seconds=5), toy("b", adds(2), seconds=4), toy("c", product, ["I", "J"], seconds=1)
    async with serving(WIDE, *models) as model:
        assert numbers(await model.infer(request(IN=1))) == {"OUT": 6}
    assert trio.current_time() == 6


async def test_only_what_the_wanted_outputs_need_runs(autojump_clock: MockClock) -> None:
    config = ensemble_config(step("a", "I=IN", "O=X"), step("b", "I=IN", "O=Y"), outputs=["X", "Y"])
    a, b = toy("a", adds(1)), toy("b", adds(2))
    async with serving(config, a, b) as model:
        assert numbers(await model.infer(request(IN=1, outputs=["Y"]))) == {"Y": 3}
        assert (len(a.log), len(b.log)) == (0, 1)
        assert numbers(await model.infer(request(IN=1))) == {"X": 2, "Y": 3}


async def test_what_a_client_says_of_its_request_reaches_every_step() -> None:
    a, b = toy("a"), toy("b")
    asked = InferenceRequest(
        "e",
        request(IN=1).inputs,
        id="r",
        parameters={"key": 1},
        sequence_id=7,
        sequence_start=True,
        sequence_end=True,
        priority=2,
        timeout_microseconds=5_000_000,
    )
    async with serving(CHAIN, a, b) as model:
        response = await model.infer(asked)
    for name, got in (("a", a.log[0]), ("b", b.log[0])):
        assert (got.model_name, got.model_version, got.id, got.parameters) == (name, -1, "r", {"key": 1})
        assert (got.sequence_id, got.sequence_start, got.sequence_end) == (7, True, True)
        assert (got.priority, got.timeout_microseconds) == (2, 5_000_000)
        assert not got.requested_outputs
    assert response.parameters == {"sequence_id": 7, "sequence_start": True, "sequence_end": True}


async def test_tensors_are_handed_over_without_copies() -> None:
    a, b = toy("a"), toy("b", adds(1))
    asked = request(IN=1)
    async with serving(CHAIN, a, b) as model:
        await model.infer(asked)
    assert a.log[0].inputs[0].data is asked.inputs[0].data
    assert np.shares_memory(a.log[0].inputs[0].as_numpy(), b.log[0].inputs[0].as_numpy())


async def test_the_steps_own_answer_to_the_sequence_holds_for_the_steps_after_it() -> None:
    config = ensemble_config(
        step("a", "I=IN", "O=A"), step("b", "I=A", "O=B"), step("c", "I=IN", "O=C"), outputs=["B", "C"]
    )
    a = toy("a", parameters={"sequence_id": "other", "sequence_end": True, "more": 1})
    b, c = toy("b"), toy("c")
    asked = request(IN=1)
    asked.sequence_id, asked.sequence_start = 7, True
    async with serving(config, a, b, c) as model:
        response = await model.infer(asked)
        of_c = await model.infer(InferenceRequest("e", asked.inputs, requested_outputs=("C",), sequence_id=7))
    told = [(got.sequence_id, got.sequence_start, got.sequence_end) for got in (a.log[0], b.log[0], c.log[0])]
    assert told == [(7, True, False), ("other", False, True), (7, True, False)]
    assert response.parameters == {"sequence_id": "other", "sequence_start": False, "sequence_end": True}
    assert of_c.parameters == {"sequence_id": 7, "sequence_start": False, "sequence_end": False}


async def test_a_response_with_no_steps_tensor_says_nothing_of_the_sequence() -> None:
    config = ensemble_config(step("a", "I=IN", "O=OUT"), outputs=["OUT", "IN"])
    async with serving(config, toy("a")) as model:
        assert (await model.infer(request(IN=1, outputs=["IN"]))).parameters == {}
        whole = await model.infer(request(IN=1))
    assert numbers(whole) == {"OUT": 1, "IN": 1}
    assert whole.parameters == {"sequence_id": 0, "sequence_start": False, "sequence_end": False}


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        (
            {"sequence_id": 1.5},
            "expected parameter 'sequence_id' to be TRITONSERVER_PARAMETER_INT or TRITONSERVER_PARAMETER_STRING",
        ),
        (
            {"sequence_id": True},
            "expected parameter 'sequence_id' to be TRITONSERVER_PARAMETER_INT or TRITONSERVER_PARAMETER_STRING",
        ),
        ({"sequence_start": 1}, "expect parameter 'sequence_start' to be TRITONSERVER_PARAMETER_BOOL"),
        ({"sequence_end": "yes"}, "expect parameter 'sequence_end' to be TRITONSERVER_PARAMETER_BOOL"),
    ],
)
async def test_sequence_parameters_of_the_wrong_type(parameters: dict[str, Any], text: str) -> None:
    async with serving(CHAIN, toy("a", parameters=parameters), toy("b")) as model:
        with pytest.raises(InvalidArgument) as caught:
            await model.infer(request(IN=1))
    assert caught.value.message == f"in ensemble 'e', {text} (step 0, model 'a')"


@pytest.mark.parametrize("kind", [InvalidArgument, Internal, Unavailable, Cancelled, Unsupported])
async def test_an_error_of_a_step_says_which_and_keeps_its_kind(kind: type[ServerError]) -> None:
    async with serving(CHAIN, toy("a"), toy("b", fails(kind("boom")))) as model:
        with pytest.raises(kind) as caught:
            await model.infer(request(IN=1))
        assert caught.value.message == "in ensemble 'e', boom (step 1, model 'b')"
        assert type(caught.value) is kind
        reason = FailureReason.CANCELED if kind is Cancelled else FailureReason.OTHER
        assert {why: count for why, count in model.statistics.failures.items() if count} == {reason: 1}


async def test_an_error_ends_the_steps_beside_it_at_once(autojump_clock: MockClock) -> None:
    b = toy("b", seconds=100)
    async with serving(WIDE, toy("a", fails(Internal("boom"))), b, toy("c", product, ["I", "J"])) as model:
        with pytest.raises(Internal, match="boom"):
            await model.infer(request(IN=1))
    assert (b.given_up, trio.current_time()) == (1, 0)


async def test_a_defect_is_the_servers_own_error(caplog: pytest.LogCaptureFixture) -> None:
    async with serving(CHAIN, toy("a", lambda arrays: {"O": arrays["none"]}), toy("b")) as model:
        with pytest.raises(Internal, match="in ensemble 'e', KeyError: 'none'"):
            await model.infer(request(IN=1))
    assert "ensemble 'e' failed" in caplog.text


async def test_a_missing_output_is_a_deadlock() -> None:
    async with serving(CHAIN, toy("a", lambda arrays: {}), toy("b")) as model:
        with pytest.raises(InvalidArgument) as caught:
            await model.infer(request("7", IN=1))
    assert caught.value.message.startswith(
        "in ensemble 'e', [request id: 7] unexpected deadlock, at least one output is not set while no more ensemble "
        "steps can be made"
    )


async def test_an_output_that_a_model_leaves_out_is_left_out_of_the_response(caplog: pytest.LogCaptureFixture) -> None:
    config = ensemble_config(step("a", "I=IN", "O=X P=Y"), outputs=["X", "Y"])
    a = toy("a", lambda arrays: {"O": arrays["I"]} if arrays["I"] else {}, outputs=["O", "P"])
    async with serving(config, a) as model:
        assert numbers(await model.infer(request(IN=1))) == {"X": 1}
        assert numbers(await model.infer(request(IN=1, outputs=["Y"]))) == {}
        empty = await model.infer(request(IN=0))
        assert (empty.outputs, empty.parameters) == ([], {})
        assert model.statistics.frozen("e", 1).inference_stats.success.count == 3
    told = [(record.levelname, record.getMessage()) for record in caplog.records if "'Y'" in record.getMessage()]
    assert told == [("WARNING", "ensemble 'e': composing models did not give output 'Y', a response lacks it")]


async def test_a_model_that_may_do_without_an_input_runs_without_an_output_that_is_left_out() -> None:
    config = ensemble_config(step("a", "I=IN", "O=X P=Y"), step("b", "I=X J=Y", "O=OUT"), outputs=["OUT", "Y"])
    a = toy("a", adds(1), outputs=["O", "P"])
    async with serving(config, a, toy("b", inputs=["I", "J?"])) as model:
        assert numbers(await model.infer(request(IN=1))) == {"OUT": 2}


async def test_a_composing_model_that_is_gone_is_told_by_name() -> None:
    a = toy("a")
    made = ensemble(CHAIN, a, toy("b"))
    async with trio.open_nursery() as nursery:
        await nursery.start(made.run)
        assert made.composition is not None
        assert made.is_ready
        made.composition.find = lambda name, version: fails(NotFound(f"'{name}' is not found"))({})
        assert not made.is_ready
        with pytest.raises(NotFound) as caught:
            await made.infer(request(IN=1))
        made.drain()
    assert caught.value.message == "in ensemble 'e', 'a' is not found (step 0, model 'a')"


async def test_it_is_ready_when_its_composing_models_are() -> None:
    b = toy("b")
    async with serving(CHAIN, toy("a"), b) as model:
        assert model.is_ready
        assert await model.check_ready()
        b.says_ready = False
        assert model.is_ready
        assert not await model.check_ready()
        b.is_ready = False
        assert not model.is_ready
        assert not await model.check_ready()


# Cancellation


async def test_a_caller_that_leaves_stops_all_steps_at_once(autojump_clock: MockClock) -> None:
    a, b = toy("a", seconds=100), toy("b", seconds=100)
    async with serving(WIDE, a, b, toy("c", product, ["I", "J"])) as model:
        with trio.move_on_after(1):
            await model.infer(request(IN=1))
        await wait_all_tasks_blocked()
        assert (a.given_up, b.given_up) == (1, 1)
        assert model.statistics.failures[FailureReason.CANCELED] == 1
        assert model.statistics.frozen("e", 1).inference_stats.success.count == 0
    assert trio.current_time() == 1


async def test_a_cancelled_request_gives_back_its_places_and_its_bytes(autojump_clock: MockClock) -> None:
    config = ensemble_config(step("a", "I=IN", "O=T"), step("b", "I=T", "O=OUT"), max_inflight_requests=1)
    async with serving(config, toy("a", seconds=1), toy("b", seconds=100)) as model:
        for _ in range(3):
            with trio.move_on_after(10):
                await model.infer(request(IN=1))
        await wait_all_tasks_blocked()
        assert model.limits.held_bytes == 0
    assert trio.current_time() == 30


async def test_the_timeout_of_a_request_ends_it(autojump_clock: MockClock) -> None:
    b = toy("b", seconds=100)
    asked = request(IN=1)
    asked.timeout_microseconds = 2_000_000
    async with serving(CHAIN, toy("a"), b) as model:
        with pytest.raises(ServerError, match="timeout of 2000000 microseconds expired"):
            await model.infer(asked)
    assert b.given_up == 1


async def test_a_drain_finishes_what_runs_and_refuses_what_comes(autojump_clock: MockClock) -> None:
    answers: list[Any] = []
    async with trio.open_nursery() as nursery:
        made = ensemble(CHAIN, toy("a", seconds=5), toy("b"))
        await nursery.start(made.run)

        async def call() -> None:
            answers.append(numbers(await made.infer(request(IN=1))))

        nursery.start_soon(call)
        await wait_all_tasks_blocked()
        made.drain()
        await wait_all_tasks_blocked()
        with pytest.raises(Unavailable, match="has stopped accepting new inference requests"):
            await made.infer(request(IN=2))
    assert answers == [{"OUT": 1}]
    assert not made.is_ready
    with pytest.raises(Unavailable, match="has stopped accepting"):
        await made.infer(request(IN=3))


async def test_a_stopped_ensemble_leaves_no_caller_waiting(autojump_clock: MockClock) -> None:
    a = toy("a", seconds=100)
    made = ensemble(CHAIN, a, toy("b"))
    async with trio.open_nursery() as nursery:
        stop = trio.CancelScope()

        async def run(*, task_status: trio.TaskStatus[None]) -> None:
            with stop:
                await made.run(task_status=task_status)

        async def call() -> None:
            with pytest.raises(Unavailable, match="model 'e' was stopped before the request was finished"):
                await made.infer(request(IN=1))

        await nursery.start(run)
        nursery.start_soon(call)
        await wait_all_tasks_blocked()
        stop.cancel()
    assert a.given_up == 1


# Batches


async def test_batch_dimensions_are_added_and_taken_away() -> None:
    config = ensemble_config(
        step("a", "I=IN", "O=T"), step("b", "I=T", "O=U"), step("c", "I=U", "O=OUT"), max_batch_size=4
    )
    models = toy("a", max_batch_size=8), toy("b"), toy("c", max_batch_size=4)
    async with serving(config, *models) as model:
        response = await model.infer(request(IN=np.full((1, 1), 3, np.float32)))
        assert [one.log[0].inputs[0].shape for one in models] == [(1, 1), (1,), (1, 1)]
        assert response.outputs[0].shape == (1, 1)


async def test_an_output_without_batch_dimension_gets_one() -> None:
    config = ensemble_config(step("b", "I=IN", "O=OUT"), max_batch_size=4)
    async with serving(config, toy("b")) as model:
        assert (await model.infer(request(IN=np.full((1, 1), 3, np.float32)))).outputs[0].shape == (1, 1)


async def test_steps_are_batched_with_those_of_other_requests(autojump_clock: MockClock) -> None:
    """Real models with dynamic batching behind the steps."""
    backend = fake_backend(seconds=1)
    composing = Model(CONFIG, 1, backend, [spec()])
    config = ensemble_config(
        step("m", "IN=IN", "OUT=OUT"), inputs=["IN:FP32:2"], outputs=["OUT:FP32:2"], max_batch_size=4
    )
    async with trio.open_nursery() as nursery:
        await nursery.start(composing.run)
        made = ensemble(config, composing)
        await nursery.start(made.run)

        async def call(id: str) -> None:
            asked = request(id, IN=np.full((1, 2), 3, np.float32))
            assert (await made.infer(asked)).outputs[0].shape == (1, 2)

        async with trio.open_nursery() as calls:
            for id in "abcde":
                calls.start_soon(call, id)
        assert sorted(map(len, backend.batches)) == [1, 4]
        statistics = made.statistics.frozen("e", 1)
        assert (statistics.inference_count, statistics.execution_count) == (5, 5)
        assert composing.statistics.frozen("m", 1).execution_count == 2
        made.drain()
        composing.drain()


async def test_queue_and_compute_times_are_those_of_the_steps() -> None:
    backend = fake_backend()
    composing = Model(CONFIG, 1, backend, [spec()])
    inner = ensemble_config(
        step("m", "IN=IN", "OUT=T"),
        step("m", "IN=T", "OUT=OUT"),
        inputs=["IN:FP32:2"],
        outputs=["OUT:FP32:2"],
        max_batch_size=4,
        name="inner",
    )
    outer = ensemble_config(
        step("inner", "IN=IN", "OUT=OUT"), inputs=["IN:FP32:2"], outputs=["OUT:FP32:2"], max_batch_size=4
    )
    async with trio.open_nursery() as nursery:
        await nursery.start(composing.run)
        nested = ensemble(inner, composing)
        await nursery.start(nested.run)
        made = ensemble(outer, nested)
        await nursery.start(made.run)
        await made.infer(request(IN=np.zeros((3, 2), np.float32)))
        for model, name in ((nested, "inner"), (made, "e")):
            found = model.statistics.frozen(name, 1)
            assert (found.inference_count, found.execution_count) == (3, 1)
            assert [batch.batch_size for batch in found.batch_stats] == [3]
            stats = found.inference_stats
            assert stats.success.count == stats.queue.count == stats.compute_infer.count == 1
            assert stats.compute_infer.ns == 2 * TIMING.compute_infer_ns
            assert stats.queue.ns > 0
            assert stats.success.ns > stats.compute_infer.ns
        made.drain()
        await wait_all_tasks_blocked()
        nested.drain()
        composing.drain()


async def test_labels_come_from_the_composing_model() -> None:
    a, b = toy("a"), toy("b", labels={"O": ("cat", "dog")})
    async with serving(CHAIN, a, b) as model:
        assert model.labels == {"OUT": ("cat", "dog")}
        assert model.composition is not None
        b.labels = {"O": ("bird",)}
        model.check_composing()
        assert model.labels == {"OUT": ("bird",)}


# A composing model is replaced


async def test_a_composing_model_that_does_not_fit_any_more_is_told_and_one_that_does_again_heals() -> None:
    a = toy("a")
    async with serving(CHAIN, a, toy("b")) as model:
        fitting, a.config = a.config, toy("a", inputs=["I", "J"]).config
        model.check_composing()
        assert not model.is_ready
        with pytest.raises(Unavailable) as caught:
            await model.infer(request(IN=1))
        assert caught.value.message == (
            "ensemble 'e' does not fit its composing models: in ensemble e, input J in model a is not mapped to any "
            "ensemble tensors"
        )
        a.config = toy("a", decoupled=True).config
        model.check_composing()
        with pytest.raises(Unavailable, match="ensemble 'e' has become decoupled with a composing model"):
            await model.infer(request(IN=1))
        a.config = fitting
        model.check_composing()
        assert model.is_ready
        assert numbers(await model.infer(request(IN=1))) == {"OUT": 1}


def test_a_model_of_many_steps_is_looked_up_once() -> None:
    model = toy("a")
    asked: list[str] = []

    def find(name: str, version: int) -> Toy:
        asked.append(name)
        return model

    steps = [step("a", f"I={'IN' if n == 0 else f'T{n}'}", f"O={'OUT' if n == 49 else f'T{n + 1}'}") for n in range(50)]
    made = Composition(ensemble_config(*steps), find)
    assert len(asked) == 2  # and its labels
    asked.clear()
    assert made.is_ready
    assert not made.queue_takes_timeout
    assert len(asked) == 2
    made.check_again()
    assert len(asked) == 4


def test_a_version_that_is_not_there_is_named() -> None:
    def find(name: str, version: int) -> Toy:
        raise NotFound("no")

    for version, text in (
        (-1, "ensemble 'e' depends on 'a' which has no loaded version."),
        (3, "ensemble 'e' depends on 'a' whose required version 3 is not loaded."),
        (
            0,
            "ensemble 'e' depends on 'a' whose required version 0 is not loaded. (-1 is the latest; where "
            "model_version is left out it is 0)",
        ),
    ):
        with pytest.raises(InvalidArgument) as caught:
            Composition(ensemble_config(step("a", "I=IN", "O=OUT", version=version)), find)
        assert caught.value.message == text
