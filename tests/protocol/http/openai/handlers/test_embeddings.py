"""`/v1/embeddings` through the application."""

from __future__ import annotations

import base64
import json
import re
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import pytest

from protocol.core import ModelMetadata, Respond, TensorMetadata
from protocol.errors import InvalidArgument
from protocol.http.app import HttpApp
from protocol.http.openai.codec.embeddings import embeddings_answer
from protocol.http.settings import HttpSettings
from protocol.messages import LATEST_VERSION, InferenceRequest, InferenceResponse, Tensor
from protocol.text.model import TensorNames, TextModel, VectorTensors
from tests.protocol.http.asgi import Answer, call
from tests.protocol.http.fake_services import make_services
from tests.protocol.http.openai.handlers.scripted_core import ScriptedCore
from tests.protocol.http.openai.words import word_tokenizer
from tests.sliced import finished

NAMES = TensorNames(text_input="", text_output="", embedding_input="T", embedding_output="V")


@dataclass
class Embedder(ScriptedCore):
    """The model `m` gives the length of a text, and refuses the text `no`."""

    def model_metadata(self, name: str, version: int = LATEST_VERSION) -> ModelMetadata:
        return ModelMetadata("m", ("1",), "python", (TensorMetadata("T", "BYTES", (-1, 1)),), ())

    async def infer_stream(self, request: InferenceRequest, respond: Respond) -> bool:
        self.requests.append(request)
        (text,) = request.inputs[0].as_numpy().reshape(-1)
        if text == b"no":
            raise InvalidArgument("not this text")
        vector = np.array([[len(text), 0.5]], np.float32)
        await respond(InferenceResponse("m", 1, [Tensor.from_numpy("V", vector)]))
        return True


def make_core(**members: Any) -> Embedder:
    return Embedder(texts=(TextModel("m", 1, names=NAMES, **members),))


async def post(core: ScriptedCore, **members: Any) -> Answer:
    app = HttpApp(make_services(core), HttpSettings())
    return await call(app, "POST", "/v1/embeddings", json.dumps({"model": "m", **members}).encode())


async def test_one_text() -> None:
    answer = await post(make_core(), input="hello")
    assert answer.json == {
        "object": "list",
        "data": [{"object": "embedding", "index": 0, "embedding": [5, 0.5]}],
        "model": "m",
        "usage": {"prompt_tokens": 0, "total_tokens": 0},
    }


async def test_many_texts_keep_their_order() -> None:
    core = make_core(tokenizer=word_tokenizer())
    made = (await post(core, input=["hello"] + ["x" * size for size in range(1, 200)], encoding_format="float")).json
    assert [each["embedding"][0] for each in made["data"]] == [5, *range(1, 200)]
    assert [each["index"] for each in made["data"]] == list(range(200))
    assert made["usage"]["prompt_tokens"] >= 200
    assert len(core.requests) == 200


async def test_token_ids_are_spelt_out() -> None:
    tokenizer = word_tokenizer()
    ids = tokenizer.encode("hello world", add_special_tokens=False)
    made = (await post(make_core(tokenizer=tokenizer), input=[ids, ids[:1]])).json
    assert [each["embedding"][0] for each in made["data"]] == [11, 5]
    assert (await post(make_core(), input=ids)).status == 400


@pytest.mark.parametrize(
    ("members", "param"),
    [
        ({"input": []}, "input"),
        ({"input": {"a": 1}}, "input"),
        ({"input": "a", "encoding_format": "int8"}, "encoding_format"),
        ({"input": "a", "dimensions": 3}, "dimensions"),
        ({"input": "a", "normalize": True}, "normalize"),
    ],
)
async def test_what_is_refused(members: dict[str, Any], param: str) -> None:
    answer = await post(make_core(), **members)
    assert (answer.status, answer.json["error"]["param"]) == (400, param)


async def test_dimensions_that_are_right_anyway() -> None:
    assert (await post(make_core(), input="a", dimensions=2)).status == 200


async def test_one_text_that_fails_fails_all() -> None:
    answer = await post(make_core(), input=["a", "no", "b"])
    assert (answer.status, answer.json["detail"]) == (400, "not this text")


async def test_a_model_that_only_generates() -> None:
    answer = await post(Embedder(texts=(TextModel("m", 1),)), input="a")
    assert (answer.status, answer.json["detail"]) == (400, "model 'm' gives no embeddings")


IDS = VectorTensors("I", "V", mask="A", types="K", rows=3, pooling="mean", normalizes=False, size=2)


@dataclass
class IdEmbedder(ScriptedCore):
    """The model `m` gives for each token its id, and how many ids its text has; fillers are not numbers."""

    shapes: list[tuple[int, ...]] = field(default_factory=list)
    answer: Any = None

    def model_metadata(self, name: str, version: int = LATEST_VERSION) -> ModelMetadata:
        inputs = tuple(TensorMetadata(each, "INT64", (-1, -1)) for each in "IAK")
        return ModelMetadata("m", ("1",), "onnxruntime", inputs, ())

    async def infer_stream(self, request: InferenceRequest, respond: Respond) -> bool:
        self.requests.append(request)
        given = {each.name: each.as_numpy() for each in request.inputs}
        ids, mask = given["I"], given["A"]
        assert not given["K"].any()
        self.shapes.append(ids.shape)
        tokens = np.stack([ids, np.broadcast_to(mask.sum(-1, keepdims=True), ids.shape)], -1).astype(np.float32)
        tokens[mask == 0] = np.nan
        await respond(
            InferenceResponse("m", 1, [Tensor.from_numpy("V", tokens if self.answer is None else self.answer)])
        )
        return True


