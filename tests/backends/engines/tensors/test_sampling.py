"""Sampling fields: each is honoured by the engine, or refused by its name."""

from __future__ import annotations

from typing import Any

import pytest

from backends.engines.tensors.sampling import parse_sampling, sampling_of
from backends.engines.worker.trioton_engine.engine import EngineInfo, Sampling, Structure
from protocol.errors import InvalidArgument, InvalidField

ALL = EngineInfo(
    frozenset(Sampling.__dataclass_fields__)
    | {"adapter", *(f"structure.{kind}" for kind in ("json", "json_object", "regex", "choice", "grammar"))},
    most_logprobs=5,
)
NONE = EngineInfo()


def made(values: dict[str, Any], info: EngineInfo = ALL) -> Sampling:
    return sampling_of(parse_sampling(values, "model 'm'"), 10, info, engine="e", where="model 'm'")


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, {}),
        ({"temperature": 0}, {"temperature": 0.0}),
        ({"temperature": "0.5", "top_k": "3"}, {"temperature": 0.5, "top_k": 3}),
        ({"top_p": 0.9, "min_p": 0.1}, {"top_p": 0.9, "min_p": 0.1}),
        ({"seed": 2**64 - 1}, {"seed": 2**64 - 1}),
        ({"stop_token_ids": [1, 2]}, {"stop_token_ids": (1, 2)}),
        ({"logit_bias": {"7": -1}}, {"logit_bias": {7: -1.0}}),
        ({"bad_words": ["x"]}, {"bad_words": ("x",)}),
        ({"logprobs": 0}, {"logprobs": 0}),
        ({"n": 1, "best_of": None, "use_beam_search": False, "prompt_logprobs": 0}, {}),
        ({"structured_outputs": {"regex": "a+"}}, {"structure": Structure("regex", "a+")}),
        (
            {"structured_outputs": '{"json": {"type": "object"}}'},
            {"structure": Structure("json", '{"type": "object"}')},
        ),
        ({"structured_outputs": {"json_object": True}}, {"structure": Structure("json_object", "")}),
        ({"guided_decoding": {"choice": ["a", "b"]}}, {"structure": Structure("choice", '["a", "b"]')}),
    ],
)
def test_fields_that_are_honoured(values: dict[str, Any], expected: dict[str, Any]) -> None:
    assert made(values) == Sampling(max_tokens=10, **expected)


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"temperature": -1}, "temperature: Expected `float` >= 0"),
        ({"temperature": "warm"}, "temperature: Expected `float"),
        ({"top_p": 0}, "top_p: Expected `float` > 0"),
        ({"top_k": -2}, "top_k: Expected `int` >= -1"),
        ({"max_tokens": 0}, "max_tokens: Expected `int` >= 1"),
        ({"seed": 2**64}, "seed: expected an integer of 64 bits"),
        ({"presence_penalty": 3}, "presence_penalty: Expected `float` <= 2"),
        ({"stop": [1]}, "stop"),
        ({"foo": 1}, "unknown field `foo`"),
        ({"n": 2}, "n 2 is not supported"),
        ({"best_of": 2}, "best_of 2 is not supported"),
        ({"prompt_logprobs": 1}, "prompt_logprobs 1 is not supported"),
        ({"use_beam_search": True}, "use_beam_search True is not supported"),
        ({"min_tokens": 11}, "min_tokens: expected at most max_tokens, which is 10, got 11"),
        ({"logprobs": 6}, "logprobs: engine 'e' reports 5 of the likeliest tokens at most, got 6"),
        ({"structured_outputs": {"json": {}, "regex": "a"}}, "must have one of"),
        ({"structured_outputs": {"xml": "a"}}, "structured_outputs: xml is not supported"),
        ({"structured_outputs": "{"}, "structured_outputs is no JSON"),
        ({"structured_outputs": {"choice": []}}, "choice must be a list of texts"),
        ({"structured_outputs": {"regex": 3}}, "regex must be a text, got int"),
        (
            {"structured_outputs": {"structural_tag": "x"}},
            "structured_outputs.structural_tag is not supported by engine",
        ),
    ],
)
def test_fields_that_are_refused(values: dict[str, Any], text: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        made(values)
    assert text in caught.value.message
    assert caught.value.message.startswith("model 'm': sampling_parameters: ")


@pytest.mark.parametrize(
    ("values", "field"),
    [
        ({"top_p": 0}, "top_p"),
        ({"logit_bias": {"a": 1}}, "logit_bias"),
        ({"stop": [1]}, "stop"),
        ({"seed": 2**64}, "seed"),
        ({"best_of": 2}, "best_of"),
        ({"min_tokens": 11}, "min_tokens"),
        ({"logprobs": 6}, "logprobs"),
    ],
)
def test_a_refusal_says_which_field_it_is_about(values: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidField, match=f"sampling_parameters: {field}") as caught:
        made(values)
    assert caught.value.param == field


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *(("temperature", 0.5), ("top_p", 0.5), ("top_k", 5), ("min_p", 0.1), ("seed", 1), ("min_tokens", 2)),
        *(("presence_penalty", 1), ("frequency_penalty", 1), ("repetition_penalty", 1.1), ("stop_token_ids", [1])),
        *(("ignore_eos", True), ("logit_bias", {"1": 1}), ("bad_words", ["a"]), ("logprobs", 0)),
    ],
)
def test_what_an_engine_does_not_have_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(InvalidField, match=rf"sampling_parameters: {name} is not supported by engine 'e'") as caught:
        made({name: value}, NONE)
    assert caught.value.param == name


@pytest.mark.parametrize(
    "values",
    [
        *({"top_p": 1}, {"top_k": -1}, {"top_k": 0}, {"min_p": 0}, {"min_tokens": 0}, {"presence_penalty": 0}),
        *({"frequency_penalty": 0.0}, {"repetition_penalty": 1}, {"ignore_eos": False}, {"logit_bias": {}}),
        *({"bad_words": []}, {"stop_token_ids": []}, {"stop": "x"}, {"structured_outputs": None}),
    ],
)
def test_any_engine_honours_what_has_no_effect(values: dict[str, Any]) -> None:
    assert made(values, NONE) == Sampling(max_tokens=10)


def test_adapters_are_refused_where_there_are_none() -> None:
    with pytest.raises(InvalidArgument, match=r"LoRA feature is not enabled\."):
        made({"lora_name": "a"}, NONE)


@pytest.mark.parametrize(("given", "stops"), [(None, ()), ("", ()), ("a", ("a",)), (["a", "b"], ("a", "b")), ([], ())])
def test_stop_strings(given: Any, stops: tuple[str, ...]) -> None:
    assert parse_sampling({"stop": given}, "m").stops == stops
