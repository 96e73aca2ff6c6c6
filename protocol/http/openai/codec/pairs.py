"""Pairs of texts to the tensors of a cross-encoder, several pairs in each request, and its answers to scores. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocol.core import ModelMetadata
from protocol.datatypes import BY_PROTOCOL_NAME, DataType
from protocol.errors import Internal
from protocol.http.openai.codec.requests import ScoringFields
from protocol.http.openai.codec.scores import TextPairs, checked_scores
from protocol.http.openai.errors import FieldError
from protocol.messages import InferenceRequest, InferenceResponse, Tensor, encode_bytes_elements
from protocol.text.model import PairTensors, TextModel
from protocol.text.pairs import PairTemplate, fitting
from protocol.text.tokenizer import Tokenizer

# Tokens of all pairs of one request: a long query counts for each of its documents.
MAX_TOKENS = 1 << 21
# Tokens of one inference, with those that fill up.
_MOST_IN_BATCH = 1 << 17


@dataclass(frozen=True, slots=True)
class PairBatch:
    """One inference: `places` are those of its pairs in the request, in the order of its rows."""

    request: InferenceRequest
    places: Sequence[int]


@dataclass(frozen=True, slots=True)
class EncodedPairs:
    """All inferences of a request; `tokens` is 0 where nobody can count them."""

    batches: Sequence[PairBatch]
    tokens: int


class PairEncoder:
    """Makes the inferences of one call to a cross-encoder. Blocks: in a thread."""

    def __init__(self, text: TextModel, pairs: PairTensors, metadata: ModelMetadata, request_id: str) -> None:
        self._text = text
        self._pairs = pairs
        self._name = metadata.name
        self._types = {each.name: BY_PROTOCOL_NAME[each.datatype] for each in metadata.inputs}
        self._request_id = request_id

    def encode(self, body: ScoringFields, given: TextPairs) -> EncodedPairs:
        """Raises:
        FieldError: a pair is too long, or all are together; or the model cannot do what a field asks for.
        """
        if self._pairs.takes_texts:
            return self._texts(body, given)
        tokenizer = self._text.tokenizer
        if tokenizer is None:
            raise Internal(f"model '{self._name}' has no tokenizer")
        rows = _TokenPairs(tokenizer, given, body).rows(self._room(body), self._text, body)
        return EncodedPairs([self._ids(group) for group in self._groups(rows)], sum(len(ids) for ids, _ in rows))

    def _room(self, body: ScoringFields) -> int | None:
        """Tokens of a pair, None where nothing says how many. A wish for fewer is granted."""
        if body.truncate_prompt_tokens == 0:
            raise FieldError(
                "'truncate_prompt_tokens': expected -1 for the model's context, or a number from 1 on, got 0",
                "truncate_prompt_tokens",
            )
        known = [size for size in (self._text.context_length, self._pairs.length) if size]
        wanted = body.truncate_prompt_tokens
        if wanted is not None and wanted > 0 and known and wanted > min(known):
            raise FieldError(
                f"'truncate_prompt_tokens': expected at most {min(known)}, the model's context, got {wanted}",
                "truncate_prompt_tokens",
            )
        return min([*known, wanted] if wanted is not None and wanted > 0 else known, default=None)

    def _groups(self, rows: Sequence[_Row]) -> Iterator[list[tuple[int, _Row]]]:
        """Pairs of like length together, as many as the model takes; only equal ones where it cannot tell fillers."""
        pairs = self._pairs
        group: list[tuple[int, _Row]] = []
        for place in sorted(range(len(rows)), key=lambda place: len(rows[place][0])):
            size = pairs.length or len(rows[place][0])
            is_alike = pairs.mask or pairs.length or not group or len(group[0][1][0]) == size
            if group and (len(group) >= pairs.rows or (len(group) + 1) * size > _MOST_IN_BATCH or not is_alike):
                yield group
                group = []
            group.append((place, rows[place]))
        yield group

    def _ids(self, group: Sequence[tuple[int, _Row]]) -> PairBatch:
        pairs, tokenizer = self._pairs, self._text.tokenizer
        length = pairs.length or max(len(ids) for _, (ids, _) in group)
        shape = (len(group), length)
        filler = tokenizer.pad_token_id if tokenizer is not None else 0
        tensors = {pairs.input: np.full(shape, filler, np.int64)}
        for name in filter(None, (pairs.mask, pairs.types)):
            tensors[name] = np.zeros(shape, np.int64)
        for row, (_, (ids, types)) in enumerate(group):
            tensors[pairs.input][row, : len(ids)] = ids
            if pairs.mask:
                tensors[pairs.mask][row, : len(ids)] = 1
            if pairs.types:
                tensors[pairs.types][row, : len(ids)] = types
        inputs = [self._tensor(name, values if pairs.rows else values[0]) for name, values in tensors.items()]
        return self._batch(inputs, [place for place, _ in group])

    def _tensor(self, name: str, values: NDArray[Any]) -> Tensor:
        return Tensor.from_numpy(name, values.astype(self._types[name].dtype))

    def _texts(self, body: ScoringFields, given: TextPairs) -> EncodedPairs:
        refuse_cuts(body, f"model '{self._text.name}' takes texts, which are not cut")
        size = self._pairs.rows or 1
        batches = []
        for start in range(0, len(given.second), size):
            places = range(start, min(start + size, len(given.second)))
            texts = [text for place in places for text in (given.first[given.first_of(place)], given.second[place])]
            shape = (len(places), 2) if self._pairs.rows else (2,)
            tensor = Tensor(self._pairs.input, DataType.BYTES, shape, encode_bytes_elements(texts))
            batches.append(self._batch([tensor], places))
        return EncodedPairs(batches, 0)

    def _batch(self, inputs: list[Tensor], places: Sequence[int]) -> PairBatch:
        return PairBatch(InferenceRequest(self._name, inputs, id=self._request_id), places)


_Row = tuple[list[int], list[int]]


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

    def rows(self, room: int | None, text: TextModel, body: ScoringFields) -> list[_Row]:
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
        if total > MAX_TOKENS:
            raise FieldError(
                f"model '{text.name}': expected at most {MAX_TOKENS} tokens in all pairs of a request, got {total}",
                self._given.fields[1],
            )
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

    def _found_template(self, tokenizer: Tokenizer) -> PairTemplate:
        """By two texts that have tokens, where there are such."""
        first = next((place for place, ids in enumerate(self._first) if ids), 0)
        second = next((place for place, ids in enumerate(self._second) if ids), 0)
        return tokenizer.pair_template(self._given.first[first], self._given.second[second])


def refuse_cuts(body: ScoringFields, reason: str) -> None:
    """Raises:
    FieldError: a field wants texts cut.
    """
    for name in ("truncate_prompt_tokens", "max_tokens_per_query", "max_tokens_per_doc"):
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
