"""Embeddings by exports of Hugging Face's, with nothing but their files: through the official client, beside numpy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import httpx
import numpy as np
import openai
import pytest

from tests.e2e.openai.encoder import LENGTH, SENTENCE_LENGTH, WIDTH, Array, Encoder, pair_tokenizer

pytestmark = pytest.mark.slow

# Of different lengths, more than fit into a batch.
TEXTS = ["d e f", "a", "a b c d e f g h i j k l m n o p", "x y z z y x", "b a c", "a b", "q", "f e d"]


@pytest.fixture(scope="module")
def client(base_url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{base_url}/v1", api_key="none", max_retries=0) as made:
        yield made


def ids_of(text: str, *, adds: bool = True) -> list[int]:
    ids: list[int] = pair_tokenizer().encode(text, add_special_tokens=adds).ids
    return ids


def mean(ids: Sequence[int]) -> Array:
    """Of length 1, as models without files of sentence-transformers give it."""
    vector = Encoder().hidden(list(ids), [0] * len(ids)).mean(axis=0)
    made: Array = vector / np.linalg.norm(vector)
    return made


def first(ids: Sequence[int]) -> Array:
    made: Array = Encoder().hidden(list(ids), [0] * len(ids))[0]
    return made


def vectors(client: openai.OpenAI, given: Any, model: str = "encoder", **more: Any) -> Array:
    return np.array([each.embedding for each in client.embeddings.create(model=model, input=given, **more).data])


def test_a_bare_export(client: openai.OpenAI) -> None:
    """The client asks for base64 by itself."""
    made = client.embeddings.create(model="encoder", input=TEXTS)
    assert made.usage.prompt_tokens == made.usage.total_tokens == sum(len(ids_of(text)) for text in TEXTS)
    found = np.array([each.embedding for each in made.data])
    np.testing.assert_allclose(found, [mean(ids_of(text)) for text in TEXTS], atol=1e-5)
    assert len({tuple(np.round(each, 4)) for each in found}) == len(TEXTS)
    np.testing.assert_allclose(vectors(client, TEXTS, encoding_format="float"), found, atol=1e-7)


@pytest.mark.parametrize("model", ["encoder", "by_first_token"])
def test_many_are_as_each_alone(client: openai.OpenAI, model: str) -> None:
    alone = np.concatenate([vectors(client, text, model) for text in TEXTS])
    np.testing.assert_allclose(vectors(client, TEXTS, model), alone, atol=1e-5)


def test_the_files_of_sentence_transformers(client: openai.OpenAI) -> None:
    """The first token's vector, of whatever length."""
    np.testing.assert_allclose(
        vectors(client, TEXTS, "by_first_token"), [first(ids_of(text)) for text in TEXTS], atol=1e-5
    )


def test_token_ids(client: openai.OpenAI) -> None:
    ids = ids_of("d e f")
    np.testing.assert_allclose(vectors(client, ids), [mean(ids)], atol=1e-5)
    bare = [ids_of("a", adds=False), ids_of("b a c", adds=False)]
    np.testing.assert_allclose(vectors(client, bare), [mean(each) for each in bare], atol=1e-5)
    np.testing.assert_allclose(
        vectors(client, ["a", "b a c"], extra_body={"add_special_tokens": False}),
        [mean(each) for each in bare],
        atol=1e-5,
    )


def test_dimensions(client: openai.OpenAI) -> None:
    whole = vectors(client, "d e f", "by_first_token")
    np.testing.assert_allclose(vectors(client, "d e f", "by_first_token", dimensions=4), whole[:, :4], atol=1e-6)
    assert vectors(client, "a", "encoder", dimensions=WIDTH).shape == (1, WIDTH)
    with pytest.raises(openai.BadRequestError, match="'dimensions': model 'by_first_token' gives vectors of 16, which"):
        vectors(client, "a", "by_first_token", dimensions=5)
    with pytest.raises(openai.BadRequestError, match="which may not be cut, got 4"):
        vectors(client, "a", "encoder", dimensions=4)


def test_texts_that_are_too_long(client: openai.OpenAI) -> None:
    long = "ab " * LENGTH
    with pytest.raises(
        openai.BadRequestError, match=rf"length is {LENGTH} tokens. However, 'input\[1\]' has"
    ) as caught:
        vectors(client, ["a", long])
    assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "input")
    with pytest.raises(openai.BadRequestError, match=f"length is {SENTENCE_LENGTH} tokens"):
        vectors(client, long, "by_first_token")
    cut = vectors(client, long, extra_body={"truncate_prompt_tokens": 7})
    inner = ids_of(long, adds=False)[:5]
    np.testing.assert_allclose(cut, [mean([2, *inner, 3])], atol=1e-5)
    assert vectors(client, long, extra_body={"truncate_prompt_tokens": -1}).shape == (1, WIDTH)
    np.testing.assert_allclose(
        vectors(client, [5] * LENGTH * 2, extra_body={"truncate_prompt_tokens": 3}), [mean([5] * 3)], atol=1e-5
    )


def test_ids_that_no_token_has(client: openai.OpenAI) -> None:
    for ids in ([5, 30], [-1], [2**70]):
        with pytest.raises(openai.BadRequestError, match=r"'input\[0\]': token id -?\d+ is not in the vocabulary"):
            vectors(client, ids)


def test_scores_by_such_vectors(base_url: str) -> None:
    given = {"model": "encoder", "query": TEXTS[0], "documents": TEXTS[1:]}
    answer = httpx.post(f"{base_url}/v1/rerank", json=given, timeout=60)
    assert answer.status_code == 200, answer.text
    scores = {each["index"]: each["relevance_score"] for each in answer.json()["results"]}
    query, *documents = [mean(ids_of(text)) for text in TEXTS]
    assert [scores[place] for place in range(len(documents))] == pytest.approx(
        [query @ each for each in documents], 1e-4
    )
    refused = httpx.post(f"{base_url}/v1/rerank", json={**given, "documents": ["a", "ab " * 99]}, timeout=60)
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "documents")
    assert "'documents[1]' has" in refused.json()["error"]["message"]
