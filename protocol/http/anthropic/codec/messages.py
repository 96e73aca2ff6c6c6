"""From messages of content blocks to the messages of a chat: results of tools become messages of their own. Pure.

Pictures in results are what the user shows after them: templates have a place for them there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from protocol.errors import shown_value
from protocol.http.openai.codec.images import LongText, Picture, url_picture
from protocol.http.openai.errors import FieldError

_ROLES = ("user", "assistant", "system")
# The types of blocks that can be read.
_USER = ("text", "image", "tool_result")
_ASSISTANT = ("text", "thinking", "tool_use")
_RESULT = ("text", "image")
_MEDIA_TYPES = ("image/jpeg", "image/png", "image/gif", "image/webp")
_Block = Mapping[str, Any]
_Part = dict[str, str] | Picture


def chat_messages(system: str | Sequence[_Block] | None, messages: Sequence[_Block]) -> list[dict[str, Any]]:
    """Neighbours of one role are one message, as Anthropic has it.

    Raises:
        FieldError: a message is not as it must be, or has a block that cannot be read.
    """
    made: list[dict[str, Any]] = []
    if system:
        made.append({"role": "system", "content": _texts(system, "system")})
    for place, message in enumerate(messages):
        where = f"messages[{place}]"
        role = message.get("role")
        if role not in _ROLES:
            raise FieldError(
                f"'{where}.role': expected one of {', '.join(_ROLES)}, got {shown_value(role)}", f"{where}.role"
            )
        content = message.get("content")
        if role == "assistant":
            _add(made, _assistant(content, f"{where}.content"))
        elif role == "system":
            _add(made, {"role": role, "content": _texts(content, f"{where}.content")})
        else:
            for each in _user(content, f"{where}.content"):
                _add(made, each)
    for message in made:
        if "reasoning_content" in message:
            message["reasoning_content"] = "".join(message["reasoning_content"])
    if made[-1]["role"] == "assistant":
        _check_last(made[-1], f"messages[{len(messages) - 1}].content")
    return made


def picture_places(messages: Sequence[_Block]) -> Iterator[tuple[dict[str, Any], str]]:
    """Where pictures have their base64, those in results of tools among them."""
    waiting: list[Any] = [*messages]
    while waiting:
        block = waiting.pop()
        if not isinstance(block, dict):
            continue
        source, content = block.get("source"), block.get("content")
        if block.get("type") == "image" and isinstance(source, dict) and source.get("type") == "base64":
            yield source, "data"
        if isinstance(content, list):
            waiting += content


def _check_last(message: dict[str, Any], where: str) -> None:
    """The answer goes on with the text of the assistant's last message."""
    if "tool_calls" in message or not message["content"]:
        raise FieldError(
            f"'{where}': the answer continues a last message of the assistant: expected a text, and no tool_use", where
        )


def _add(made: list[dict[str, Any]], message: dict[str, Any]) -> None:
    last = made[-1] if made else None
    if last is None or message["role"] == "tool" or message["role"] != last["role"]:
        made.append(message)
        return
    for name in ("content", "reasoning_content", "tool_calls"):
        if name in message:
            last.setdefault(name, []).extend(message[name])


def _blocks(content: Any, known: Sequence[str], where: str) -> Sequence[_Block]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    if not isinstance(content, list):
        raise FieldError(f"'{where}': expected a text or a list of content blocks, got {shown_value(content)}", where)
    for place, block in enumerate(content):
        kind = block.get("type") if isinstance(block, dict) else None
        if kind not in known:
            raise FieldError(
                f"'{where}[{place}].type': expected {' or '.join(known)} here, got {shown_value(kind, 80)}",
                f"{where}[{place}].type",
                "unsupported_parameter",
            )
    return content


def _texts(content: Any, where: str) -> list[dict[str, str]]:
    blocks = _blocks(content, ("text",), where)
    return [_text(block, f"{where}[{place}]") for place, block in enumerate(blocks)]


