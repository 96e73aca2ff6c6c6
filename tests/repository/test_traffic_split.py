"""The configuration of a traffic split: what it says, and what is refused before anything serves."""

from __future__ import annotations

import json

import msgspec
import pytest

from protocol.datatypes import DataType
from protocol.errors import InvalidArgument
from repository.model_config import (
    ModelConfig,
    ModelDynamicBatching,
    ModelInput,
    ModelOutput,
    ModelParameter,
    ModelTransactionPolicy,
)
from repository.traffic_split import Shadow, Target, completed_split, is_split, read_split

TARGETS = [{"model": "m", "version": 1, "weight": 3}, {"model": "n"}]


def config(**split: object) -> ModelConfig:
    return ModelConfig(
        name="s",
        backend="traffic_split",
        parameters={"split": ModelParameter(json.dumps({"targets": TARGETS, **split}))},
    )


def test_a_split() -> None:
    split = read_split(config(shadows=[{"model": "m", "percent": 2.5}], sticky="user", max_shadow_requests=4))
    assert split.targets == (Target("m", 1, 3), Target("n", -1, 1))
    assert split.shadows == (Shadow("m", -1, 2.5),)
    assert (split.sticky, split.max_shadow_requests, split.model_names) == ("user", 4, ("m", "n"))
    assert is_split(config())
    assert not is_split(ModelConfig(name="m", backend="python"))


REFUSED = {
    r"targets\[0\].weight is -1; expected 0 to 1000000": {"targets": [{"model": "m", "weight": -1}]},
    r"targets\[0\].version is 0; expected 1 or more, or -1": {"targets": [{"model": "m", "version": 0}]},
    r"targets\[1\].model is empty": {"targets": [TARGETS[0], {"model": ""}]},
    r"targets\[0\].model is the split itself": {"targets": [{"model": "s"}]},
    "no target has a weight above 0": {"targets": [{"model": "m", "weight": 0}]},
    r"shadows\[0\].percent is 101; expected 0 to 100": {"shadows": [{"model": "m", "percent": 101}]},
    "max_shadow_requests is 0; expected 1 or more": {"max_shadow_requests": 0},
    r"unknown field `wait` - at `\$.targets\[0\]`": {"targets": [{"model": "m", "wait": 1}]},
    "Expected `int`, got `str`": {"targets": [{"model": "m", "weight": "1"}]},
}


@pytest.mark.parametrize("text", REFUSED)
def test_what_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument, match=f"traffic split 's': .*{text}"):
        read_split(config(**REFUSED[text]))  # type: ignore[arg-type]  # each value is one of its parameter's


def test_a_split_has_nothing_that_a_model_has() -> None:
    with pytest.raises(InvalidArgument, match="traffic split 's' cannot have 'dynamic_batching'"):
        read_split(msgspec.structs.replace(config(), dynamic_batching=ModelDynamicBatching()))
    with pytest.raises(InvalidArgument, match="needs the parameter 'split'"):
        read_split(ModelConfig(name="s", backend="traffic_split"))


SERVED = ModelConfig(
    name="m",
    backend="b",
    max_batch_size=8,
    input=(
        ModelInput(name="A", data_type=DataType.FP32, dims=(2,)),
        ModelInput(name="B", data_type=DataType.FP32, dims=(1,)),
    ),
    output=(ModelOutput(name="Y", data_type=DataType.FP32, dims=(2,)),),
)


def replaced(**changes: object) -> ModelConfig:
    return msgspec.structs.replace(SERVED, **changes)


def test_clients_see_what_the_targets_have() -> None:
    """The smallest batch is what all of them take; the order of inputs does not matter."""
    other = replaced(max_batch_size=4, input=SERVED.input[::-1], backend="c")
    completed = completed_split(config(), read_split(config()), [SERVED, other])
    assert (completed.name, completed.backend, completed.max_batch_size) == ("s", "traffic_split", 4)
    assert (completed.input, completed.output) == (SERVED.input, SERVED.output)


@pytest.mark.parametrize(
    ("what", "other"),
    [
        ("inputs", replaced(input=SERVED.input[:1])),
        ("outputs", replaced(output=(ModelOutput(name="Y", data_type=DataType.FP32, dims=(3,)),))),
        ("batch dimension", replaced(max_batch_size=0)),
        ("decoupled", replaced(model_transaction_policy=ModelTransactionPolicy(decoupled=True))),
    ],
)
def test_targets_that_differ_are_refused(what: str, other: ModelConfig) -> None:
    with pytest.raises(InvalidArgument, match=f"traffic split 's': m:1 and n:-1 differ in their {what}: "):
        completed_split(config(), read_split(config()), [SERVED, other])
