"""Handler of `/v1/embeddings`: texts in, vectors out."""

from __future__ import annotations

from protocol.http.exchange import HttpRequest
from protocol.http.openai.call import open_call, queue_priority, read_body
from protocol.http.openai.codec.embeddings import embedding_inputs, embeddings_answer
from protocol.http.openai.codec.reading import BodyReader
from protocol.http.openai.codec.requests import EmbeddingRequest
from protocol.http.openai.errors import FieldError
from protocol.http.openai.vectors import Wanted, embed, embeds
from protocol.http.reply import Reply
from protocol.sync.sliced import run_sliced

_READER = BodyReader(EmbeddingRequest)


async def embeddings(request: HttpRequest) -> Reply:
    """Cancelled when the client leaves, and every inference with it."""
    body = await read_body(request, _READER)
    call = await open_call(request, body.model, body.request_id, "embd")
    text = call.target.text
    encoding = body.encoding_format or "float"
    if encoding not in ("float", "base64"):
        raise FieldError(f"'encoding_format': expected 'float' or 'base64', got '{encoding:.40}'", "encoding_format")
    if not embeds(text):
        raise FieldError(f"model '{text.name}' gives no embeddings", "model")
    vectors, tokens = await embed(
        call,
        embedding_inputs(body.input),
        Wanted(body.dimensions, body.add_special_tokens is not False, body.truncate_prompt_tokens),
        priority=queue_priority(body.priority),
        observed={"encoding_formats": (encoding,)},
    )
    return call.reply_in_parts(await run_sliced(embeddings_answer(vectors, encoding, call.target.name, tokens)))
