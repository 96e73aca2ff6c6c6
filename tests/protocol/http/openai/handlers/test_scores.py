"""`/score` and `/rerank` through the application."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from protocol.core import ModelMetadata, Respond, TensorMetadata
from protocol.http.app import HttpApp
from protocol.http.openai.codec.scores import cosines
from protocol.http.settings import HttpSettings
from protocol.messages import LATEST_VERSION, InferenceRequest, InferenceResponse, Tensor
from protocol.text.model import PairTensors, TensorNames, TextModel
from tests.protocol.http.asgi import Answer, call
from tests.protocol.http.fake_services import make_services
from tests.protocol.http.openai.handlers.scripted_core import ScriptedCore
from tests.protocol.http.openai.words import word_tokenizer

NO_TEXT = TensorNames(text_input="", text_output="")
PAIRS = PairTensors("I", "S", mask="A", types="K", rows=3)
INPUTS = (("I", "INT32"), ("A", "INT64"), ("K", "INT64"), ("P", "BYTES"))


@dataclass
class CrossEncoder(ScriptedCore):
    """The model `m` gives the number of tokens that are no fillers; of two texts, how much longer the second one is."""

    factor: float = 1
    shapes: list[tuple[int, ...]] = field(default_factory=list)

    def model_metadata(self, name: str, version: int = LATEST_VERSION) -> ModelMetadata:
        return ModelMetadata(
            "m", ("1",), "python", tuple(TensorMetadata(each, kind, (-1, -1)) for each, kind in INPUTS), ()
        )

    async def infer_stream(self, request: InferenceRequest, respond: Respond) -> bool:
        self.requests.append(request)
        given = {each.name: each.as_numpy() for each in request.inputs}
        self.shapes.append(request.inputs[0].shape)
        if "P" in given:
            pairs = given["P"].reshape(-1, 2)
            scores = np.array([[len(second) - len(first)] for first, second in pairs], np.float32)
        else:
            assert given["I"].dtype == np.int32
            counted = given["A"] if "A" in given else np.ones_like(given["I"])
            scores = counted.sum(axis=-1, keepdims=True).astype(np.float32)
        await respond(InferenceResponse("m", 1, [Tensor.from_numpy("S", scores * np.float32(self.factor))]))
        return True


def make_core(pairs: PairTensors = PAIRS, **members: Any) -> CrossEncoder:
    text = TextModel("m", 1, names=NO_TEXT, pairs=pairs, tokenizer=word_tokenizer(), **members)
    return CrossEncoder(texts=(text,))


async def post(core: ScriptedCore, path: str = "/score", **members: Any) -> Answer:
    app = HttpApp(make_services(core), HttpSettings())
    return await call(app, "POST", path, json.dumps({"model": "m", **members}).encode())


async def scores_of(core: ScriptedCore, **members: Any) -> list[float]:
    answer = await post(core, **{"use_activation": False, **members})
    assert answer.status == 200, answer.json
    return [each["score"] for each in answer.json["data"]]


async def test_the_answer_is_that_of_vllm() -> None:
    answer = (await post(make_core(), text_1="hello", text_2="world world", request_id="r")).json
    assert isinstance(answer.pop("created"), int)
    assert answer == {
        "id": "score-r",
        "object": "list",
        "model": "m",
        "data": [{"index": 0, "object": "score", "score": pytest.approx(1 / (1 + np.exp(-3)))}],
        "usage": {"prompt_tokens": 3, "total_tokens": 3, "completion_tokens": 0, "prompt_tokens_details": None},
    }


@pytest.mark.parametrize(
    ("first", "second"), [("text_1", "text_2"), ("data_1", "data_2"), ("queries", "documents"), ("queries", "items")]
)
async def test_names_of_the_fields(first: str, second: str) -> None:
    assert await scores_of(make_core(), **{first: {"text": "hello"}, second: ["hello", "hello world"]}) == [2, 3]


async def test_batches_are_of_like_length_and_answers_in_order() -> None:
    """At most three pairs in each, and the shorter ones filled up."""
    core = make_core()
    sizes = [5, 1, 3, 1, 4, 1, 2]
    scores = await scores_of(core, text_1="hello", text_2=[" ".join(["world"] * size) for size in sizes])
    assert scores == [size + 1 for size in sizes]
    assert sorted(core.shapes) == [(1, 6), (3, 2), (3, 5)]
    filled = next(each for each in core.requests if each.inputs[0].shape == (3, 5))
    assert filled.inputs[1].as_numpy().tolist() == [[1, 1, 1, 0, 0], [1, 1, 1, 1, 0], [1, 1, 1, 1, 1]]


async def test_a_model_without_a_mask_gets_equal_lengths_only() -> None:
    core = make_core(PairTensors("I", "S", rows=8))
    assert await scores_of(core, text_1="hello", text_2=["world world", "world", "hello hello"]) == [3, 2, 3]
    assert sorted(core.shapes) == [(1, 2), (2, 3)]


async def test_a_model_without_a_dimension_for_pairs() -> None:
    core = make_core(PairTensors("I", "S", mask="A"))
    assert await scores_of(core, text_1="hello", text_2=["world", "world world"]) == [2, 3]
    assert sorted(core.shapes) == [(2,), (3,)]


async def test_a_fixed_length_is_filled_and_is_the_most() -> None:
    core = make_core(PairTensors("I", "S", mask="A", rows=2, length=4))
    assert await scores_of(core, text_1="hello", text_2=["world", "world world"]) == [2, 3]
    assert core.shapes == [(2, 4)]
    answer = await post(core, text_1="hello hello", text_2="world world world")
    assert (answer.status, answer.json["error"]["code"]) == (400, "context_length_exceeded")
    assert "maximum context length is 4 tokens. However, pair 0 of 'text_1' and 'text_2' has 5" in answer.json["detail"]


async def test_what_is_cut() -> None:
    long = " ".join(["world"] * 9)
    core = make_core(context_length=8)
    assert await scores_of(core, text_1="hello", text_2=long, truncate_prompt_tokens=-1) == [8]
    assert await scores_of(core, text_1="hello", text_2=long, truncate_prompt_tokens=3) == [3]
    assert await scores_of(core, text_1=long, text_2=long, max_tokens_per_query=2, max_tokens_per_doc=1) == [3]


async def test_texts_as_they_are() -> None:
    core = make_core(PairTensors("P", "S", takes_texts=True, rows=2))
    assert await scores_of(core, text_1="a", text_2=["aa", "", "aaaa"]) == [1, -1, 3]
    assert core.shapes == [(2, 2), (1, 2)]
    answer = await post(core, text_1="a", text_2="b", truncate_prompt_tokens=5)
    assert (answer.status, answer.json["error"]["param"]) == (400, "truncate_prompt_tokens")


async def test_reranked() -> None:
    documents = ["world", "world world world", {"content": [{"type": "text", "text": "world world"}]}, "hello"]
    core = make_core(PairTensors("I", "S", mask="A", rows=4, activation="identity"))
    answer = await post(core, "/v1/rerank", query="hello", documents=documents, request_id="r")
    assert answer.json == {
        "id": "rerank-r",
        "model": "m",
        "usage": {"prompt_tokens": 11, "total_tokens": 11},
        "results": [
            {"index": 1, "document": {"text": "world world world", "multi_modal": None}, "relevance_score": 4},
            {"index": 2, "document": {"text": "world world", "multi_modal": None}, "relevance_score": 3},
            {"index": 0, "document": {"text": "world", "multi_modal": None}, "relevance_score": 2},
            {"index": 3, "document": {"text": "hello", "multi_modal": None}, "relevance_score": 2},
        ],
    }
    best = await post(core, "/v2/rerank", query="hello", documents=documents, top_n=1, return_documents=False)
    assert best.json["results"] == [{"index": 1, "relevance_score": 4}]


@pytest.mark.parametrize(
    ("members", "param"),
    [
        ({"text_1": "a"}, "text_2"),
        ({}, "queries"),
        ({"queries": "a"}, "documents"),
        ({"text_1": [], "text_2": ["a"]}, "text_1"),
        ({"text_1": "a", "text_2": []}, "text_2"),
        ({"text_1": ["a", "b"], "text_2": ["a", "b", "c"]}, "text_1"),
        ({"text_1": "a", "text_2": ["b", 7]}, "text_2[1]"),
        ({"text_1": {"content": [{"type": "image_url"}]}, "text_2": "b"}, "text_1"),
        ({"text_1": "a", "text_2": ["b"] * 2049}, "text_2"),
        ({"text_1": "a", "text_2": "b", "truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ({"text_1": "a", "text_2": "b", "truncate_prompt_tokens": 9}, "truncate_prompt_tokens"),
        ({"text_1": "a", "text_2": "b", "priority": -1}, "priority"),
        ({"text_1": " ".join(["hello"] * 2000), "text_2": ["b"] * 2000, "model": "long"}, "text_2"),
    ],
)
async def test_what_is_refused(members: dict[str, Any], param: str) -> None:
    core = make_core(context_length=8)
    core.texts = (*core.texts, TextModel("long", 1, names=NO_TEXT, pairs=PAIRS, tokenizer=word_tokenizer()))
    answer = await post(core, **members)
    assert (answer.status, answer.json["error"]["param"]) == (400, param)
    assert core.requests == []


@pytest.mark.parametrize(("factor", "words"), [(np.nan, "got NaN or infinity"), (np.inf, "got NaN or infinity")])
async def test_scores_that_are_no_numbers(factor: float, words: str) -> None:
    core = make_core()
    core.factor = factor
    answer = await post(core, text_1="a", text_2="b", use_activation=False)
    assert answer.status == 500
    assert words in answer.json["detail"]


async def test_a_model_that_gives_something_else() -> None:
    answer = await post(make_core(PairTensors("I", "T", mask="A", rows=4)), text_1="a", text_2="b")
    assert (answer.status, answer.json["detail"]) == (500, "model 'm': expected scores in output 'T', got none")


async def test_models_and_adapters_that_score_nothing() -> None:
    core = ScriptedCore()
    assert (await post(core, text_1="a", text_2="b")).json["detail"] == "model 'm' scores no texts"
    answer = await post(core, text_1="a", text_2="b", model="poet")
    assert answer.json["detail"] == "adapter 'poet' of model 'm' scores no texts"


@dataclass
class Embedder(ScriptedCore):
    """The model `m` gives how often `a` and `b` are in a text."""

    def model_metadata(self, name: str, version: int = LATEST_VERSION) -> ModelMetadata:
        return ModelMetadata("m", ("1",), "python", (TensorMetadata("T", "BYTES", (-1, 1)),), ())

    async def infer_stream(self, request: InferenceRequest, respond: Respond) -> bool:
        self.requests.append(request)
        (text,) = request.inputs[0].as_numpy().reshape(-1)
        vector = np.array([[text.count(b"a"), text.count(b"b")]], np.float32)
        await respond(InferenceResponse("m", 1, [Tensor.from_numpy("V", vector)]))
        return True


def make_embedder() -> Embedder:
    names = TensorNames(text_input="", text_output="", embedding_input="T", embedding_output="V")
    return Embedder(texts=(TextModel("m", 1, names=names),))


async def test_cosines_of_vectors() -> None:
    """Each text is embedded once; one without a length is like no other."""
    core = make_embedder()
    scores = await scores_of(core, text_1="a", text_2=["aa", "b", "ab", "a", "-"])
    assert scores == pytest.approx([1, 0, 0.5**0.5, 1, 0])
    assert len(core.requests) == 5
    assert await scores_of(core, text_1=["a", "b"], text_2=["ab", "bb"]) == pytest.approx([0.5**0.5, 1])
    made = (await post(core, "/rerank", query="b", documents=["a", "b"])).json
    assert [each["index"] for each in made["results"]] == [1, 0]


def test_a_cosine_is_at_most_one() -> None:
    vectors = [np.array([1, 0.5 / number, -0.001], np.float32) for number in range(1, 200)]
    equal = cosines(vectors, vectors, "m")
    assert max(equal) == 1
    assert equal == pytest.approx([1] * len(vectors))
    assert min(cosines(vectors, [-each for each in vectors], "m")) == -1


async def test_a_model_that_embeds_cuts_no_texts() -> None:
    answer = await post(make_embedder(), text_1="a", text_2="b", max_tokens_per_doc=3)
    assert (answer.status, answer.json["error"]["param"]) == (400, "max_tokens_per_doc")


@pytest.mark.parametrize(("path", "members"), [("/score", {"text_1": "a", "text_2": []}), ("/rerank", {"query": "a"})])
async def test_lists_that_are_too_long_are_not_read(path: str, members: dict[str, Any]) -> None:
    """Neither are their texts, which are none."""
    field = "documents" if path == "/rerank" else "text_2"
    answer = await post(make_core(), path, **{**members, field: [None] * 2049})
    assert (answer.status, answer.json["detail"]) == (400, f"'{field}': expected at most 2048, got 2049")
