"""Sampling parameters: which fields go on, and under what name."""

from __future__ import annotations

from typing import Any

import pytest

from protocol.http.openai.codec.requests import ChatRequest, CompletionRequest, StreamOptions
from protocol.http.openai.codec.sampling import check_stream_options, sampling_parameters, wanted_logprobs
from protocol.http.openai.errors import FieldError

SCHEMA = {"type": "object"}


def chat(**members: Any) -> ChatRequest:
    return ChatRequest(messages=[{"role": "user"}], **members)


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        ({}, {}),
        ({"temperature": 0.0, "seed": 0, "top_k": -1}, {"temperature": 0.0, "seed": 0, "top_k": -1}),
        ({"stop": "a"}, {"stop": ["a"]}),
        ({"stop": []}, {}),
        ({"stop": ["a", "b"], "ignore_eos": False}, {"stop": ["a", "b"], "ignore_eos": False}),
        ({"n": 2, "user": "me", "max_tokens": 3, "metadata": {}}, {}),
        ({"best_of": 1}, {}),
        ({"n": 2, "best_of": 2}, {}),
        ({"best_of": 3}, {"best_of": 3}),
        ({"logit_bias": {"5": 1}}, {"logit_bias": {"5": 1}}),
        ({"logprobs": True}, {"logprobs": 0}),
        ({"logprobs": True, "top_logprobs": 2}, {"logprobs": 2}),
        ({"logprobs": False}, {}),
        ({"response_format": {"type": "text"}}, {}),
        ({"response_format": {"type": "json_object"}}, {"structured_outputs": {"json_object": True}}),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}},
            {"structured_outputs": {"json": SCHEMA}},
        ),
        ({"structured_outputs": {"regex": "a+"}}, {"structured_outputs": {"regex": "a+"}}),
        ({"guided_choice": ["a", "b"]}, {"structured_outputs": {"choice": ["a", "b"]}}),
    ],
)
def test_what_a_model_is_told(members: dict[str, Any], expected: dict[str, Any]) -> None:
    assert sampling_parameters(chat(**members)) == expected


@pytest.mark.parametrize(
    ("members", "param"),
    [
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema.schema"),
        ({"guided_regex": "a", "response_format": {"type": "json_object"}}, "guided_regex"),
    ],
)
def test_what_cannot_be(members: dict[str, Any], param: str) -> None:
    with pytest.raises(FieldError) as caught:
        sampling_parameters(chat(**members))
    assert caught.value.param == param


def test_completions_count_their_logprobs() -> None:
    assert wanted_logprobs(CompletionRequest(prompt="x")) is None
    assert wanted_logprobs(CompletionRequest(prompt="x", logprobs=0)) == 0


def test_stream_options_are_for_streams() -> None:
    check_stream_options(chat(stream=True, stream_options=StreamOptions()))
    with pytest.raises(FieldError, match="can only be used when `stream` is True"):
        check_stream_options(chat(stream_options=StreamOptions()))
