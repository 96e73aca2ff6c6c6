"""Steps that run under a condition, and branches that join."""

from __future__ import annotations

import numpy as np
import pytest
import trio
from trio.testing import MockClock

from protocol.errors import (
    InvalidArgument,
)
from tests.actors.ensemble.ensembles import (
    adds,
    ensemble_config,
    numbers,
    request,
    serving,
    step,
    toy,
    vector,
)


async def test_what_a_nested_ensemble_skips_is_skipped_around_it() -> None:
    """The steps behind it run without it or not at all, and the response leaves it out."""
    test, a = toy("test", lambda arrays: {"C": arrays["I"] > 10}, outputs=["C:BOOL"]), toy("a", adds(1))
    inner = ensemble_config(
        step("test", "I=IN", "C=C"), step("a", "I=IN", "O=OUT"), parameters={"condition:a": "C"}, name="inner"
    )
    outer = ensemble_config(
        step("inner", "IN=IN", "OUT=X"),
        step("b", "I=X", "O=Y"),
        step("c", "I=IN J=X", "O=Z"),
        outputs=["Y", "Z"],
    )
    b, c = toy("b", adds(10)), toy("c", lambda arrays: {"O": vector(len(arrays))}, ["I", "J?"])
    async with serving(inner, test, a) as nested, serving(outer, nested, b, c) as model:
        assert numbers(await model.infer(request(IN=20))) == {"Y": 31, "Z": 2}
        assert numbers(await model.infer(request(IN=5))) == {"Z": 1}


async def test_a_branch_is_skipped_by_a_tensor_of_a_step(autojump_clock: MockClock) -> None:
    config = ensemble_config(
        step("test", "I=IN", "C=C"),
        step("slow", "I=IN", "O=OUT"),
        step("quick", "I=IN", "O=OUT"),
        step("c", "I=OUT", "O=MORE"),
        outputs=["OUT", "MORE", "C:BOOL"],
        parameters={"condition:slow": "C", "condition:quick": "!C"},
    )
    test = toy("test", lambda arrays: {"C": arrays["I"] > 10}, outputs=["C:BOOL"])
    models = test, toy("slow", adds(100), seconds=10), toy("quick", adds(1)), toy("c", adds(0.5))
    async with serving(config, *models) as model:
        assert numbers(await model.infer(request(IN=5))) == {"OUT": 6, "MORE": 6.5, "C": False}
        assert trio.current_time() == 0
        assert numbers(await model.infer(request(IN=20))) == {"OUT": 120, "MORE": 120.5, "C": True}
        assert trio.current_time() == 10


async def test_outputs_of_a_skipped_branch_are_left_out() -> None:
    config = ensemble_config(
        step("a", "I=IN", "O=X"),
        step("b", "I=X", "O=Y"),
        step("c", "I=IN", "O=Z"),
        inputs=["IN", "C:BOOL"],
        outputs=["X", "Y", "Z"],
        parameters={"condition:0": "C"},
    )
    async with serving(config, toy("a"), toy("b"), toy("c")) as model:
        assert numbers(await model.infer(request(IN=5, C=False))) == {"Z": 5}
        assert numbers(await model.infer(request(IN=5, C=True))) == {"X": 5, "Y": 5, "Z": 5}
        assert numbers(await model.infer(request(IN=5, C=False, outputs=["Y"]))) == {}


async def test_what_is_not_needed_any_more_is_given_up(autojump_clock: MockClock) -> None:
    """The answer does not wait for a step whose only reader was skipped."""
    config = ensemble_config(
        step("a", "I=IN", "O=A"),
        step("b", "I=A", "O=OUT"),
        step("c", "I=IN", "O=OUT"),
        inputs=["IN", "C:BOOL"],
        parameters={"condition:1": "C", "condition:2": "!C"},
    )
    a = toy("a", seconds=100)
    async with serving(config, a, toy("b"), toy("c", adds(1), seconds=1)) as model:
        assert numbers(await model.infer(request(IN=5, C=False))) == {"OUT": 6}
    assert (trio.current_time(), a.given_up) == (1, 1)


async def test_rows_that_disagree_on_a_condition_are_refused() -> None:
    config = ensemble_config(
        step("test", "I=IN", "C=C"), step("a", "I=IN", "O=OUT"), max_batch_size=4, parameters={"condition:a": "C"}
    )
    test = toy("test", lambda arrays: {"C": arrays["I"] > 1}, outputs=["C:BOOL"], max_batch_size=4)
    async with serving(config, test, toy("a", max_batch_size=4)) as model:
        with pytest.raises(InvalidArgument, match="must be all true or all false in one request"):
            await model.infer(request(IN=np.array([[1], [2]], np.float32)))
        assert numbers(await model.infer(request(IN=np.array([[2], [3]], np.float32)))) == {"OUT": [2, 3]}
