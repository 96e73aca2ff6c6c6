"""Vectors of texts by a model that embeds: one takes texts, each an inference, which a batcher may join, and one takes
token ids, of several texts in each."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import trio

from protocol.gen_ai import EMBEDDINGS, Attribute, Generated
from protocol.http.openai.call import TOKENIZE_IN_THREAD_ABOVE, Call
from protocol.http.openai.codec.embeddings import Input, Vector, decode_vector, embedding_request
from protocol.http.openai.codec.token_batches import TRUNCATE, RowBatches, row_room
from protocol.http.openai.codec.token_vectors import TextEncoder, batcher_of, check_dimensions, decode_vectors
from protocol.http.openai.errors import FieldError
from protocol.http.openai.observation import observe, observed_run
from protocol.http.openai.single_answers import single_answers
from protocol.http.openai.threads import in_thread
from protocol.messages import InferenceRequest, InferenceResponse
from protocol.text.model import TextModel, VectorTensors


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a request says of its vectors. With `truncate` so many tokens of each text are taken; `labels` are what its
    texts are called in errors."""

    dimensions: int | None = None
    adds_special_tokens: bool = True
    truncate: int | None = None
    labels: Sequence[str] = ()


AS_THEY_ARE = Wanted()


@dataclass(frozen=True, slots=True)
class _Plan:
    """The inferences. `read` makes of each answer the places of its texts in the request, their vectors and their
    number of tokens, 0 where the model does not say."""

    requests: Sequence[InferenceRequest]
    read: Callable[[int, InferenceResponse], tuple[Sequence[int], Sequence[Vector], int]]


def embeds(text: TextModel) -> bool:
    return bool(text.names.embedding_input or text.names.embedding_request or text.vectors)


async def embed(
    call: Call,
    inputs: Sequence[Input],
    wanted: Wanted = AS_THEY_ARE,
    *,
    priority: int = 0,
    operation: str = EMBEDDINGS,
    observed: Mapping[str, Attribute] | None = None,
) -> tuple[list[Vector], int]:
    """The vectors in order, and the tokens of all inputs: 0 where neither the model nor a tokenizer counts them.
    `operation` and `observed` are what the request asks for in OpenTelemetry's terms.

    Raises:
        FieldError: the model does not take such inputs, or gives other dimensions.
    """
    text = call.target.text
    if text.vectors is not None:
        plan = await _plan_of_ids(call, text.vectors, inputs, wanted)
    else:
        plan = await _plan_of_texts(call, inputs, wanted)
    requests = plan.requests
    for inference in requests:
        inference.priority = priority
    seen = observe(call, operation, requests, observed or {})
    call.begin(requests)
    with observed_run(requests):
        found = await single_answers(call.request.core, requests, plan.read)
        placed = {place: each for places, made, _ in found for place, each in zip(places, made, strict=True)}
        vectors = [placed[place] for place in range(len(inputs))]
        _check_dimensions(text, vectors, wanted.dimensions)
        tokens = sum(size for *_, size in found) or await _counted(text, inputs, wanted.adds_special_tokens)
        call.settle_tokens(tokens)
        if seen is not None:
            seen.succeed(Generated(tokens or None, dimensions=vectors[0].size if vectors else None))
    return vectors, tokens


async def _plan_of_ids(call: Call, vectors: VectorTensors, inputs: Sequence[Input], wanted: Wanted) -> _Plan:
    text = call.target.text
    if vectors.size:
        check_dimensions(text, vectors, vectors.size, wanted.dimensions)
    batcher = batcher_of(text, vectors, call.request.core.model_metadata(call.target.model), call.id)
    encoder = TextEncoder(
        text,
        row_room(text, vectors, wanted.truncate),
        adds_special_tokens=wanted.adds_special_tokens,
        cuts=wanted.truncate is not None,
        labels=wanted.labels,
    )

    def encode() -> RowBatches:
        return batcher.batches(encoder.rows(inputs))

    is_long = sum(map(len, inputs)) > TOKENIZE_IN_THREAD_ABOVE
    batches = (await in_thread(call.request, encode) if is_long else encode()).batches

    def read(place: int, response: InferenceResponse) -> tuple[Sequence[int], Sequence[Vector], int]:
        batch = batches[place]
        made = decode_vectors(text, vectors, response, batch.sizes, wanted.dimensions)
        return batch.places, made, sum(batch.sizes)

    return _Plan([batch.request for batch in batches], read)


async def _plan_of_texts(call: Call, inputs: Sequence[Input], wanted: Wanted) -> _Plan:
    text = call.target.text
    if wanted.truncate is not None:
        raise FieldError(
            f"'{TRUNCATE}' cannot be honoured: model '{text.name}' takes texts, which are not cut",
            TRUNCATE,
            "unsupported_parameter",
        )
    if text.names.embedding_input:
        inputs = await _spelt(text, inputs)
    metadata = call.request.core.model_metadata(call.target.model)

    def read(place: int, response: InferenceResponse) -> tuple[Sequence[int], Sequence[Vector], int]:
        vector, tokens = decode_vector(text, response)
        return (place,), (vector,), tokens

    return _Plan([embedding_request(text, metadata, each, wanted.dimensions, call.id) for each in inputs], read)


def _check_dimensions(text: TextModel, vectors: Sequence[Vector], wanted: int | None) -> None:
    """A model that takes the request as it is has been told."""
    if wanted is not None and text.names.embedding_input and any(vector.size != wanted for vector in vectors):
        raise FieldError(
            f"'dimensions': model '{text.name}' gives vectors of {vectors[0].size}, expected {wanted}", "dimensions"
        )


async def _spelt(text: TextModel, inputs: Sequence[Input]) -> list[Input]:
    """The texts of inputs that are token ids."""
    if all(isinstance(each, str) for each in inputs):
        return list(inputs)
    tokenizer = text.tokenizer
    if tokenizer is None:
        raise FieldError(f"'input': model '{text.name}' has no tokenizer, so it takes no token ids", "input")
    return await trio.to_thread.run_sync(
        lambda: [each if isinstance(each, str) else tokenizer.decode(each) for each in inputs]
    )


async def _counted(text: TextModel, inputs: Sequence[Input], adds_special_tokens: bool) -> int:
    """The tokens of all inputs, where the model does not say; 0 where nobody can."""
    tokenizer = text.tokenizer

    def size_of(given: Input) -> int:
        if not isinstance(given, str):
            return len(given)
        return 0 if tokenizer is None else len(tokenizer.encode(given, add_special_tokens=adds_special_tokens))

    if sum(map(len, inputs)) <= TOKENIZE_IN_THREAD_ABOVE:
        return sum(map(size_of, inputs))
    return await trio.to_thread.run_sync(lambda: sum(map(size_of, inputs)))
