"""Vectors of texts by a model that embeds. Each text is an inference, which a batcher may join."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import trio

from protocol.gen_ai import EMBEDDINGS, Attribute, Generated
from protocol.http.openai.call import TOKENIZE_IN_THREAD_ABOVE, Call
from protocol.http.openai.codec.embeddings import Input, Vector, decode_vector, embedding_request
from protocol.http.openai.errors import FieldError
from protocol.http.openai.observation import observe, observed_run
from protocol.http.openai.single_answers import single_answers
from protocol.text.model import TextModel


def embeds(text: TextModel) -> bool:
    return bool(text.names.embedding_input or text.names.embedding_request)


async def embed(
    call: Call,
    inputs: Sequence[Input],
    *,
    dimensions: int | None = None,
    priority: int = 0,
    adds_special_tokens: bool = True,
    operation: str = EMBEDDINGS,
    observed: Mapping[str, Attribute] | None = None,
) -> tuple[list[Vector], int]:
    """The vectors in order, and the tokens of all inputs: 0 where neither the model nor a tokenizer counts them.
    `operation` and `observed` are what the request asks for in OpenTelemetry's terms.

    Raises:
        FieldError: the model takes no token ids, or gives other dimensions.
    """
    text = call.target.text
    if text.names.embedding_input:
        inputs = await _spelt(text, inputs)
    core = call.request.core
    metadata = core.model_metadata(call.target.model)
    requests = [embedding_request(text, metadata, each, dimensions, call.id) for each in inputs]
    for inference in requests:
        inference.priority = priority
    seen = observe(call, operation, requests, observed or {})
    call.begin(requests)
    with observed_run(requests):
        found = await single_answers(core, requests, lambda _, response: decode_vector(text, response))
        vectors = [vector for vector, _ in found]
        _check_dimensions(text, vectors, dimensions)
        tokens = sum(size for _, size in found) or await _counted(text, inputs, adds_special_tokens)
        call.settle_tokens(tokens)
        if seen is not None:
            seen.succeed(Generated(tokens or None, dimensions=vectors[0].size if vectors else None))
    return vectors, tokens


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
