"""The clock that a step's request carries as its trace."""

from __future__ import annotations

import itertools

import pytest
import trio
import trio.testing

from actors.ensemble.clock import StepClock, TimeSpent
from actors.model.model import Model
from actors.tracing.record import RequestTrace, TensorBudget
from actors.tracing.sampling import TraceSampling
from backends.interface import BatchTiming
from protocol.errors import InvalidArgument
from protocol.server_settings import TraceSettings
from tests.actors.ensemble.ensembles import ensemble, ensemble_config, request, step, toy
from tests.actors.fakes import CONFIG, fake_backend, spec, tensor


@pytest.mark.parametrize(
    ("stamps", "spent"),
    [
        ([], TimeSpent()),
        ([("REQUEST_START", 1), ("REQUEST_END", 5)], TimeSpent()),
        (
            [
                ("REQUEST_START", 1),
                ("QUEUE_START", 2),
                ("COMPUTE_START", 10),
                ("COMPUTE_INPUT_END", 11),
                ("COMPUTE_OUTPUT_START", 31),
                ("COMPUTE_END", 35),
                ("REQUEST_END", 40),
            ],
            TimeSpent(8, 1, 20, 4),
        ),
        ([("QUEUE_START", 2), ("COMPUTE_START", 4), ("COMPUTE_END", 10)], TimeSpent(2, 0, 0, 6)),
        # A stream ends long after its batch.
        (
            [
                ("QUEUE_START", 2),
                ("COMPUTE_START", 4),
                ("COMPUTE_INPUT_END", 5),
                ("COMPUTE_OUTPUT_START", 6),
                ("COMPUTE_END", 100),
            ],
            TimeSpent(2, 1, 1, 94),
        ),
    ],
)
def test_time_spent(stamps: list[tuple[str, int]], spent: TimeSpent) -> None:
    clock = StepClock()
    for activity, ns in stamps:
        clock.stamp(activity, ns)
    assert clock.spent == spent
    assert (clock.child("m"), clock.context()) == (None, None)


def test_sums() -> None:
    total = TimeSpent(1, 2, 3, 4)
    total.add(TimeSpent(10, 20, 30, 40))
    assert total == TimeSpent(11, 22, 33, 44)
    assert total.timing == BatchTiming(compute_input_ns=22, compute_infer_ns=33, compute_output_ns=44)


async def test_the_steps_of_a_traced_request_are_traces_of_their_own() -> None:
    """Children of the ensemble's trace, through an ensemble in between, each ended when its step has, well or badly."""
    ended: list[RequestTrace] = []
    sampling = TraceSampling(TraceSettings(("TIMESTAMPS",), 1, file="t.json"))
    ids = itertools.count(2)
    trace = RequestTrace(1, "e", sampling, TensorBudget(0), ended.append, new_id=lambda: next(ids))
    real = Model(CONFIG, 4, fake_backend(), [spec()])
    inner = ensemble_config(
        step("m", "IN=IN", "OUT=OUT"),
        name="inner",
        inputs=["IN:FP32:2"],
        outputs=["OUT:FP32:2"],
        max_batch_size=4,
    )
    outer = ensemble_config(
        step("inner", "IN=IN", "OUT=T"), step("fails", "I=T", "O=OUT"), inputs=["IN:FP32:2"], max_batch_size=4
    )

    def fail(arrays: object) -> dict[str, object]:
        raise InvalidArgument("boom")

    fails = toy("fails", fail, ["I:FP32:2"], max_batch_size=4)  # type: ignore[arg-type]  # it answers nothing
    async with trio.open_nursery() as nursery:
        await nursery.start(real.run)
        nested = ensemble(inner, real)
        await nursery.start(nested.run)
        made = ensemble(outer, nested, fails)
        await nursery.start(made.run)
        asked = request("r")
        asked.inputs, asked.trace = [tensor(2)], trace
        with pytest.raises(InvalidArgument):
            await made.infer(asked)
        trace.end()
        for model in (made, nested, real):
            model.drain()
            await trio.testing.wait_all_tasks_blocked()
    found = {each.model_name: each for each in ended}
    assert {name: (each.id, each.parent_id) for name, each in found.items()} == {
        "e": (1, 0),
        "inner": (2, 1),
        "m": (3, 2),
        "fails": (4, 1),
    }
    assert (found["m"].model_version, found["m"].request_id) == (4, "r")
    assert [activity for activity, _ in found["m"].stamps] == [
        "REQUEST_START",
        "QUEUE_START",
        "COMPUTE_START",
        "COMPUTE_INPUT_END",
        "COMPUTE_OUTPUT_START",
        "COMPUTE_END",
        "REQUEST_END",
    ]
