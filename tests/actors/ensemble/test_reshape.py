"""The `reshape` of an ensemble's own inputs and outputs: clients see `dims`, the steps `reshape.shape`."""

from __future__ import annotations

import numpy as np
import pytest

from protocol.errors import Internal, InvalidArgument
from repository.model_config import ModelConfig
from repository.pbtxt import parse_pbtxt
from tests.actors.ensemble.ensembles import Toy, ensemble, request, serving, valid


def reshaped(outside: str, inside: str, *, batch: int = 0) -> ModelConfig:
    """One step; both ends have the reshape."""
    ends = f"data_type: TYPE_FP32 dims: [ {outside} ] reshape {{ shape: [ {inside} ] }}"
    config = parse_pbtxt(
        f"""name: "e" platform: "ensemble" max_batch_size: {batch}
        input {{ name: "IN" {ends} }} output {{ name: "OUT" {ends} }}
        ensemble_scheduling {{ step {{ model_name: "a" model_version: -1
          input_map {{ key: "I" value: "IN" }} output_map {{ key: "O" value: "OUT" }} }} }}""",
        source="test",
    )
    return valid(config)


def echo(dims: str, *, batch: int = 0, answers: tuple[int, ...] | None = None) -> Toy:
    """A model that gives back what it gets, in the shape `answers` if there is one."""
    ends = f"data_type: TYPE_FP32 dims: [ {dims} ]"
    config = parse_pbtxt(
        f'name: "a" backend: "toy" max_batch_size: {batch} input {{ name: "I" {ends} }} output {{ name: "O" {ends} }}',
        source="test",
    )
    return Toy(config, lambda arrays: {"O": arrays["I"] if answers is None else np.zeros(answers, np.float32)})


@pytest.mark.parametrize(
    ("ensemble_batch", "outside", "inside", "sent", "batch", "dims", "seen"),
    [
        (0, "6", "2, 3", (6,), 0, "2, 3", (2, 3)),
        (0, "2, 3", "3, 2", (2, 3), 0, "3, 2", (3, 2)),
        (0, "-1, 1", "1, -1", (5, 1), 0, "1, -1", (1, 5)),
        (0, "4", "2, 2", (4,), 0, "-1, -1", (2, 2)),
        (4, "6", "2, 3", (4, 6), 4, "2, 3", (4, 2, 3)),
        (4, "1", "", (2, 1), 0, "-1", (2,)),  # a scalar in each row
        (4, "6", "2, 3", (1, 6), 0, "2, 3", (2, 3)),
        (0, "6", "2, 3", (6,), 4, "2, 3", (1, 2, 3)),
    ],
)
async def test_the_ensembles_own_reshape_is_followed(
    ensemble_batch: int,
    outside: str,
    inside: str,
    sent: tuple[int, ...],
    batch: int,
    dims: str,
    seen: tuple[int, ...],
) -> None:
    a = echo(dims, batch=batch)
    values = np.arange(np.prod(sent), dtype=np.float32).reshape(sent)
    async with serving(reshaped(outside, inside, batch=ensemble_batch), a) as model:
        response = await model.infer(request(IN=values))
    assert a.log[0].inputs[0].shape == seen
    assert response.outputs[0].shape == sent
    np.testing.assert_array_equal(response.outputs[0].as_numpy(), values)


async def test_a_wrong_shape_is_told_as_clients_see_it() -> None:
    async with serving(reshaped("6", "2, 3"), echo("2, 3")) as model:
        with pytest.raises(InvalidArgument, match=r"\[6\]"):
            await model.infer(request(IN=np.zeros((2, 3), np.float32)))


@pytest.mark.parametrize("answers", [(2, 2), (3, 2), (6,), (2, 2, 3)])
async def test_a_tensor_that_does_not_fit_the_reshape_is_an_error_that_names_it(answers: tuple[int, ...]) -> None:
    config = reshaped("6", "2, 3")
    async with serving(config, echo("-1, -1", answers=answers)) as model:
        with pytest.raises(Internal) as caught:
            await model.infer(request(IN=np.zeros(6, np.float32)))
    shape = ",".join(map(str, answers))
    assert caught.value.message == (
        f"in ensemble 'e', 'OUT' has a reshape from [2,3], but its tensor 'OUT' has shape [{shape}]"
    )


async def test_what_the_steps_see_must_fit_the_composing_models() -> None:
    with pytest.raises(InvalidArgument) as caught:
        ensemble(reshaped("6", "2, 3"), echo("6"))
    assert caught.value.message == (
        "in ensemble e, ensemble tensor IN: inconsistent shape: [2,3] is inferred from model e while [6] is inferred "
        "from model a"
    )
