"""Tensors between the steps of an ensemble stay where they are, if all that read them take them there."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from protocol.messages import InferenceRequest, Tensor
from protocol.tensors.device_tensor import DeviceTensor
from tests.actors.ensemble.ensembles import (
    CHAIN,
    STREAM,
    WIDE,
    Toy,
    adds,
    collect,
    counts,
    ensemble_config,
    numbers,
    product,
    request,
    serving,
    step,
    toy,
    vector,
)
from tests.backends.devices.host_runtime import on_device, reads_of


def gpu(name: str, *more: object, **others: object) -> Toy:
    """A model whose instances are on a GPU."""
    return toy(name, *more, takes_device_tensors=True, **others)  # type: ignore[arg-type]  # as `toy`


def inputs_on_device(model: Toy) -> list[bool]:
    """Of the last request."""
    asked = model.log[-1]
    found = [isinstance(tensor, DeviceTensor) for tensor in asked.inputs]
    assert asked.has_device_inputs or not any(found)
    return found


async def test_a_tensor_between_two_models_on_gpus_stays_there() -> None:
    a, b = gpu("a", adds(1)), gpu("b", adds(10))
    async with serving(CHAIN, a, b) as model:
        response = await model.infer(request(IN=5))
    assert numbers(response) == {"OUT": 16}
    assert (inputs_on_device(a), inputs_on_device(b)) == ([False], [True])
    assert a.log[0].device_outputs == {"O"}
    assert b.log[0].device_outputs == frozenset()
    assert not isinstance(response.outputs[0], DeviceTensor)


@pytest.mark.parametrize("elsewhere", ["a", "b"])
async def test_not_for_a_reader_on_the_host(elsewhere: str) -> None:
    """Whether the first model is on a GPU is its own matter: it is only told what may stay there."""
    a, b = (toy(name, adds(1)) if name == elsewhere else gpu(name, adds(1)) for name in "ab")
    async with serving(CHAIN, a, b) as model:
        assert numbers(await model.infer(request(IN=5))) == {"OUT": 7}
    assert a.log[0].device_outputs == (frozenset() if elsewhere == "b" else {"O"})


async def test_every_reader_counts() -> None:
    a, b = gpu("a", adds(1)), gpu("b", adds(2))
    c = toy("c", product, ["I", "J"])
    async with serving(WIDE, a, b, c) as model:
        assert numbers(await model.infer(request(IN=1))) == {"OUT": 6}
    assert inputs_on_device(c) == [False, False]
    c = gpu("c", product, ["I", "J"])
    async with serving(WIDE, a, b, c) as model:
        assert numbers(await model.infer(request(IN=1))) == {"OUT": 6}
    assert inputs_on_device(c) == [True, True]


async def test_what_the_client_gets_comes_to_the_host() -> None:
    """Also where another step reads it; but not for a client that wants only the end."""
    config = ensemble_config(step("a", "I=IN", "O=T"), step("b", "I=T", "O=OUT"), outputs=["OUT", "T"])
    a, b = gpu("a", adds(1)), gpu("b", adds(10))
    async with serving(config, a, b) as model:
        assert numbers(await model.infer(request(IN=5))) == {"OUT": 16, "T": 6}
        assert inputs_on_device(b) == [False]
        assert numbers(await model.infer(request(IN=5, outputs=["OUT"]))) == {"OUT": 16}
        assert inputs_on_device(b) == [True]


async def test_conditions_are_read_on_the_host() -> None:
    config = ensemble_config(step("a", "I=IN", "O=T P=C"), step("b", "I=T", "O=OUT"), parameters={"condition:b": "C"})
    a = gpu("a", lambda arrays: {"O": arrays["I"], "P": arrays["I"] > 0}, outputs=["O", "P:BOOL"])
    async with serving(config, a, gpu("b")) as model:
        assert numbers(await model.infer(request(IN=5))) == {"OUT": 5}
    assert a.log[0].device_outputs == {"O"}


@pytest.mark.parametrize(("wanted", "is_there"), [(("OUT",), True), (("T",), False), (("OUT", "T"), True)])
async def test_a_caller_who_takes_outputs_on_a_device(wanted: Sequence[str], is_there: bool) -> None:
    config = ensemble_config(step("a", "I=IN", "O=T"), step("b", "I=T", "O=OUT"), outputs=["OUT", "T"])
    a, b = gpu("a", adds(1)), gpu("b", adds(10))
    asked = request(IN=5)
    asked.device_outputs = frozenset(wanted)
    async with serving(config, a, b) as model:
        response = await model.infer(asked)
    found = {tensor.name: isinstance(tensor, DeviceTensor) for tensor in response.outputs}
    assert found == {name: name in wanted for name in ("OUT", "T")}
    assert found["OUT"] is is_there
    assert inputs_on_device(b) == ["T" in wanted]
    assert numbers(response) == {"OUT": 16, "T": 6}


async def test_inputs_on_a_device_pass_through() -> None:
    a, b = gpu("a", adds(1)), gpu("b", adds(10))
    given = on_device("IN", vector(5))
    async with serving(CHAIN, a, b) as model:
        assert model.takes_device_tensors
        response = await model.infer(InferenceRequest("e", [given], has_device_inputs=True))
    assert numbers(response) == {"OUT": 16}
    assert inputs_on_device(a) == [True]
    received = a.log[0].inputs[0]
    assert isinstance(received, DeviceTensor)
    assert received.buffer is given.buffer


async def test_inputs_on_a_device_for_a_first_step_on_the_host() -> None:
    """They come to the host in a thread, once."""
    a = toy("a", adds(1))
    given = on_device("IN", vector(5))
    async with serving(CHAIN, a, gpu("b", adds(10))) as model:
        assert not model.takes_device_tensors
        assert numbers(await model.infer(InferenceRequest("e", [given], has_device_inputs=True))) == {"OUT": 16}
    assert inputs_on_device(a) == [False]
    assert reads_of(given) == 1


async def test_streams_too() -> None:
    d, b = counts(takes_device_tensors=True), gpu("b", adds(10))
    async with serving(STREAM, d, b) as model:
        assert await collect(model, request(IN=3)) == [{"OUT": 10}, {"OUT": 11}, {"OUT": 12}]
    assert d.log[0].device_outputs == {"O"}
    assert [isinstance(asked.inputs[0], DeviceTensor) for asked in b.log] == [True] * 3


async def test_the_byte_budget_counts_them() -> None:
    config = ensemble_config(
        step("a", "I=IN", "O=T"), step("b", "I=T", "O=OUT"), parameters={"max_inflight_bytes": "1000"}
    )
    held: list[float] = []

    def look(asked: InferenceRequest) -> None:
        held.append(model.limits.held_bytes)

    async with serving(config, gpu("a", adds(1)), gpu("b", adds(1), before=look)) as model:
        assert numbers(await model.infer(request(IN=5))) == {"OUT": 7}
    assert held == [4]


def test_a_tensor_under_another_name_is_the_same_memory() -> None:
    tensor = on_device("x", vector(1, 2))
    other: Tensor = tensor.under("y", (1, 2))
    assert isinstance(other, DeviceTensor)
    assert (other.name, other.shape, other.buffer) == ("y", (1, 2), tensor.buffer)
