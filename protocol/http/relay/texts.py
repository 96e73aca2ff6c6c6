"""The OpenAI and Anthropic interfaces in a relaying edge: which of their routes it answers, and what of them only the
core has. Pure.

Not among them is what changes the core or is kept there: files, batches, responses that are kept, adapters, sleep.
"""

from __future__ import annotations

from typing import Any

import msgspec

from protocol.http.anthropic import handlers as anthropic
from protocol.http.exchange import Handler
from protocol.http.openai.handlers.chat import chat_completions
from protocol.http.openai.handlers.completions import completions
from protocol.http.openai.handlers.embeddings import embeddings
from protocol.http.openai.handlers.models import list_models
from protocol.http.openai.handlers.scores import rerank, score
from protocol.http.openai.handlers.tokens import detokenize, tokenize
from protocol.http.openai.responses import handlers as responses
from protocol.http.openai.threads import LARGE_ABOVE
from protocol.messages import Buffer

TEXT_HANDLERS: tuple[Handler, ...] = (
    *(embeddings, score, rerank, tokenize, detokenize, list_models),
    *(chat_completions, completions),
    *(anthropic.messages, anthropic.count_tokens),
    *(responses.create, responses.input_tokens),
)


class _Kept(msgspec.Struct):
    """What a request to `/v1/responses` says of those that are kept. Whether it is right is for its handler."""

    store: Any = None
    background: Any = None
    previous_response_id: Any = None


_read_kept = msgspec.json.Decoder(_Kept).decode


def needs_kept_responses(handler: Handler, body: Buffer) -> bool:
    """Whether a request to a handler, with this body, is answered with responses that the core keeps."""
    if handler not in (responses.create, responses.input_tokens):
        return False
    if len(body) > LARGE_ABOVE:  # it may be; to see that would take long
        return True
    try:
        kept = _read_kept(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    if kept.previous_response_id is not None:
        return True
    return handler is responses.create and (kept.store is not False or bool(kept.background))
