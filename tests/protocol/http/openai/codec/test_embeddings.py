"""Embeddings: inputs, and vectors in both encodings."""

from __future__ import annotations

import base64
import struct
from typing import Any

import msgspec
import numpy as np
import pytest

from protocol.core import ModelMetadata, TensorMetadata
from protocol.datatypes import DataType
from protocol.errors import Internal
from protocol.http.openai.codec.embeddings import (
    MAX_INPUTS,
    decode_vector,
    embedding_inputs,
    embedding_request,
    vector_members,
)
from protocol.http.openai.errors import FieldError
from protocol.messages import InferenceResponse, Tensor, encode_bytes_elements
from protocol.text.model import TensorNames, TextModel

MAPPED = TextModel("m", 1, names=TensorNames(embedding_input="T", embedding_output="V"))
REQUESTS = TextModel("m", 1, names=TensorNames(embedding_request="embedding_request"))


@pytest.mark.parametrize(
    ("given", "inputs"),
    [("a", ["a"]), (["a", "b"], ["a", "b"]), ([1, 2], [[1, 2]]), ([[1], [2, 3]], [[1], [2, 3]])],
)
def test_inputs(given: Any, inputs: list[Any]) -> None:
    assert embedding_inputs(given) == inputs


@pytest.mark.parametrize("given", ["", [], [""], [[]], [1, "a"], [True], {"a": 1}, 3, None, ["a"] * (MAX_INPUTS + 1)])
def test_what_is_no_input(given: Any) -> None:
    with pytest.raises(FieldError) as caught:
        embedding_inputs(given)
    assert caught.value.param == "input"


def test_a_mapped_input() -> None:
    metadata = ModelMetadata("m", (), "", (TensorMetadata("T", "BYTES", (-1, 1)),), ())
    (tensor,) = embedding_request(MAPPED, metadata, "hi", None, "").inputs
    assert (tensor.name, tensor.shape, tensor.as_numpy().tolist()) == ("T", (1, 1), [[b"hi"]])


def test_a_request_as_the_vllm_backend_takes_it() -> None:
    metadata = ModelMetadata("m", (), "", (TensorMetadata("embedding_request", "BYTES", (1,)),), ())
    (tensor,) = embedding_request(REQUESTS, metadata, [1, 2], 8, "").inputs
    assert msgspec.json.decode(tensor.as_numpy()[0]) == {"input": [1, 2], "pooling_params": {"dimensions": [8]}}


def test_vectors() -> None:
    vector = np.array([[0.5, -1]], np.float32)
    found, tokens = decode_vector(MAPPED, InferenceResponse("m", 1, [Tensor.from_numpy("V", vector)]))
    assert (found.tolist(), tokens) == ([0.5, -1], 0)
    text = Tensor("text_output", DataType.BYTES, (1,), encode_bytes_elements(["[0.5, -1]"]))
    count = Tensor.from_numpy("num_input_tokens", np.array([4], np.uint32))
    found, tokens = decode_vector(REQUESTS, InferenceResponse("m", 1, [text, count]))
    assert (found.tolist(), tokens) == ([0.5, -1], 4)


@pytest.mark.parametrize("text", [MAPPED, REQUESTS])
def test_a_model_that_gives_no_vector(text: TextModel) -> None:
    with pytest.raises(Internal, match="model 'm'"):
        decode_vector(text, InferenceResponse("m", 1, []))


def test_encodings() -> None:
    vector = np.array([0.5, -1], np.float32)
    assert vector_members(vector, "float") == [0.5, -1]
    assert struct.unpack("<2f", base64.b64decode(vector_members(vector, "base64"))) == (0.5, -1)
