"""Prompts: from the messages of a chat, or the `prompt` of a completion, to the text that a model gets. Blocks."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from protocol.errors import Unsupported, shown_value
from protocol.http.openai.codec.images import Picture, is_picture
from protocol.http.openai.errors import FieldError
from protocol.messages import Tensor
from protocol.text.model import TextModel
from protocol.text.tokenizer import Tokenizer

# The code of errors of prompts that the context does not hold.
CONTEXT_EXCEEDED = "context_length_exceeded"
_ROLES = ("developer", "system", "user", "assistant", "tool", "function")
_TEXT_PARTS = {"text": "text", "input_text": "text", "refusal": "refusal"}
# Templates that go through the parts of a message, and do not ask whether it is a text.
_READS_PARTS = re.compile(r"for\s+\w+\s+in\s+\w+(\.content|\[['\"]content['\"]\])")
_READS_TEXT = re.compile(r"content('\]|\"\])?\s+is\s+(not\s+)?string")


@dataclass(frozen=True, slots=True)
class Prompt:
    """`max_tokens` is None where the model's default holds, `token_ids` where the prompt was not cut into tokens. Those
    of a client may not be the ones into which its text would be cut. `images` are what it sees, which take
    `picture_tokens` besides, as far as that is known."""

    text: str
    adds_special_tokens: bool = True
    max_tokens: int | None = None
    token_ids: Sequence[int] | None = None
    images: Tensor | None = None
    picture_tokens: int = 0

    @property
    def size(self) -> int | None:
        """Its tokens, those of its pictures among them; None where it was not cut into tokens."""
        return None if self.token_ids is None else len(self.token_ids) + self.picture_tokens


def chat_prompt(
    text: TextModel,
    messages: Sequence[Mapping[str, Any]],
    tools: Sequence[Mapping[str, Any]] = (),
    *,
    add_generation_prompt: bool | None = None,
    continue_final_message: bool | None = None,
    documents: Sequence[Mapping[str, Any]] | None = None,
    variables: Mapping[str, Any] | None = None,
    sees: bool = False,
) -> str:
    """What the model's template makes of a chat. Takes as long as the template likes. With `sees` it may have pictures,
    of which the template writes the places.

    Raises:
        Unsupported: the model has no template.
        InvalidArgument: a message is not as it must be, or the template refuses the chat.
    """
    template = text.chat_template
    if template is None:
        raise Unsupported(
            f"model '{text.name}' has no chat template: expected one beside its tokenizer (tokenizer_config.json or "
            f"chat_template.jinja), or the configuration's parameter 'chat_template'"
        )
    reads_parts = bool(_READS_PARTS.search(template.source))
    wants_parts = reads_parts and not _READS_TEXT.search(template.source)
    knows_developer = "developer" in template.source
    read = [
        _message(message, place, wants_parts or (sees and reads_parts and _has_picture(message)), knows_developer, sees)
        for place, message in enumerate(messages)
    ]
    taken = {"messages", "tools", "documents", "add_generation_prompt", "continue_final_message"}
    if given := taken & (variables or {}).keys():
        raise FieldError(f"'chat_template_kwargs': '{min(given)}' is a field of its own", "chat_template_kwargs")
    return template.render(
        read,
        list(tools) or None,
        add_generation_prompt=not continue_final_message if add_generation_prompt is None else add_generation_prompt,
        continue_final_message=bool(continue_final_message),
        documents=documents,
        **(variables or {}),
    )


def completion_prompts(prompt: Any, tokenizer: Tokenizer | None, model: str) -> list[Prompt]:
    """The prompts of a completion. Token ids are spelt out, too, special tokens among them.

    Raises:
        FieldError: neither a text, nor a list of texts, nor token ids, nor lists of them; or there is no tokenizer.
    """
    if prompt in ("", []):
        raise FieldError("prompt must be non-empty", "prompt")
    if isinstance(prompt, str):
        return [Prompt(prompt)]
    if isinstance(prompt, list):
        if all(isinstance(each, str) for each in prompt):
            return [Prompt(each) for each in prompt]
        if all(type(each) is int for each in prompt):
            return [_spelt(prompt, tokenizer, model)]
        if all(isinstance(ids, list) and ids and all(type(each) is int for each in ids) for ids in prompt):
            return [_spelt(ids, tokenizer, model) for ids in prompt]
    raise FieldError("'prompt': expected a text, a list of texts, a list of token ids, or a list of those", "prompt")


def measured(
    text: TextModel,
    prompt: Prompt,
    *,
    max_tokens: int | None,
    default: int | None,
    fits_context: bool = False,
    room: int = 1,
) -> Prompt:
    """The prompt, with the number of tokens that may follow: as asked for, by `default`, or all that the context has
    room for, if that is known. With `fits_context`, never more than that. `room` is for so many at least.

    Raises:
        FieldError: the prompt leaves no room.
    """
    if max_tokens is None:
        max_tokens = default
    tokenizer, context = text.tokenizer, text.context_length
    ids, adds = prompt.token_ids, prompt.adds_special_tokens
    is_asked_for = max_tokens is not None and not fits_context
    if tokenizer is None or context is None or (ids is None and is_asked_for):
        return replace(prompt, max_tokens=max_tokens)
    if ids is None:
        ids = tokenizer.encode(prompt.text, add_special_tokens=adds)
    more = _picture_tokens(text, ids, prompt.images)
    size = len(ids) + more
    if size + room > context:
        raise FieldError(
            f"This model's maximum context length is {context} tokens. However, the prompt has {size}, which "
            f"leaves no room for an answer",
            "prompt" if adds or prompt.token_ids is not None else "messages",
            CONTEXT_EXCEEDED,
        )
    if is_asked_for:
        return replace(prompt, max_tokens=max_tokens, picture_tokens=more)
    most = context - size
    most = most if max_tokens is None else min(most, max_tokens)
    return replace(prompt, max_tokens=most, token_ids=ids, picture_tokens=more)


def _picture_tokens(text: TextModel, ids: Sequence[int], images: Tensor | None) -> int:
    return 0 if text.pictures is None or images is None else text.pictures.more(ids, images.element_count)


def cut_prompt(text: TextModel, prompt: Prompt, most: int | None, max_tokens: int | None) -> Prompt:
    """The last tokens of a prompt, `most` of them; with -1 as many as leave the context room for `max_tokens`. With
    None it is left as it is.

    Raises:
        FieldError: there is no tokenizer, no such number of tokens, or there are pictures, whose places may be cut off.
    """
    if most is None:
        return prompt
    name, tokenizer, context = "truncate_prompt_tokens", text.tokenizer, text.context_length
    if tokenizer is None or prompt.images is not None:
        reason = f"model '{text.name}' has no tokenizer" if tokenizer is None else "a prompt with pictures is not cut"
        raise FieldError(f"'{name}' cannot be honoured: {reason}", name, "unsupported_parameter")
    if most == 0 or (context is None and most < 0) or (context is not None and most > context):
        known = "" if context is None else f"-1 for the context of model '{text.name}', or "
        upper = " on" if context is None else f" to {context}"
        raise FieldError(f"'{name}': expected {known}a number from 1{upper}, got {most}", name)
    if context is not None and most < 0:
        most = max(context - max(max_tokens or 0, 1), 1)
    ids = prompt.token_ids
    if ids is None:
        ids = tokenizer.encode(prompt.text, add_special_tokens=prompt.adds_special_tokens)
    if len(ids) <= most:
        return replace(prompt, token_ids=ids)
    ids = ids[-most:]
    shown = tokenizer.decode(list(ids), skip_special_tokens=False)
    return replace(prompt, text=shown, adds_special_tokens=False, token_ids=ids)


def _spelt(ids: list[int], tokenizer: Tokenizer | None, model: str) -> Prompt:
    if tokenizer is None:
        raise FieldError(f"'prompt': model '{model}' has no tokenizer, so it takes no token ids", "prompt")
    for token_id in ids:
        if not tokenizer.has_token(token_id):
            size = tokenizer.vocabulary_size
            raise FieldError(
                f"'prompt': token id {token_id} is not in the vocabulary of model '{model}', which has {size} tokens",
                "prompt",
            )
    return Prompt(tokenizer.decode(ids, skip_special_tokens=False), adds_special_tokens=False, token_ids=ids)


def _has_picture(message: Mapping[str, Any]) -> bool:
    content = message.get("content")
    return isinstance(content, list) and any(map(is_picture, content))


def _message(
    message: Mapping[str, Any], place: int, wants_parts: bool, knows_developer: bool, sees: bool
) -> dict[str, Any]:
    """A message as templates know them: its content one text, the arguments of its calls objects."""
    role = message.get("role")
    if role not in _ROLES:
        raise FieldError(
            f"'messages[{place}].role': expected one of {', '.join(_ROLES)}, got {shown_value(role)}",
            f"messages[{place}].role",
        )
    read = dict(message)
    if role == "developer" and not knows_developer:
        read["role"] = "system"
    content = message.get("content")
    if isinstance(content, list):
        parts = [None if sees and is_picture(part) else _part(part, place) for part in content]
        if wants_parts:
            read["content"] = [{"type": "image"} if each is None else {"type": "text", "text": each} for each in parts]
        else:
            read["content"] = "\n".join(each for each in parts if each is not None)
    elif isinstance(content, str):
        read["content"] = [{"type": "text", "text": content}] if wants_parts else content
    elif content is None:
        read["content"] = [] if wants_parts else ""
    else:
        raise FieldError(
            f"'messages[{place}].content': expected a text or a list of parts, got {shown_value(content)}",
            f"messages[{place}].content",
        )
    if (calls := message.get("tool_calls")) is not None:
        read["tool_calls"] = _calls(calls, place)
        if not read["tool_calls"]:
            del read["tool_calls"]
    if "reasoning" in read and "reasoning_content" not in read:
        read["reasoning_content"] = read["reasoning"]
    return read


def _part(part: Any, place: int) -> str:
    if isinstance(part, str):
        return part
    if isinstance(part, Picture):
        raise FieldError(
            f"'{part.path}': the model has no input for pictures, so only text can be read",
            part.path,
            "unsupported_parameter",
        )
    kind = part.get("type") if isinstance(part, dict) else None
    field = _TEXT_PARTS.get(kind) if isinstance(kind, str) else None
    text = part.get(field) if field is not None else None
    if field is None:
        shown = kind[:80] if isinstance(kind, str) else shown_value(kind)
        raise FieldError(f"only text message is supported, but got {shown}", f"messages[{place}].content")
    if not isinstance(text, str):
        raise FieldError(
            f"'messages[{place}].content': a part of type '{kind}' has no text '{field}'", f"messages[{place}].content"
        )
    return text


def _calls(calls: Any, place: int) -> list[dict[str, Any]]:
    param = f"messages[{place}].tool_calls"
    if not isinstance(calls, list):
        raise FieldError(f"'{param}': expected a list", param)
    read = []
    for call in calls:
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise FieldError(f"'{param}': expected calls with a function and its name", param)
        read.append({**call, "function": {**function, "arguments": call_arguments(function.get("arguments"), param)}})
    return read


def call_arguments(arguments: Any, param: str) -> Any:
    """Of a call, as an object: templates write it as JSON themselves.

    Raises:
        FieldError: a text that is not JSON, or has half a character, which no prompt can have.
    """
    if not isinstance(arguments, str):
        return arguments if arguments is not None else {}
    try:
        return msgspec.json.decode(arguments) if arguments.strip() else {}
    except (ValueError, RecursionError):
        raise FieldError(
            f"'{param}': the arguments of a call are not JSON: {shown_value(arguments, 80)}", param
        ) from None
