"""Texts to the inferences of a model that embeds token ids, several in each, and its answers to vectors. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from protocol.core import ModelMetadata
from protocol.errors import Internal
from protocol.http.openai.codec.embeddings import Input, Vector
from protocol.http.openai.codec.token_batches import (
    MOST_IN_BATCH,
    TRUNCATE,
    Row,
    TokenBatcher,
    check_total,
)
from protocol.http.openai.errors import FieldError
from protocol.messages import InferenceResponse
from protocol.text.model import TextModel, VectorTensors
from protocol.text.pooling import normalized, pooled
from protocol.text.tokenizer import Tokenizer

# Numbers that a model may give in one inference: it gives those of every token, where they are pooled here.
_MOST_NUMBERS = 1 << 23
_USUAL_SIZE = 1 << 10


class TextEncoder:
    """The tokens of the texts of one call. Blocks: for long texts in a thread."""

    def __init__(
        self,
        text: TextModel,
        room: int | None,
        *,
        adds_special_tokens: bool = True,
        cuts: bool = False,
        labels: Sequence[str] = (),
    ) -> None:
        """With `cuts` the first tokens are taken of a text that has more than there is room for; `labels` are what the
        texts are called in errors."""
        if text.tokenizer is None:
            raise Internal(f"model '{text.name}' has no tokenizer")
        self._text = text
        self._tokenizer: Tokenizer = text.tokenizer
        self._room = room
        self._adds = adds_special_tokens
        self._cuts = cuts
        self._labels = labels

    def rows(self, inputs: Sequence[Input]) -> list[Row]:
        """Raises:
        FieldError: a text is too long, or all are together, or one has no tokens or unknown ones.
        """
        rows: list[Row] = []
        total = 0
        for place, given in enumerate(inputs):
            ids = self._ids(given, self._labels[place] if self._labels else f"input[{place}]")
            total += len(ids)
            rows.append((ids, [0] * len(ids)))
        check_total(self._text, total, "inputs", "input")
        return rows

    def _ids(self, given: Input, label: str) -> list[int]:
        if isinstance(given, str):
            ids = self._tokenizer.encode(given, add_special_tokens=self._adds)
        else:
            ids = self._known(given, label)
        if self._room is not None and len(ids) > self._room:
            ids = self._cut(given, ids, self._room, label)
        if not ids:
            raise self._error(label, f"'{label}': the tokenizer of model '{self._text.name}' finds no tokens")
        return ids

    def _known(self, ids: list[int], label: str) -> list[int]:
        unknown = min((each for each in set(ids) if not self._tokenizer.has_token(each)), default=None)
        if unknown is not None:
            size = self._tokenizer.vocabulary_size
            raise self._error(
                label,
                f"'{label}': token id {unknown} is not in the vocabulary of model '{self._text.name}', which has "
                f"{size} tokens",
            )
        return ids

    def _cut(self, given: Input, ids: list[int], room: int, label: str) -> list[int]:
        """The first tokens, within the special ones."""
        if not self._cuts:
            raise self._error(
                label,
                f"This model's maximum context length is {room} tokens. However, '{label}' has {len(ids)}; "
                f"'{TRUNCATE}' cuts it",
                "context_length_exceeded",
            )
        if isinstance(given, str) and self._adds:
            template = self._tokenizer.template(given)
            own = self._tokenizer.encode(given, add_special_tokens=False)
            ids, _ = template.join(own[: max(room - template.special_tokens, 0)], ())
        return ids[:room]

    @staticmethod
    def _error(label: str, sentence: str, code: str | None = None) -> FieldError:
        return FieldError(sentence, label.partition("[")[0], *([code] if code else []))


def batcher_of(text: TextModel, vectors: VectorTensors, metadata: ModelMetadata, request_id: str) -> TokenBatcher:
    most = _MOST_NUMBERS // (vectors.size or _USUAL_SIZE) if vectors.pooling else MOST_IN_BATCH
    return TokenBatcher(vectors, text, metadata, request_id, most=most)


def check_dimensions(text: TextModel, vectors: VectorTensors, size: int, wanted: int | None) -> None:
    """Whether vectors of so many numbers may be cut to what a client wants.

    Raises:
        FieldError: they may not.
    """
    allowed = vectors.dimensions
    can_cut = allowed is None or wanted in allowed
    if wanted is None or wanted == size or (can_cut and wanted < size):
        return
    cut = "any number below" if allowed is None else ", ".join(map(str, allowed))
    shown = f", which may be cut to {cut}" if cut else ", which may not be cut"
    raise FieldError(f"'dimensions': model '{text.name}' gives vectors of {size}{shown}, got {wanted}", "dimensions")


def decode_vectors(
    text: TextModel, vectors: VectorTensors, response: InferenceResponse, sizes: Sequence[int], dimensions: int | None
) -> list[Vector]:
    """One for each row of an inference, which has so many tokens.

    Raises:
        Internal: the model has given something else.
        FieldError: its vectors cannot be of `dimensions`.
    """
    numbers = _output(vectors, response, sizes)
    check_dimensions(text, vectors, numbers.shape[-1], dimensions)
    if vectors.pooling:
        made = [pooled(vectors.pooling, row[:size]) for row, size in zip(numbers, sizes, strict=True)]
    else:
        made = [row.astype(np.float32) for row in numbers]
    made = [each[:dimensions] for each in made]
    if not all(np.isfinite(each).all() for each in made):
        raise Internal(f"model '{response.model_name}': expected vectors of numbers, got NaN or infinity")
    return [normalized(each) for each in made] if vectors.normalizes else made


def _output(vectors: VectorTensors, response: InferenceResponse, sizes: Sequence[int]) -> Vector:
    """What the model has given, with a dimension for rows."""
    tensor = next((each for each in response.outputs if each.name == vectors.output), None)
    shape = [] if tensor is None else list(tensor.shape)
    whole = shape if vectors.rows else [1, *shape]
    fits = len(whole) == (3 if vectors.pooling else 2) and whole[0] == len(sizes) and whole[-1] > 0
    if tensor is None or not fits or (vectors.pooling and whole[1] < max(sizes)):
        what = "vectors of tokens" if vectors.pooling else "vectors"
        found = "none" if tensor is None else f"the shape {shape}"
        raise Internal(
            f"model '{response.model_name}': output '{vectors.output}': expected {what} for each of {len(sizes)} "
            f"texts, got {found}"
        )
    numbers: Vector = tensor.as_numpy().reshape(whole)
    return numbers
