"""Scores and reranking on the wire: by a cross-encoder of ONNX, beside numpy, and by a model that embeds."""

from __future__ import annotations

import math
from typing import Any

import httpx
import pytest

from tests.e2e.openai.encoder import LENGTH, Encoder, pair_tokenizer

pytestmark = pytest.mark.slow

QUERY = "a b c"
DOCUMENTS = ["d e f", "a", "a b c d e f g h i j k l m n o p", "", "x y z z y x", "b a c"]


def post(base_url: str, path: str, **members: Any) -> httpx.Response:
    return httpx.post(base_url + path, json=members, timeout=60)


def truth(first: str, second: str) -> float:
    made = pair_tokenizer().encode(first, second)
    return 1 / (1 + math.exp(-Encoder().logit(made.ids, made.type_ids)))


@pytest.mark.parametrize("path", ["/score", "/v1/score"])
def test_scores_are_those_of_numpy(base_url: str, path: str) -> None:
    """In batches of pairs of different lengths, which fill up the shorter ones."""
    answer = post(base_url, path, model="cross_encoder", text_1=QUERY, text_2=DOCUMENTS)
    assert answer.status_code == 200, answer.text
    made = answer.json()
    assert [each["score"] for each in made["data"]] == pytest.approx([truth(QUERY, each) for each in DOCUMENTS], 1e-4)
    assert len({round(each["score"], 4) for each in made["data"]}) == len(DOCUMENTS)
    tokens = sum(len(pair_tokenizer().encode(QUERY, each).ids) for each in DOCUMENTS)
    assert made["usage"]["prompt_tokens"] == made["usage"]["total_tokens"] == tokens


def test_scores_of_pairs(base_url: str) -> None:
    made = post(base_url, "/score", model="cross_encoder", queries=["a", "b c"], documents=["d e", "f"]).json()
    assert [each["score"] for each in made["data"]] == pytest.approx([truth("a", "d e"), truth("b c", "f")], 1e-4)


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/v2/rerank"])
def test_reranking(base_url: str, path: str) -> None:
    documents = [DOCUMENTS[0], {"text": DOCUMENTS[1]}, *DOCUMENTS[2:]]
    answer = post(base_url, path, model="cross_encoder", query=QUERY, documents=documents, top_n=3)
    assert answer.status_code == 200, answer.text
    made = answer.json()
    best = sorted(range(len(DOCUMENTS)), key=lambda place: -truth(QUERY, DOCUMENTS[place]))[:3]
    assert [each["index"] for each in made["results"]] == best
    assert [each["document"]["text"] for each in made["results"]] == [DOCUMENTS[place] for place in best]


def test_a_pair_that_is_too_long(base_url: str) -> None:
    long = " ".join("ab" * LENGTH)
    given = {"model": "cross_encoder", "query": QUERY, "documents": ["a", long]}
    refused = post(base_url, "/rerank", **given)
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "context_length_exceeded")
    made = post(base_url, "/rerank", **given, truncate_prompt_tokens=-1).json()
    cut = " ".join(long.split()[: LENGTH - 6])
    assert {each["index"]: each["relevance_score"] for each in made["results"]}[1] == pytest.approx(
        truth(QUERY, cut), 1e-4
    )


def test_the_vectors_of_a_model_that_embeds(base_url: str) -> None:
    """They are its length, its letters `a`, and a half."""
    made = post(base_url, "/score", model="vectors", text_1="banana", text_2=["banana", "xyz"]).json()
    cosine = (6 * 3 + 0.25) / math.sqrt((36 + 9 + 0.25) * (9 + 0.25))
    assert [each["score"] for each in made["data"]] == pytest.approx([1, cosine], 1e-6)
