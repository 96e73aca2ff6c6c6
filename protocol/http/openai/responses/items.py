"""From input items to the messages of a chat. Pure.

What the assistant has thought, said and called, one item after the other, is one message. Pictures in the results of
tools are what the user shows next: templates have a place for them there.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from typing import Any

from protocol.errors import shown_value
from protocol.http.openai.codec.images import Picture, url_picture
from protocol.http.openai.errors import FieldError
from protocol.http.openai.prompts import call_arguments

Item = Mapping[str, Any]

_ROLES = ("user", "assistant", "system", "developer")
_KNOWN = ("message", "function_call", "function_call_output", "reasoning")
_PREFIXES = {"message": "msg", "function_call": "fc", "function_call_output": "fco", "reasoning": "rs"}
# The parts of content that can be read, and the field that has their text.
_TEXT_PARTS = {"input_text": "text", "output_text": "text", "text": "text", "refusal": "refusal"}
_IMAGE_PART = "input_image"
_Part = dict[str, str] | Picture


def items_of(given: str | Sequence[Item] | None) -> list[Item]:
    """Raises:
    FieldError: there is no input.
    """
    if isinstance(given, str):
        return [{"type": "message", "role": "user", "content": given}]
    if not given:
        raise FieldError(
            "'input': expected a text or a list of at least one item", "input", "missing_required_parameter"
        )
    return list(given)


def listed(items: Sequence[Item]) -> list[Item]:
    """As `/v1/responses/{id}/input_items` lists them: each with an id and a type, and content in parts."""
    return [_listed(item) for item in items]


def _listed(item: Item) -> Item:
    kind = item.get("type") or "message"
    made = {**item, "type": kind, "id": item.get("id") or f"{_PREFIXES[kind]}_{secrets.token_hex(16)}"}
    if kind == "message" and isinstance(content := item.get("content"), str):
        part = "output_text" if item.get("role") == "assistant" else "input_text"
        made["content"] = [{"type": part, "text": content}]
    return made


def chat_messages(instructions: str | None, items: Sequence[Item], known: int = 0) -> list[dict[str, Any]]:
    """`known` of the items, the first, are those of earlier responses; errors count from there.

    Raises:
        FieldError: an item is not as it must be, or of a kind that cannot be read.
    """
    made: list[dict[str, Any]] = []
    shown: list[_Part] = []
    if instructions:
        made.append({"role": "system", "content": _parts(instructions, "instructions")})
    for place, item in enumerate(items):
        where = f"input[{place - known}]"
        kind = item.get("type") or ("message" if "role" in item else None)
        if shown and kind != "function_call_output" and item.get("role") != "user":
            made.append({"role": "user", "content": shown})
            shown = []
        match kind:
            case "message":
                shown = _add_message(made, item, where, shown)
            case "function_call":
                _assistant(made).setdefault("tool_calls", []).append(_call(item, where))
            case "function_call_output":
                shown += _add_result(made, item, where)
            case "reasoning":
                _assistant(made).setdefault("reasoning_content", []).append(_thoughts(item, where))
            case _:
                raise FieldError(
                    f"'{where}.type': expected one of {', '.join(_KNOWN)}, got {shown_value(kind, 80)}",
                    f"{where}.type",
                    "unsupported_parameter",
                )
    if shown:
        made.append({"role": "user", "content": shown})
    for message in made:
        if "reasoning_content" in message:
            message["reasoning_content"] = "".join(message["reasoning_content"])
    return made


def _add_message(made: list[dict[str, Any]], item: Item, where: str, shown: list[_Part]) -> list[_Part]:
    """Returns those of the pictures that tools have shown which the message has not taken."""
    role = item.get("role")
    if role not in _ROLES:
        raise FieldError(
            f"'{where}.role': expected one of {', '.join(_ROLES)}, got {shown_value(role)}", f"{where}.role"
        )
    parts = _parts(item.get("content"), f"{where}.content")
    is_system = made and made[-1]["role"] == "system" and role in ("system", "developer")
    if role == "assistant":
        _assistant(made)["content"] += parts
    elif is_system:  # most templates know one such message
        made[-1]["content"] += parts
    else:
        made.append({"role": role, "content": [*shown, *parts]})
        return []
    return shown


def _add_result(made: list[dict[str, Any]], item: Item, where: str) -> list[_Part]:
    """Returns its pictures."""
    output = _parts(item.get("output"), f"{where}.output")
    texts = [part for part in output if not isinstance(part, Picture)]
    made.append({"role": "tool", "tool_call_id": _string(item, "call_id", where), "content": texts})
    return [part for part in output if isinstance(part, Picture)]


def _assistant(made: list[dict[str, Any]]) -> dict[str, Any]:
    if not made or made[-1]["role"] != "assistant":
        made.append({"role": "assistant", "content": []})
    return made[-1]


def _parts(content: Any, where: str) -> list[_Part]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    if not isinstance(content, list):
        raise FieldError(f"'{where}': expected a text or a list of parts, got {shown_value(content)}", where)
    return [_part(part, f"{where}[{place}]") for place, part in enumerate(content)]


def _part(part: Any, where: str) -> _Part:
    kind = part.get("type") if isinstance(part, dict) else None
    if kind == _IMAGE_PART:
        return _picture(part, where)
    field = _TEXT_PARTS.get(kind) if isinstance(kind, str) else None
    if field is None:
        raise FieldError(
            f"'{where}.type': expected one of {', '.join((*_TEXT_PARTS, _IMAGE_PART))}, got {shown_value(kind, 80)}",
            f"{where}.type",
            "unsupported_parameter",
        )
    return {"type": "text", "text": _string(part, field, where)}


def _picture(part: Item, where: str) -> Picture:
    if part.get("image_url") is None and part.get("file_id") is not None:
        raise FieldError(
            f"'{where}.file_id' cannot be honoured: files are not kept; use 'image_url'",
            f"{where}.file_id",
            "unsupported_parameter",
        )
    return url_picture(_string(part, "image_url", where), f"{where}.image_url")


def _call(item: Item, where: str) -> dict[str, Any]:
    arguments = call_arguments(_string(item, "arguments", where), f"{where}.arguments")
    function = {"name": _string(item, "name", where), "arguments": arguments}
    return {"id": _string(item, "call_id", where), "type": "function", "function": function}


def _thoughts(item: Item, where: str) -> str:
    """The text of its content, or else of its summary. What is encrypted cannot be read."""
    for name in ("content", "summary"):
        parts = item.get(name) or []
        if not isinstance(parts, list):
            raise FieldError(f"'{where}.{name}': expected a list of parts, got {shown_value(parts)}", f"{where}.{name}")
        if parts:
            return "".join([_thought(part, f"{where}.{name}[{place}]") for place, part in enumerate(parts)])
    return ""


def _thought(part: Any, where: str) -> str:
    if not isinstance(part, dict):
        raise FieldError(f"'{where}': expected a part with a text, got {shown_value(part)}", where)
    return _string(part, "text", where)


def _string(item: Item, name: str, where: str) -> str:
    value = item.get(name)
    if not isinstance(value, str):
        raise FieldError(f"'{where}.{name}': expected a text, got {shown_value(value)}", f"{where}.{name}")
    return value
