"""Embeddings: the inputs of a request to tensors, and what a model gives to vectors in OpenAI's forms. Pure."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from protocol.core import ModelMetadata
from protocol.datatypes import DataType
from protocol.errors import Internal
from protocol.http.openai.codec.tensors import decode_text_response
from protocol.http.openai.codec.written_lists import written_list
from protocol.http.openai.errors import FieldError
from protocol.messages import InferenceRequest, InferenceResponse, Tensor, encode_bytes_elements
from protocol.sync.sliced import Sliced
from protocol.text.model import TextModel

Vector = NDArray[np.float32]
Input = str | list[int]

# Of one request, as OpenAI has it.
MAX_INPUTS = 2048


def embedding_inputs(given: Any) -> list[Input]:
    """Raises:
    FieldError: neither a text, nor token ids, nor a list of either.
    """
    if isinstance(given, str) and given:
        return [given]
    if isinstance(given, list) and given:
        if all(type(each) is int for each in given):
            return [given]
        if len(given) > MAX_INPUTS:
            raise FieldError(f"'input': expected at most {MAX_INPUTS}, got {len(given)}", "input")
        if all(isinstance(each, str) and each for each in given):
            return list(given)
        if all(isinstance(ids, list) and ids and all(type(each) is int for each in ids) for ids in given):
            return list(given)
    if given in ("", []):
        raise FieldError("Value should have at least 1 item after validation, not 0", "input")
    raise FieldError("'input': expected a text, a list of texts, a list of token ids, or a list of those", "input")


def embedding_request(
    text: TextModel, metadata: ModelMetadata, given: Input, dimensions: int | None, request_id: str
) -> InferenceRequest:
    """One for one input. Token ids are only for models that take OpenAI's request as it is: others get texts."""
    names = text.names
    if names.embedding_input:
        name, value = names.embedding_input, given if isinstance(given, str) else ""
    else:
        pooling = {} if dimensions is None else {"dimensions": [dimensions]}
        name, value = names.embedding_request, msgspec.json.encode({"input": given, "pooling_params": pooling}).decode()
    shape = next((1,) * max(len(each.shape), 1) for each in metadata.inputs if each.name == name)
    tensor = Tensor(name, DataType.BYTES, shape, encode_bytes_elements([value]))
    return InferenceRequest(metadata.name, [tensor], id=request_id)


def decode_vector(text: TextModel, response: InferenceResponse) -> tuple[Vector, int]:
    """The vector, and how many tokens the input had, 0 if the model does not say.

    Raises:
        Internal: the model has given none.
    """
    names = text.names
    part = decode_text_response(response, names)
    if not names.embedding_input:
        return _decoded(part.text, response.model_name, names.text_output), part.input_tokens
    for tensor in response.outputs:
        if tensor.name == names.embedding_output and tensor.datatype is DataType.FP32:
            return tensor.as_numpy().reshape(-1), part.input_tokens
    raise Internal(f"model '{response.model_name}': expected a vector in output '{names.embedding_output}', got none")


def vector_members(vector: Vector, encoding: str) -> Any:
    """A list of floats, or the base64 text of little-endian float32 values."""
    if encoding == "base64":
        return base64.b64encode(vector.astype("<f4").tobytes()).decode()
    return vector.tolist()


def embeddings_answer(vectors: Sequence[Vector], encoding: str, model: str, tokens: int) -> Sliced[list[bytes]]:
    """Its JSON, in parts."""
    data = (
        {"object": "embedding", "index": index, "embedding": vector_members(vector, encoding)}
        for index, vector in enumerate(vectors)
    )
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return written_list({"object": "list"}, "data", data, {"model": model, "usage": usage})


def _decoded(text: str, model: str, output: str) -> Vector:
    try:
        return np.asarray(msgspec.json.decode(text, type=list[float]), dtype=np.float32)
    except msgspec.MsgspecError as error:
        raise Internal(f"model '{model}': output '{output}' is not a vector as JSON: {error}") from None