def id_core(vectors: VectorTensors = IDS, **members: Any) -> IdEmbedder:
    names = TensorNames(text_input="", text_output="")
    text = TextModel("m", 1, names=names, vectors=vectors, tokenizer=word_tokenizer(), **members)
    return IdEmbedder(texts=(text,))


async def test_texts_of_like_length_share_an_inference() -> None:
    core = id_core()
    inputs = [[1], [1, 3], [2], [4, 4, 4, 4], [3, 1]]
    made = (await post(core, input=inputs)).json
    assert [each["embedding"] for each in made["data"]] == [[1, 1], [2, 2], [2, 1], [4, 4], [2, 2]]
    assert core.shapes == [(3, 2), (2, 4)]
    assert made["usage"] == {"prompt_tokens": 10, "total_tokens": 10}


async def test_models_without_a_mask_or_rows() -> None:
    """Nothing is filled up, and each text is an inference."""
    core = id_core(msgspec.structs.replace(IDS, rows=0))
    made = (await post(core, input=[[1], [1, 3]])).json
    assert [each["embedding"] for each in made["data"]] == [[1, 1], [2, 2]]
    assert core.shapes == [(1,), (2,)]


async def test_long_answers_are_pooled_beside_the_loop() -> None:
    core = id_core()
    made = (await post(core, input=[[1] * 40_000, [2] * 40_000])).json
    assert [each["embedding"] for each in made["data"]] == [[1, 40_000], [2, 40_000]]


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (np.ones((1, 1, 2), np.float32), r"expected vectors of tokens for each of 1 texts, got the shape \[1, 1, 2\]"),
        (np.ones((2, 2, 2), np.float32), "expected vectors of tokens for each of 1 texts"),
        (np.ones((1, 2), np.float32), "expected vectors of tokens for each of 1 texts"),
        (np.ones((1, 2, 0), np.float32), "expected vectors of tokens for each of 1 texts"),
        (np.full((1, 2, 2), np.nan, np.float32), "expected vectors of numbers, got NaN or infinity"),
    ],
)
async def test_a_model_that_gives_something_else(answer: Any, message: str) -> None:
    core = id_core()
    core.answer = answer
    found = await post(core, input="hello world")
    assert found.status == 500
    assert re.search(message, found.json["detail"])


@pytest.mark.parametrize(
    ("members", "param"),
    [
        ({"input": [9]}, "input"),
        ({"input": [-1]}, "input"),
        ({"input": [2**65]}, "input"),
        ({"input": "hello hello hello hello"}, "input"),
        ({"input": [1] * 4}, "input"),
        ({"input": "hello", "dimensions": 1}, "dimensions"),
        ({"input": "hello", "truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ({"input": "hello", "truncate_prompt_tokens": 9}, "truncate_prompt_tokens"),
        ({"input": "hello", "truncate_prompt_tokens": -2}, "truncate_prompt_tokens"),
    ],
)
async def test_what_is_refused_of_token_ids(members: dict[str, Any], param: str) -> None:
    answer = await post(id_core(context_length=3), **members)
    assert (answer.status, answer.json["error"]["param"]) == (400, param)


async def test_a_model_of_texts_cuts_none() -> None:
    answer = await post(make_core(), input="a", truncate_prompt_tokens=3)
    assert (answer.status, answer.json["error"]["code"]) == (400, "unsupported_parameter")


async def test_dimensions_of_a_model_that_tells_no_size() -> None:
    vectors = msgspec.structs.replace(IDS, size=0, dimensions=None)
    assert (await post(id_core(vectors), input="hello", dimensions=1)).json["data"][0]["embedding"] == [1]
    answer = await post(id_core(vectors), input="hello", dimensions=3)
    assert (answer.status, answer.json["error"]["param"]) == (400, "dimensions")


@pytest.mark.parametrize("encoding", ["float", "base64"])
async def test_a_long_answer_is_sent_in_parts(encoding: str) -> None:
    texts = [f"{number}" * (number % 7 + 1) for number in range(2048)]
    answer = await post(make_core(), input=texts, encoding_format=encoding)
    vectors = [np.array([len(each), 0.5], np.float32) for each in texts]
    expected = [
        base64.b64encode(vector.tobytes()).decode() if encoding == "base64" else vector.tolist() for vector in vectors
    ]
    assert answer.json == {
        "object": "list",
        "data": [{"object": "embedding", "index": i, "embedding": each} for i, each in enumerate(expected)],
        "model": "m",
        "usage": {"prompt_tokens": 0, "total_tokens": 0},
    }
    made = finished(embeddings_answer(vectors, encoding, "m", 0))
    assert len(made) > 1
    assert json.loads(b"".join(made)) == answer.json
    assert sum(1 for _ in embeddings_answer(vectors, encoding, "m", 0)) == 2048, "the loop may turn behind each"


async def test_a_body_of_too_many_values_is_refused_before_it_is_read() -> None:
    answer = await post(make_core(), input=[["x"]] * 200_000)
    assert answer.status == 413
    assert answer.json["error"]["code"] == "content_too_large"
    assert "more than 400000 JSON values" in answer.json["error"]["message"]
    long = await post(make_core(), input=["x" * 1000, *["y, [z]" * 100] * 500])
    assert long.status == 200, "texts are one value each"
    tokens = await post(make_core(), input=[[1] * 1000] * 300)
    assert tokens.status != 413, "as many token ids as OpenAI takes"
