"""`/v1/embeddings` through the application."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from protocol.core import ModelMetadata, Respond, TensorMetadata
from protocol.errors import InvalidArgument
from protocol.http.app import HttpApp
from protocol.http.settings import HttpSettings
from protocol.messages import LATEST_VERSION, InferenceRequest, InferenceResponse, Tensor
from protocol.text.model import TensorNames, TextModel
from tests.protocol.http.asgi import Answer, call
from tests.protocol.http.fake_services import make_services
from tests.protocol.http.openai.handlers.scripted_core import ScriptedCore
from tests.protocol.http.openai.words import word_tokenizer

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


async def post(core: Embedder, **members: Any) -> Answer:
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
