"""Handlers of `/tokenize` and `/detokenize`, as vLLM's server has them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from protocol.http.exchange import HttpRequest
from protocol.http.openai.call import read_body
from protocol.http.openai.codec.images import count_pictures
from protocol.http.openai.codec.reading import BodyReader
from protocol.http.openai.codec.requests import DetokenizeRequest, TokenizeRequest
from protocol.http.openai.errors import FieldError
from protocol.http.openai.prompts import chat_prompt
from protocol.http.openai.targets import find_target, sees_pictures
from protocol.http.openai.threads import in_thread
from protocol.http.reply import Reply, json_reply
from protocol.text.model import TextModel
from protocol.text.pictures import PictureTokens
from protocol.text.tokenizer import Tokenizer

# Tokens of an answer: a picture has hundreds, and its part of a message may be short.
_MOST_OF_PICTURES = 1 << 20

_TOKENIZE = BodyReader(TokenizeRequest)
_DETOKENIZE = BodyReader(DetokenizeRequest)


async def tokenize(request: HttpRequest) -> Reply:
    """The token ids of a text, or of a chat in the model's template."""
    body = await read_body(request, _TOKENIZE)
    target = await find_target(request.core, body.model, request.settings.openai.lora_separator)
    text, sees = target.text, sees_pictures(request.core, target)
    tokenizer = _tokenizer(text)
    return await in_thread(request, lambda: json_reply(_tokenized(body, text, tokenizer, sees=sees)))


async def detokenize(request: HttpRequest) -> Reply:
    body = await read_body(request, _DETOKENIZE)
    text = (await find_target(request.core, body.model, request.settings.openai.lora_separator)).text
    tokenizer = _tokenizer(text)
    return await in_thread(request, lambda: json_reply({"prompt": _detokenized(body.tokens, text, tokenizer)}))


def _tokenizer(text: TextModel) -> Tokenizer:
    if text.tokenizer is None:
        raise FieldError(f"model '{text.name}' has no tokenizer", "model")
    return text.tokenizer


def _detokenized(ids: Sequence[int], text: TextModel, tokenizer: Tokenizer) -> str:
    unknown = min((each for each in set(ids) if not tokenizer.has_token(each)), default=None)
    if unknown is not None:
        raise FieldError(
            f"'tokens': {unknown} is no token of model '{text.name}', whose tokenizer has {tokenizer.vocabulary_size}",
            "tokens",
        )
    return tokenizer.decode(ids, skip_special_tokens=False)


def _tokenized(body: TokenizeRequest, text: TextModel, tokenizer: Tokenizer, *, sees: bool) -> dict[str, Any]:
    if (body.prompt is None) == (body.messages is None):
        raise FieldError("expected either 'prompt' or 'messages'", "prompt")
    if body.messages is not None:
        prompt = chat_prompt(
            text,
            body.messages,
            body.tools or (),
            add_generation_prompt=body.add_generation_prompt,
            continue_final_message=body.continue_final_message,
            documents=body.documents,
            variables=body.chat_template_kwargs,
            sees=sees,
        )
        ids = tokenizer.encode(prompt, add_special_tokens=bool(body.add_special_tokens))
        if sees and text.pictures is not None:
            ids = _with_pictures(ids, text.pictures, body.messages)
    else:
        ids = tokenizer.encode(body.prompt or "", add_special_tokens=body.add_special_tokens is not False)
    return {
        "count": len(ids),
        "max_model_len": text.context_length,
        "tokens": ids,
        "token_strs": [tokenizer.token_text(each) for each in ids] if body.return_token_strs else None,
    }


def _with_pictures(ids: list[int], pictures: PictureTokens, messages: Sequence[Mapping[str, Any]]) -> list[int]:
    number = count_pictures(messages)
    if number * pictures.size > _MOST_OF_PICTURES:
        most = _MOST_OF_PICTURES // pictures.size
        raise FieldError(f"'messages': expected at most {most} pictures, got {number}", "messages")
    return pictures.expanded(ids, number)
