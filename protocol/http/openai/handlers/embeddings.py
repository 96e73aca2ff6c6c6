"""Handler of `/v1/embeddings`: texts in, vectors out. Each input is an inference, which a batcher may join."""

from __future__ import annotations

from collections.abc import Sequence

import trio

from protocol.errors import Internal
from protocol.gen_ai import EMBEDDINGS, Generated
from protocol.http.exchange import HttpRequest
from protocol.http.openai.call import TOKENIZE_IN_THREAD_ABOVE, Call, open_call, queue_priority, read_body
from protocol.http.openai.codec.embeddings import (
    Input,
    Vector,
    decode_vector,
    embedding_inputs,
    embedding_request,
    embeddings_answer,
)
from protocol.http.openai.codec.reading import BodyReader
from protocol.http.openai.codec.requests import EmbeddingRequest
from protocol.http.openai.errors import FieldError
from protocol.http.openai.observation import observe, observed_run
from protocol.http.reply import Reply
from protocol.messages import InferenceRequest, InferenceResponse
from protocol.text.model import TextModel

_READER = BodyReader(EmbeddingRequest)

# Of one call, at one time.
_MOST_RUNNING = 64
# Values of all vectors that are written without a thread.
_FEW_VALUES = 1 << 12


async def embeddings(request: HttpRequest) -> Reply:
    """Cancelled when the client leaves, and every inference with it."""
    body = await read_body(request, _READER)
    call = open_call(request, body.model, body.request_id, "embd")
    text = call.target.text
    encoding = body.encoding_format or "float"
    if encoding not in ("float", "base64"):
        raise FieldError(f"'encoding_format': expected 'float' or 'base64', got '{encoding:.40}'", "encoding_format")
    if not (text.names.embedding_input or text.names.embedding_request):
        raise FieldError(f"model '{text.name}' gives no embeddings", "model")
    inputs = embedding_inputs(body.input)
    if text.names.embedding_input:
        inputs = await _spelt(text, inputs)
    metadata = request.core.model_metadata(call.target.model)
    priority = queue_priority(body.priority)
    requests = [embedding_request(text, metadata, each, body.dimensions, call.id) for each in inputs]
    for inference in requests:
        inference.priority = priority
    observed = observe(call, EMBEDDINGS, requests, {"encoding_formats": (encoding,)})
    call.begin(requests)
    with observed_run(requests):
        found = await _run(call, requests)
        vectors = [vector for vector, _ in found]
        _check_dimensions(text, vectors, body.dimensions)
        tokens = sum(size for _, size in found) or await _counted(text, inputs, body.add_special_tokens is not False)
        if observed is not None:
            observed.succeed(Generated(tokens))
    if sum(vector.size for vector in vectors) <= _FEW_VALUES:
        return call.reply(embeddings_answer(vectors, encoding, call.target.name, tokens))
    return await trio.to_thread.run_sync(
        lambda: call.reply(embeddings_answer(vectors, encoding, call.target.name, tokens))
    )


async def _run(call: Call, requests: Sequence[InferenceRequest]) -> list[tuple[Vector, int]]:
    """The vectors in order. The first inference that fails ends all."""
    found: list[tuple[Vector, int] | None] = [None] * len(requests)
    failures: list[Exception] = []
    waiting = iter(enumerate(requests))

    async def work() -> None:
        try:
            for place, request in waiting:
                found[place] = await _vector(call, request)
        except Exception as error:
            failures.append(error)
            nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        for _ in range(min(len(requests), _MOST_RUNNING)):
            nursery.start_soon(work)
    if failures:
        raise failures[0]
    return [each for each in found if each is not None]


async def _vector(call: Call, request: InferenceRequest) -> tuple[Vector, int]:
    answers: list[InferenceResponse] = []

    async def keep(response: InferenceResponse) -> None:
        if response.outputs:
            answers.append(response)

    await call.request.core.infer_stream(request, keep)
    if len(answers) != 1:
        raise Internal(f"model '{request.model_name}': expected 1 response with a vector, got {len(answers)}")
    return decode_vector(call.target.text, answers[0])


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


def _check_dimensions(text: TextModel, vectors: Sequence[Vector], wanted: int | None) -> None:
    """A model that takes the request as it is has been told."""
    if wanted is not None and text.names.embedding_input and any(vector.size != wanted for vector in vectors):
        raise FieldError(
            f"'dimensions': model '{text.name}' gives vectors of {vectors[0].size}, expected {wanted}", "dimensions"
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
