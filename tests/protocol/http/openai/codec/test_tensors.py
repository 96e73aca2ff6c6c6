"""Tensors of text models, both ways: only what a model has, in its shapes and datatypes."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest

from protocol.core import ModelMetadata, TensorMetadata
from protocol.datatypes import DataType
from protocol.errors import Internal
from protocol.http.openai.codec.tensors import PromptEncoder, TextPart, decode_text_response
from protocol.http.openai.errors import FieldError
from protocol.messages import InferenceRequest, InferenceResponse, Tensor, encode_bytes_elements
from protocol.text.model import TensorNames, TextModel

TEXT = TextModel("m", 1)
PROMPT = TensorMetadata("text_input", "BYTES", (1,))
SAMPLING = TensorMetadata("sampling_parameters", "BYTES", (1,))


def encoder(*inputs: TensorMetadata, sampling: dict[str, Any] | None = None, **more: Any) -> PromptEncoder:
    metadata = ModelMetadata("m", ("1",), "python", (PROMPT, *inputs), ())
    return PromptEncoder(TEXT, metadata, sampling or {}, stream=more.pop("stream", False), **more)


def values(request: InferenceRequest) -> dict[str, Any]:
    return {tensor.name: tensor.as_numpy().reshape(-1).tolist() for tensor in request.inputs}


def test_a_model_with_nothing_but_a_text() -> None:
    request = encoder(sampling={"temperature": 0.5, "stop": ["a"]}, request_id="7").request("hi")
    assert values(request) == {"text_input": [b"hi"]}
    assert (request.id, request.parameters) == ("7", {"temperature": 0.5})


def test_a_model_of_the_vllm_backend() -> None:
    flags = ("stream", "exclude_input_in_output", "return_finish_reason", "return_logprobs", "return_num_input_tokens")
    inputs = [TensorMetadata(name, "BOOL", (1,)) for name in flags]
    made = encoder(SAMPLING, *inputs, sampling={"seed": 1, "stop": ["a"]}, stream=True, return_logprobs=True)
    given = values(made.request("hi", seed=3))
    assert msgspec.json.decode(given.pop("sampling_parameters")[0]) == {"seed": 3, "stop": ["a"]}
    assert given == {"text_input": [b"hi"], **{flag: [True] for flag in flags}}


def test_token_ids_go_to_a_model_that_takes_them() -> None:
    takes = encoder(TensorMetadata("prompt_token_ids", "INT32", (-1,)))
    assert values(takes.request("hi", token_ids=[5, 6])) == {"text_input": [b"hi"], "prompt_token_ids": [5, 6]}
    assert values(takes.request("hi")) == {"text_input": [b"hi"]}
    assert values(encoder().request("hi", token_ids=[5, 6])) == {"text_input": [b"hi"]}


def test_a_batch_dimension() -> None:
    metadata = ModelMetadata("m", ("1",), "python", (TensorMetadata("text_input", "BYTES", (-1, 1)),), ())
    (tensor,) = PromptEncoder(TEXT, metadata, {}, stream=False).request("hi").inputs
    assert tensor.shape == (1, 1)


def test_a_model_with_an_input_for_each_field() -> None:
    """As TensorRT-LLM's ensembles have them."""
    inputs = (
        TensorMetadata("max_tokens", "INT32", (1,)),
        TensorMetadata("temperature", "FP32", (1,)),
        TensorMetadata("seed", "UINT64", (1,)),
        TensorMetadata("stop_words", "BYTES", (-1,)),
    )
    sampling = {"max_tokens": 4, "temperature": 0.5, "seed": 1, "stop": ["a", "b"]}
    request = encoder(*inputs, sampling=sampling).request("hi", seed=2)
    assert values(request) == {
        "text_input": [b"hi"],
        "max_tokens": [4],
        "temperature": [0.5],
        "stop_words": [b"a", b"b"],
        "seed": [2],
    }
    assert [tensor.shape for tensor in request.inputs if tensor.name == "stop_words"] == [(2,)]


@pytest.mark.parametrize("key", ["structured_outputs", "logit_bias"])
def test_what_a_model_cannot_be_told_is_refused(key: str) -> None:
    with pytest.raises(FieldError, match="takes no 'sampling_parameters'"):
        encoder(sampling={key: {"json": {}}})


@pytest.mark.parametrize(("key", "kind", "value"), [("max_tokens", "INT32", 2**40), ("bad_words", "INT64", ["a"])])
def test_a_value_that_the_input_for_its_field_does_not_hold(key: str, kind: str, value: Any) -> None:
    with pytest.raises(FieldError, match=f"'{key}': input '{key}' of model 'm' takes {kind}, got"):
        encoder(TensorMetadata(key, kind, (1,)), sampling={key: value})


def test_logprobs_of_a_model_that_gives_none() -> None:
    with pytest.raises(FieldError, match="model 'm' gives no logprobs"):
        encoder(SAMPLING, return_logprobs=True)


def text(name: str, *elements: str) -> Tensor:
    return Tensor(name, DataType.BYTES, (len(elements),), encode_bytes_elements(elements))


def number(name: str, value: int, kind: type[np.integer[Any]] = np.uint32) -> Tensor:
    return Tensor.from_numpy(name, np.array([value], kind))


def decode(*outputs: Tensor) -> TextPart:
    return decode_text_response(InferenceResponse("m", 1, list(outputs)), TensorNames())


@pytest.mark.parametrize(
    ("outputs", "part"),
    [
        ((), TextPart()),
        (
            (text("text_output", "h\N{LATIN SMALL LETTER E WITH ACUTE}"),),
            TextPart("h\N{LATIN SMALL LETTER E WITH ACUTE}"),
        ),
        ((text("text_output"),), TextPart()),
        ((text("text_output", "a"), text("finish_reason", "None")), TextPart("a")),
        ((text("text_output", "a"), text("finish_reason", "")), TextPart("a")),
        ((text("finish_reason", "length"),), TextPart(finish_reason="length")),
        ((number("num_input_tokens", 3), number("num_output_tokens", 2, np.int32)), TextPart("", "", None, 3, 2)),
        ((text("logprobs", '[{"5": {"logprob": -1}}]'),), TextPart(logprobs=[{"5": {"logprob": -1}}])),
        ((text("logprobs", "None"), text("other", "x", "y")), TextPart()),
    ],
)
def test_what_a_response_has_of_a_text(outputs: tuple[Tensor, ...], part: TextPart) -> None:
    assert decode(*outputs) == part


def test_what_a_response_says_of_the_cache() -> None:
    response = InferenceResponse("m", 1, [], parameters={"cached_tokens": 4, "stop_reason": "x"})
    assert decode_text_response(response, TensorNames()) == TextPart(cached_tokens=4)


def test_broken_text_is_replaced() -> None:
    data = encode_bytes_elements([b"a\xff"])
    assert decode(Tensor("text_output", DataType.BYTES, (1,), memoryview(data))).text == "a\ufffd"


@pytest.mark.parametrize("output", [text("text_output", "a", "b"), text("logprobs", "{"), text("logprobs", "[1]")])
def test_what_is_no_text_is_the_models_fault(output: Tensor) -> None:
    with pytest.raises(Internal):
        decode(output)
