"""From messages of content blocks to the messages of a chat: results of tools become messages of their own. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from protocol.http.openai.errors import FieldError

_ROLES = ("user", "assistant", "system")
# The types of blocks that can be read.
_USER = ("text", "tool_result")
_ASSISTANT = ("text", "thinking", "tool_use")
_Block = Mapping[str, Any]


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
            raise FieldError(f"'{where}.role': expected one of {', '.join(_ROLES)}, got {role!r:.40}", f"{where}.role")
        content = message.get("content")
        if role == "assistant":
            _add(made, _assistant(content, f"{where}.content"))
        elif role == "system":
            _add(made, {"role": role, "content": _texts(content, f"{where}.content")})
        else:
            for each in _user(content, f"{where}.content"):
                _add(made, each)
    if made[-1]["role"] == "assistant":
        _check_last(made[-1], f"messages[{len(messages) - 1}].content")
    return made


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
    last["content"] = [*last["content"], *message["content"]]
    if "reasoning_content" in message:
        last["reasoning_content"] = last.get("reasoning_content", "") + message["reasoning_content"]
    if "tool_calls" in message:
        last["tool_calls"] = [*last.get("tool_calls", ()), *message["tool_calls"]]


def _blocks(content: Any, known: Sequence[str], where: str) -> Sequence[_Block]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    if not isinstance(content, list):
        raise FieldError(f"'{where}': expected a text or a list of content blocks, got {content!r:.40}", where)
    for place, block in enumerate(content):
        kind = block.get("type") if isinstance(block, dict) else None
        if kind not in known:
            raise FieldError(
                f"'{where}[{place}].type': only text can be read here: expected {' or '.join(known)}, got {kind!r:.80}",
                f"{where}[{place}].type",
                "unsupported_parameter",
            )
    return content


def _texts(content: Any, where: str) -> list[dict[str, str]]:
    blocks = _blocks(content, ("text",), where)
    return [_text(block, f"{where}[{place}]") for place, block in enumerate(blocks)]


def _text(block: _Block, where: str) -> dict[str, str]:
    return {"type": "text", "text": _string(block, "text", where)}


def _user(content: Any, where: str) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = []
    for place, block in enumerate(_blocks(content, _USER, where)):
        here = f"{where}[{place}]"
        if block["type"] == "tool_result":
            made.append(_result(block, here))
        elif made and made[-1]["role"] == "user":
            made[-1]["content"].append(_text(block, here))
        else:
            made.append({"role": "user", "content": [_text(block, here)]})
    return made or [{"role": "user", "content": []}]


def _result(block: _Block, where: str) -> dict[str, Any]:
    content = block.get("content")
    made: dict[str, Any] = {
        "role": "tool",
        "tool_call_id": _string(block, "tool_use_id", where),
        "content": [] if content is None else _texts(content, f"{where}.content"),
    }
    if block.get("is_error"):
        made["is_error"] = True
    return made


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
        made["reasoning_content"] = "".join(thoughts)
    if calls:
        made["tool_calls"] = calls
    return made


def _call(block: _Block, where: str) -> dict[str, Any]:
    arguments = block.get("input")
    if not isinstance(arguments, dict):
        raise FieldError(f"'{where}.input': expected an object, got {arguments!r:.40}", f"{where}.input")
    function = {"name": _string(block, "name", where), "arguments": arguments}
    return {"id": _string(block, "id", where), "type": "function", "function": function}


def _string(block: _Block, name: str, where: str) -> str:
    value = block.get(name)
    if not isinstance(value, str):
        raise FieldError(f"'{where}.{name}': expected a text, got {value!r:.40}", f"{where}.{name}")
    return value
