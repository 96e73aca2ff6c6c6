"""Conditions of steps and the byte budget, as an ensemble's parameters give them."""

from __future__ import annotations

import pytest

from protocol.errors import InvalidArgument
from repository.ensemble_parameters import (
    DEFAULT_MAX_INFLIGHT_BYTES,
    StepCondition,
    max_inflight_bytes,
    step_conditions,
)
from repository.model_config import ModelConfig
from repository.pbtxt import parse_pbtxt


def ensemble(**parameters: str) -> ModelConfig:
    """Steps 0 and 2 run model `x`, step 1 runs `y`."""
    steps = ", ".join(f'{{ model_name: "{model}" }}' for model in "xyx")
    entries = " ".join(
        f'parameters {{ key: "{key.replace("__", ":")}" value {{ string_value: "{value}" }} }}'
        for key, value in parameters.items()
    )
    return parse_pbtxt(
        f'name: "e" platform: "ensemble" ensemble_scheduling {{ step [ {steps} ] }} {entries}', source="t"
    )


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ({}, {}),
        ({"other": "T"}, {}),
        ({"condition__0": "T"}, {0: StepCondition("T")}),
        ({"condition__y": " ! T "}, {1: StepCondition("T", is_negated=True)}),
        ({"condition__2": "!T", "condition__y": "U"}, {2: StepCondition("T", is_negated=True), 1: StepCondition("U")}),
    ],
)
def test_conditions(parameters: dict[str, str], expected: dict[int, StepCondition]) -> None:
    assert step_conditions(ensemble(**parameters)) == expected


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        (
            {"condition__x": "T"},
            "parameter 'condition:x' of ensemble 'e' names a model that steps 0, 2 have in common: give the step's "
            "index",
        ),
        (
            {"condition__z": "T"},
            "parameter 'condition:z' of ensemble 'e' names neither a step's index nor its model",
        ),
        (
            {"condition__3": "T"},
            "parameter 'condition:3' of ensemble 'e' names step 3, but there are 3, counted from 0",
        ),
        (
            {"condition__1": "T", "condition__y": "U"},
            "parameter 'condition:y' of ensemble 'e' gives step 1 a second condition",
        ),
        (
            {"condition__1": " ! "},
            "parameter 'condition:1' of ensemble 'e' must name an ensemble tensor, as 'T' or '!T', got '!'",
        ),
    ],
)
def test_conditions_that_are_none(parameters: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        step_conditions(ensemble(**parameters))
    assert caught.value.message == message


def test_a_model_without_steps_has_no_conditions() -> None:
    assert step_conditions(ModelConfig(name="m")) == {}


@pytest.mark.parametrize(("text", "expected"), [(None, DEFAULT_MAX_INFLIGHT_BYTES), ("0", 0), (" 4096 ", 4096)])
def test_the_byte_budget(text: str | None, expected: int) -> None:
    assert max_inflight_bytes(ensemble(**({} if text is None else {"max_inflight_bytes": text}))) == expected


@pytest.mark.parametrize("text", ["-1", "1e9", "64MiB", "", "\u0661"])
def test_a_byte_budget_that_is_no_number(text: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        max_inflight_bytes(ensemble(max_inflight_bytes=text))
    assert caught.value.message == (
        "parameter 'max_inflight_bytes' of ensemble 'e' must be a number of bytes (0 for no limit), "
        f"got '{text.strip()}'"
    )
