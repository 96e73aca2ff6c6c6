"""Pairs of texts to the tensors of a cross-encoder, several pairs in each request, and its answers to scores. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from protocol.core import ModelMetadata
from protocol.datatypes import DataType
from protocol.errors import Internal
from protocol.http.openai.codec.requests import ScoringFields
from protocol.http.openai.codec.scores import TextPairs, checked_scores
from protocol.http.openai.codec.token_batches import (
    TRUNCATE,
    Row,
    RowBatch,
    RowBatches,
    TokenBatcher,
    check_total,
    row_room,
)
from protocol.http.openai.errors import FieldError
from protocol.messages import InferenceResponse, Tensor, encode_bytes_elements
from protocol.text.model import PairTensors, TextModel
from protocol.text.pairs import TextTemplate, fitting
from protocol.text.tokenizer import Tokenizer


class PairEncoder:
    """Makes the inferences of one call to a cross-encoder. Blocks: in a thread."""

    def __init__(self, text: TextModel, pairs: PairTensors, metadata: ModelMetadata, request_id: str) -> None:
        self._text = text
        self._pairs = pairs
        self._batcher = TokenBatcher(pairs, text, metadata, request_id)

    def encode(self, body: ScoringFields, given: TextPairs) -> RowBatches:
        """Raises:
        FieldError: a pair is too long, or all are together; or the model cannot do what a field asks for.
        """
        if self._pairs.takes_texts:
            return self._texts(body, given)
        tokenizer = self._text.tokenizer
        if tokenizer is None:
            raise Internal(f"model '{self._text.name}' has no tokenizer")
        room = row_room(self._text, self._pairs, body.truncate_prompt_tokens)
        return self._batcher.batches(_TokenPairs(tokenizer, given, body).rows(room, self._text, body))

    def _texts(self, body: ScoringFields, given: TextPairs) -> RowBatches:
        refuse_cuts(body, f"model '{self._text.name}' takes texts, which are not cut")
        size = self._pairs.rows or 1
        batches = []
        for start in range(0, len(given.second), size):
            places = range(start, min(start + size, len(given.second)))
            texts = [text for place in places for text in (given.first[given.first_of(place)], given.second[place])]
            shape = (len(places), 2) if self._pairs.rows else (2,)
            tensor = Tensor(self._pairs.input, DataType.BYTES, shape, encode_bytes_elements(texts))
            batches.append(RowBatch(self._batcher.request([tensor]), places))
        return RowBatches(batches, 0)


class _TokenPairs:
    """The tokens of both texts of each pair."""

    def __init__(self, tokenizer: Tokenizer, given: TextPairs, body: ScoringFields) -> None:
        self._given = given
        self._first = [tokenizer.encode(each, add_special_tokens=False) for each in given.first]
        self._second = [tokenizer.encode(each, add_special_tokens=False) for each in given.second]
        self._template = self._found_template(tokenizer)
        for texts, most in ((self._first, body.max_tokens_per_query), (self._second, body.max_tokens_per_doc)):
            if most:
                texts[:] = [ids[:most] for ids in texts]

    def rows(self, room: int | None, text: TextModel, body: ScoringFields) -> list[Row]:
        """The ids and types of each pair."""
        special = self._template.special_tokens
        is_cut = body.truncate_prompt_tokens is not None and room is not None
        sizes = []
        total = 0
        for place, ids in enumerate(self._second):
            first, second = len(self._first[self._given.first_of(place)]), len(ids)
            if is_cut and room is not None:
                first, second = fitting(first, second, room - special)
            self._check(first + second + special, room, place)
            total += first + second + special
            sizes.append((first, second))
        check_total(text, total, "pairs", self._given.fields[1])
        return [
            self._template.join(self._first[self._given.first_of(place)][:first], self._second[place][:second])
            for place, (first, second) in enumerate(sizes)
        ]

    def _check(self, size: int, room: int | None, place: int) -> None:
        if room is not None and size > room:
            first, second = self._given.fields
            raise FieldError(
                f"This model's maximum context length is {room} tokens. However, pair {place} of '{first}' and "
                f"'{second}' has {size}; 'truncate_prompt_tokens' cuts it",
                second,
                "context_length_exceeded",
            )

    def _found_template(self, tokenizer: Tokenizer) -> TextTemplate:
        """By two texts that have tokens, where there are such."""
        first = next((place for place, ids in enumerate(self._first) if ids), 0)
        second = next((place for place, ids in enumerate(self._second) if ids), 0)
        return tokenizer.template(self._given.first[first], self._given.second[second])


SIDE_CUTS = ("max_tokens_per_query", "max_tokens_per_doc")


def refuse_cuts(body: ScoringFields, reason: str, names: Sequence[str] = (TRUNCATE, *SIDE_CUTS)) -> None:
    """Raises:
    FieldError: a field wants texts cut.
    """
    for name in names:
        if getattr(body, name):
            raise FieldError(f"'{name}' cannot be honoured: {reason}", name, "unsupported_parameter")


def decode_scores(pairs: PairTensors, response: InferenceResponse, rows: int, *, activates: bool) -> list[float]:
    """One for each pair of an inference.

    Raises:
        Internal: the model has given something else.
    """
    model = response.model_name
    tensor = next((each for each in response.outputs if each.name == pairs.output), None)
    if tensor is None:
        raise Internal(f"model '{model}': expected scores in output '{pairs.output}', got none")
    numbers = tensor.as_numpy().astype(np.float64).reshape(-1)
    if numbers.size != rows:
        raise Internal(
            f"model '{model}': output '{pairs.output}': expected one score for each of {rows} pairs, got the shape "
            f"{list(tensor.shape)}"
        )
    if activates and pairs.activation == "sigmoid":
        numbers = 1 / (1 + np.exp(-np.clip(numbers, -700, 700)))
    return checked_scores(numbers, model)