def _text(block: _Block, where: str) -> dict[str, str]:
    return {"type": "text", "text": _string(block, "text", where)}


def _image(block: _Block, where: str) -> Picture:
    where = f"{where}.source"
    given = block.get("source")
    source: _Block = given if isinstance(given, dict) else {}
    kind = source.get("type")
    if kind == "url":
        return url_picture(_string(source, "url", where), f"{where}.url")
    if kind != "base64":
        raise FieldError(
            f"'{where}.type': expected 'base64' or 'url', got {shown_value(kind)}",
            f"{where}.type",
            "unsupported_parameter",
        )
    if (media_type := source.get("media_type")) not in _MEDIA_TYPES:
        raise FieldError(
            f"'{where}.media_type': expected one of {', '.join(_MEDIA_TYPES)}, got {shown_value(media_type)}",
            f"{where}.media_type",
        )
    data = source.get("data")
    return Picture(f"{where}.data", data.data if isinstance(data, LongText) else _string(source, "data", where))


def _shown(block: _Block, where: str) -> _Part:
    return _image(block, where) if block["type"] == "image" else _text(block, where)


def _user(content: Any, where: str) -> list[dict[str, Any]]:
    """Results first, as Anthropic has it; pictures that they have are the first that the user shows."""
    made: list[dict[str, Any]] = []
    pictures: list[_Part] = []
    for place, block in enumerate(_blocks(content, _USER, where)):
        here = f"{where}[{place}]"
        if block["type"] == "tool_result":
            result, found = _result(block, here)
            made.append(result)
            pictures += found
        elif made and made[-1]["role"] == "user":
            made[-1]["content"].append(_shown(block, here))
        else:
            made.append({"role": "user", "content": [*pictures, _shown(block, here)]})
            pictures = []
    if pictures:
        made.append({"role": "user", "content": pictures})
    return made or [{"role": "user", "content": []}]


def _result(block: _Block, where: str) -> tuple[dict[str, Any], list[_Part]]:
    """The message of a tool, which has its texts, and the pictures of the result."""
    content = block.get("content")
    blocks = [] if content is None else _blocks(content, _RESULT, f"{where}.content")
    parts = [_shown(each, f"{where}.content[{place}]") for place, each in enumerate(blocks)]
    made: dict[str, Any] = {
        "role": "tool",
        "tool_call_id": _string(block, "tool_use_id", where),
        "content": [part for part in parts if not isinstance(part, Picture)],
    }
    if block.get("is_error"):
        made["is_error"] = True
    return made, [part for part in parts if isinstance(part, Picture)]


def _assistant(content: Any, where: str) -> dict[str, Any]:
    parts: list[dict[str, str]] = []
    calls: list[dict[str, Any]] = []
    thoughts: list[str] = []
    for place, block in enumerate(_blocks(content, _ASSISTANT, where)):
        here = f"{where}[{place}]"
        match block["type"]:
            case "text":
                parts.append(_text(block, here))
            case "thinking":
                thoughts.append(_string(block, "thinking", here))
            case _:
                calls.append(_call(block, here))
    made: dict[str, Any] = {"role": "assistant", "content": parts}
    if thoughts:
        made["reasoning_content"] = thoughts  # joined at the end
    if calls:
        made["tool_calls"] = calls
    return made


def _call(block: _Block, where: str) -> dict[str, Any]:
    arguments = block.get("input")
    if not isinstance(arguments, dict):
        raise FieldError(f"'{where}.input': expected an object, got {shown_value(arguments)}", f"{where}.input")
    function = {"name": _string(block, "name", where), "arguments": arguments}
    return {"id": _string(block, "id", where), "type": "function", "function": function}


def _string(block: _Block, name: str, where: str) -> str:
    value = block.get(name)
    if not isinstance(value, str):
        raise FieldError(f"'{where}.{name}': expected a text, got {shown_value(value)}", f"{where}.{name}")
    return value
