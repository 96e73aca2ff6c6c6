"""Scores: the texts of a request to pairs, and what comes of them to the answers of vLLM, Jina and Cohere. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from protocol.errors import Internal
from protocol.http.openai.codec.embeddings import Vector
from protocol.http.openai.codec.requests import RerankRequest, ScoreRequest
from protocol.http.openai.codec.written_lists import written_list
from protocol.http.openai.errors import FieldError
from protocol.sync.sliced import Sliced

# Of one request.
MAX_PAIRS = 2048

# The names of both fields, the newest first.
_FORMS = (("queries", "documents"), ("queries", "items"), ("data_1", "data_2"), ("text_1", "text_2"))


@dataclass(frozen=True, slots=True)
class TextPairs:
    """Pairs of `first` and `second`. One that is alone in `first` is paired with each of `second`; `fields` are what
    they are called in the request."""

    first: Sequence[str]
    second: Sequence[str]
    fields: tuple[str, str]

    def first_of(self, place: int) -> int:
        return place if len(self.first) > 1 else 0


def score_pairs(body: ScoreRequest) -> TextPairs:
    """Raises:
    FieldError: a field is missing or no text, or the lists do not fit together.
    """
    given = [form for form in _FORMS if any(getattr(body, name) is not None for name in form)]
    fields = next((form for form in given if all(getattr(body, name) is not None for name in form)), None)
    if fields is None:
        missing = next(name for name in (given or [_FORMS[0]])[0] if getattr(body, name) is None)
        raise FieldError(f"'{missing}': Field required", missing, "missing_required_parameter")
    first, second = (_texts(name, getattr(body, name)) for name in fields)
    if not first:
        raise FieldError("At least one text element must be given", fields[0])
    if len(first) not in (1, len(second)) and second:
        raise FieldError(
            f"Input lengths must be either 1:1, 1:N or N:N, got {len(first)}:{len(second)}: "
            f"'{fields[0]}', '{fields[1]}'",
            fields[0],
        )
    return _checked(TextPairs(first, second, fields))


def rerank_pairs(body: RerankRequest) -> TextPairs:
    """Raises:
    FieldError: a field is no text.
    """
    query = _text("query", body.query)
    return _checked(TextPairs([query], _texts("documents", body.documents), ("query", "documents")))


def cosines(first: Sequence[Vector], second: Sequence[Vector], model: str) -> list[float]:
    """How alike the vectors of each pair are, from -1 to 1; 0 where one has no length. One that is alone in `first` is
    compared with each of `second`."""
    if len({vector.size for vector in (*first, *second)}) != 1:
        raise Internal(f"model '{model}': expected vectors of one size for all texts")
    left, right = (np.stack(vectors).astype(np.float64) for vectors in (first, second))
    lengths = np.linalg.norm(left, axis=1) * np.linalg.norm(right, axis=1)
    products = np.einsum("ij,ij->i", np.broadcast_to(left, right.shape), right)
    # Rounding takes the same texts a little above 1.
    return checked_scores(np.clip(products / np.where(lengths, lengths, 1), -1, 1), model)


def checked_scores(scores: Any, model: str) -> list[float]:
    """Raises:
    Internal: one is no number: there is no order with it, and JSON has none.
    """
    if not np.isfinite(scores).all():
        raise Internal(f"model '{model}': expected scores that are numbers, got NaN or infinity")
    found: list[float] = scores.tolist()
    return found


def score_answer(answer_id: str, created: int, model: str, scores: Sequence[float], tokens: int) -> dict[str, Any]:
    return {
        "id": answer_id,
        "object": "list",
        "created": created,
        "model": model,
        "data": [{"index": index, "object": "score", "score": score} for index, score in enumerate(scores)],
        "usage": {
            "prompt_tokens": tokens,
            "total_tokens": tokens,
            "completion_tokens": 0,
            "prompt_tokens_details": None,
        },
    }


def rerank_answer(
    answer_id: str, model: str, body: RerankRequest, pairs: TextPairs, scores: Sequence[float], tokens: int
) -> Sliced[list[bytes]]:
    """Its JSON, in parts. The best first; those that score alike keep their order."""
    order = sorted(range(len(scores)), key=lambda place: -scores[place])[: body.top_n or None]
    results = (_result(pairs, place, scores[place], body.return_documents is not False) for place in order)
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return written_list({"id": answer_id, "model": model, "usage": usage}, "results", results, {})


def _result(pairs: TextPairs, place: int, score: float, with_document: bool) -> dict[str, Any]:
    if not with_document:
        return {"index": place, "relevance_score": score}
    return {
        "index": place,
        "document": {"text": pairs.second[place], "multi_modal": None},
        "relevance_score": score,
    }


def _checked(pairs: TextPairs) -> TextPairs:
    field = pairs.fields[1]
    if not pairs.second:
        raise FieldError(f"At least one text_pair element must be given: '{field}'", field)
    return pairs


def _texts(field: str, given: Any) -> list[str]:
    if isinstance(given, list):
        if len(given) > MAX_PAIRS:
            raise FieldError(f"'{field}': expected at most {MAX_PAIRS}, got {len(given)}", field)
        return [_text(f"{field}[{place}]", each) for place, each in enumerate(given)]
    return [_text(field, given)]


def _text(path: str, given: Any) -> str:
    """A text, an object with one, or with a part of a message that is one."""
    value = given
    if isinstance(given, dict):
        value = given.get("text")
        parts = given.get("content")
        if value is None and isinstance(parts, list) and len(parts) == 1 and isinstance(parts[0], dict):
            value = parts[0].get("text") if parts[0].get("type") == "text" else None
    if not isinstance(value, str):
        raise FieldError(f"'{path}': expected a text, or an object with 'text'", path, "invalid_type")
    return value
