"""Texts as token ids to the inferences of a model that reads each at once: several in each, filled up. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from protocol.core import ModelMetadata
from protocol.datatypes import BY_PROTOCOL_NAME
from protocol.http.openai.errors import FieldError
from protocol.messages import InferenceRequest, Tensor
from protocol.text.model import TextModel, TokenTensors

# Tokens of all texts of one request.
MAX_TOKENS = 1 << 21
# Tokens of one inference, with those that fill up.
MOST_IN_BATCH = 1 << 17

TRUNCATE = "truncate_prompt_tokens"
# The ids of a text's tokens and their types.
Row = tuple[Sequence[int], Sequence[int]]


@dataclass(frozen=True, slots=True)
class RowBatch:
    """One inference: `places` are those of its texts in the request, in the order of its rows, and `sizes` how many
    tokens each has, where they are counted."""

    request: InferenceRequest
    places: Sequence[int]
    sizes: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class RowBatches:
    """All inferences of a request; `tokens` is 0 where nobody can count them."""

    batches: Sequence[RowBatch]
    tokens: int


class TokenBatcher:
    """Makes inferences of rows; of `most` tokens each, where one row alone has not more."""

    def __init__(
        self,
        tokens: TokenTensors,
        text: TextModel,
        metadata: ModelMetadata,
        request_id: str,
        *,
        most: int = MOST_IN_BATCH,
    ) -> None:
        self._tokens = tokens
        self._filler = text.tokenizer.pad_token_id if text.tokenizer is not None else 0
        self._name = metadata.name
        self._types = {each.name: BY_PROTOCOL_NAME[each.datatype] for each in metadata.inputs}
        self._request_id = request_id
        self._most = most

    def batches(self, rows: Sequence[Row]) -> RowBatches:
        return RowBatches([self._batch(group) for group in self._groups(rows)], sum(len(ids) for ids, _ in rows))

    def request(self, inputs: list[Tensor]) -> InferenceRequest:
        return InferenceRequest(self._name, inputs, id=self._request_id)

    def _groups(self, rows: Sequence[Row]) -> Iterator[list[tuple[int, Row]]]:
        """Rows of like length together, as many as the model takes; only equal ones where it cannot tell fillers."""
        tokens = self._tokens
        group: list[tuple[int, Row]] = []
        for place in sorted(range(len(rows)), key=lambda place: len(rows[place][0])):
            size = tokens.length or len(rows[place][0])
            is_alike = tokens.mask or tokens.length or not group or len(group[0][1][0]) == size
            if group and (len(group) >= tokens.rows or (len(group) + 1) * size > self._most or not is_alike):
                yield group
                group = []
            group.append((place, rows[place]))
        yield group

    def _batch(self, group: Sequence[tuple[int, Row]]) -> RowBatch:
        tokens = self._tokens
        length = tokens.length or max(len(ids) for _, (ids, _) in group)
        shape = (len(group), length)
        tensors = {tokens.input: np.full(shape, self._filler, np.int64)}
        for name in filter(None, (tokens.mask, tokens.types)):
            tensors[name] = np.zeros(shape, np.int64)
        for row, (_, (ids, types)) in enumerate(group):
            tensors[tokens.input][row, : len(ids)] = ids
            if tokens.mask:
                tensors[tokens.mask][row, : len(ids)] = 1
            if tokens.types:
                tensors[tokens.types][row, : len(ids)] = types
        inputs = [self._tensor(name, values if tokens.rows else values[0]) for name, values in tensors.items()]
        return RowBatch(self.request(inputs), [place for place, _ in group], [len(ids) for _, (ids, _) in group])

    def _tensor(self, name: str, values: NDArray[Any]) -> Tensor:
        return Tensor.from_numpy(name, values.astype(self._types[name].dtype))


def row_room(text: TextModel, tokens: TokenTensors, wanted: int | None) -> int | None:
    """Tokens of a text, None where nothing says how many. A wish for fewer is granted.

    Raises:
        FieldError: it is for none, or for more.
    """
    if wanted == 0:
        raise FieldError(f"'{TRUNCATE}': expected -1 for the model's context, or a number from 1 on, got 0", TRUNCATE)
    known = [size for size in (text.context_length, tokens.length) if size]
    if wanted is not None and wanted > 0 and known and wanted > min(known):
        raise FieldError(f"'{TRUNCATE}': expected at most {min(known)}, the model's context, got {wanted}", TRUNCATE)
    return min([*known, wanted] if wanted is not None and wanted > 0 else known, default=None)


def check_total(text: TextModel, total: int, kind: str, field: str) -> None:
    """Raises:
    FieldError: all texts of a request have too many tokens.
    """
    if total > MAX_TOKENS:
        raise FieldError(
            f"model '{text.name}': expected at most {MAX_TOKENS} tokens in all {kind} of a request, got {total}", field
        )
