"""Requests as clients of Triton's vLLM backend write them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from backends.engines.tensors.images import Given
from backends.engines.tensors.request import parse_request
from protocol.errors import InvalidArgument
from protocol.messages import InferenceRequest, Tensor
from tests.backends.helpers import objects


def request(parameters: dict[str, Any] | None = None, /, **tensors: Any) -> InferenceRequest:
    arrays = {
        name: np.array([value])
        if isinstance(value, bool)
        else objects(value)
        if isinstance(value, str | bytes)
        else value
        for name, value in tensors.items()
    }
    inputs = [Tensor.from_numpy(name, array) for name, array in arrays.items()]
    return InferenceRequest("m", inputs, parameters=parameters or {})


def test_the_least_that_there_is() -> None:
    parsed = parse_request(request(text_input="Hällo"))
    assert parsed.text == "Hällo"
    assert parsed.adds_special_tokens
    assert not parsed.options.is_streaming
    assert parsed.options.has_prompt, "as Triton's backend, where it is not excluded"
    assert parsed.options.extras == frozenset()


@pytest.mark.parametrize(
    ("tensors", "has_prompt"),
    [
        ({}, True),
        ({"exclude_input_in_output": True}, False),
        ({"exclude_input_in_output": False}, True),
        ({"stream": True}, False),
        ({"stream": True, "exclude_input_in_output": True}, False),
        ({"stream": False}, True),
    ],
)
def test_whether_the_prompt_is_shown(tensors: dict[str, bool], has_prompt: bool) -> None:
    options = parse_request(request(text_input="x", **tensors)).options
    assert options.has_prompt is has_prompt
    assert options.is_streaming is tensors.get("stream", False)


def test_sampling_parameters_take_the_place_of_parameters() -> None:
    parsed = parse_request(
        request({"top_k": 5, "temperature": 0.5}, text_input="x", sampling_parameters='{"top_k": 7}')
    )
    assert parsed.sampling.top_k == 7
    assert parsed.sampling.temperature is None


def test_parameters_of_a_body_of_generate() -> None:
    given = {"stream": False, "temperature": "0", "max_tokens": "7", "stop": '["a", "b"]', "mine": 3}
    parsed = parse_request(request(given, text_input="x"))
    assert parsed.sampling.temperature == 0
    assert parsed.sampling.max_tokens == 7
    assert parsed.options.stop == ("a", "b")


def test_a_cumulative_logprob_takes_logprobs() -> None:
    asked = {"text_input": "x", "return_cumulative_logprob": True}
    assert parse_request(request(**asked)).sampling.logprobs == 0
    assert parse_request(request({"logprobs": 2}, **asked)).sampling.logprobs == 2
    assert parse_request(request(**asked, sampling_parameters='{"logprobs": null}')).sampling.logprobs == 0
    assert parse_request(request(text_input="x", return_logprobs=True)).sampling.logprobs is None


def test_extras_by_their_flags() -> None:
    flags = {"return_finish_reason": True, "return_num_output_tokens": True, "return_logprobs": False}
    options = parse_request(request(text_input="x", **flags)).options
    assert options.extras == {"finish_reason", "num_output_tokens"}


def test_pictures() -> None:
    first, second = Given("image", b"a"), Given("image", b"b")
    assert parse_request(request(text_input="x", image=objects("a", "", "b"))).images == [first, second]
    assert parse_request(request({"image": "a"}, text_input="x")).images == [first]
    assert not parse_request(request({"image": ""}, text_input="x")).images


def test_a_chat_adds_no_special_tokens() -> None:
    assert not parse_request(request({"add_special_tokens": False}, text_input="x")).adds_special_tokens


@pytest.mark.parametrize(
    ("made", "text"),
    [
        (request({"embedding_request": "{}"}, text_input="x"), "'embedding_request' is not supported"),
        (request(), "the input 'text_input' is missing"),
        (request(text_input=b"\xff"), "'text_input' is not UTF-8"),
        (request(text_input=objects("a", "b")), "'text_input' must have one element, got 2"),
        (request(text_input="x", stream=np.array([True, False])), "'stream' must be one BOOL"),
        (request(text_input="x", stream=np.array([1], np.int32)), "'stream' must be one BOOL, got INT32"),
        (request(text_input="x", sampling_parameters="{"), "'sampling_parameters' is no JSON"),
        (request(text_input="x", sampling_parameters="[1]"), "'sampling_parameters' must be a JSON object"),
        (request(text_input="x", sampling_parameters="[" * 100_000), "'sampling_parameters' is no JSON"),
        (
            request(text_input="x", stream=True, exclude_input_in_output=False),
            "When streaming, `exclude_input_in_output` = False is not allowed.",
        ),
        (request({"stream": "maybe"}, text_input="x"), "stream must be true or false, got 'maybe'"),
    ],
)
def test_what_is_refused(made: InferenceRequest, text: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        parse_request(made)
    assert text in caught.value.message
    assert caught.value.message.startswith("model 'm': ")


def test_a_prompt_of_token_ids() -> None:
    parsed = parse_request(request(text_input="", prompt_token_ids=np.array([7, 0, 9], np.int32)))
    assert (parsed.text, list(parsed.token_ids)) == ("", [7, 0, 9])


@pytest.mark.parametrize("ids", [np.array([7, 8], np.int64), np.array([], np.int32)])
def test_token_ids_of_another_kind_are_refused(ids: Any) -> None:
    with pytest.raises(InvalidArgument, match="model 'm': 'prompt_token_ids' must be INT32 with at least one"):
        parse_request(request(text_input="", prompt_token_ids=ids))
