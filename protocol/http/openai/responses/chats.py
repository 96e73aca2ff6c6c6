"""From the body of a responses call to a chat as `/v1/chat/completions` takes it. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from protocol.errors import shown_value
from protocol.http.openai.codec.requests import ChatRequest
from protocol.http.openai.errors import FieldError
from protocol.http.openai.responses.items import Item, chat_messages
from protocol.http.openai.responses.requests import ResponseFields, ResponsesRequest

_LOGPROBS = "message.output_text.logprobs"
# What may be asked to be included; but for logprobs, of tools that there are not, or included anyway.
_INCLUDABLE = (
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    _LOGPROBS,
    "reasoning.encrypted_content",
    "web_search_call.action.sources",
    "web_search_call.results",
)
_PASSED_ON = (
    "temperature",
    "top_p",
    "frequency_penalty",
    "ignore_eos",
    "min_p",
    "presence_penalty",
    "priority",
    "repetition_penalty",
    "seed",
    "stop",
    "stream",
    "top_k",
)


def chat_of(body: ResponseFields, items: Sequence[Item], known: int = 0) -> ChatRequest:
    """Without what samples, which only responses have (`responses_chat`). `known` of the items, the first, are those of
    earlier responses.

    Raises:
        FieldError: a field has a form that there is not, or that cannot be honoured.
    """
    chat = ChatRequest(
        model=body.model,
        messages=chat_messages(body.instructions, items, known),
        parallel_tool_calls=body.parallel_tool_calls,
        chat_template_kwargs=body.chat_template_kwargs,
    )
    if body.tools:
        chat.tools = [_tool(tool, place) for place, tool in enumerate(body.tools)]
    if body.tool_choice is not None:
        _choose(chat, body.tool_choice)
    if body.reasoning is not None:
        chat.reasoning_effort = body.reasoning.effort
    if body.text is not None and body.text.format is not None:
        chat.response_format = _format(body.text.format)
    return chat


def responses_chat(body: ResponsesRequest, items: Sequence[Item], known: int = 0) -> ChatRequest:
    """Raises FieldError as `chat_of` does."""
    chat = chat_of(body, items, known)
    for name in _PASSED_ON:
        setattr(chat, name, getattr(body, name))
    chat.max_completion_tokens = body.max_output_tokens
    if body.truncation not in (None, "auto", "disabled"):
        raise FieldError(f"'truncation': expected 'auto' or 'disabled', got '{body.truncation:.40}'", "truncation")
    included = body.include or ()
    for place, each in enumerate(included):
        if each not in _INCLUDABLE:
            raise FieldError(
                f"'include[{place}]': expected one of {', '.join(_INCLUDABLE)}, got '{each:.80}'", f"include[{place}]"
            )
    if body.top_logprobs or _LOGPROBS in included:
        chat.logprobs, chat.top_logprobs = True, body.top_logprobs or 0
    return chat


def _tool(tool: dict[str, Any], place: int) -> dict[str, Any]:
    where = f"tools[{place}]"
    if (kind := tool.get("type")) != "function":
        raise FieldError(
            f"'{where}.type': tools that the server would run are not supported: expected 'function', got "
            f"{shown_value(kind, 80)}",
            f"{where}.type",
            "unsupported_parameter",
        )
    if not isinstance(tool.get("name"), str) or not tool["name"]:
        raise FieldError(f"'{where}.name': expected a name, got {shown_value(tool.get('name'))}", f"{where}.name")
    if not isinstance(tool.get("parameters") or {}, dict):
        raise FieldError(f"'{where}.parameters': expected an object, a JSON schema", f"{where}.parameters")
    known = ("name", "description", "parameters", "strict")
    return {"type": "function", "function": {name: tool[name] for name in known if tool.get(name) is not None}}


def _choose(chat: ChatRequest, choice: Any) -> None:
    """`allowed_tools` hides the others from the model."""
    kind = choice.get("type") if isinstance(choice, dict) else None
    if isinstance(choice, str):
        chat.tool_choice = choice
    elif kind == "function":
        chat.tool_choice = {"type": "function", "function": {"name": choice.get("name")}}
    elif kind == "allowed_tools" and isinstance(choice.get("tools"), list):
        names = [tool.get("name") for tool in choice["tools"] if isinstance(tool, dict)]
        chat.tools = [tool for tool in chat.tools or () if tool["function"].get("name") in names]
        chat.tool_choice = choice.get("mode", "auto")
    else:
        raise FieldError(
            "'tool_choice': expected 'none', 'auto', 'required', a function or allowed tools, got "
            f"{shown_value(choice, 80)}",
            "tool_choice",
        )


def _format(form: dict[str, Any]) -> dict[str, Any]:
    match form.get("type"):
        case "text" | "json_object":
            return form
        case "json_schema":
            if not isinstance(form.get("schema"), dict):
                raise FieldError("'text.format.schema': expected an object, a JSON schema", "text.format.schema")
            return {"type": "json_schema", "json_schema": {"name": form.get("name"), "schema": form["schema"]}}
        case kind:
            raise FieldError(
                f"'text.format.type': expected 'text', 'json_object' or 'json_schema', got {shown_value(kind)}",
                "text.format.type",
            )
