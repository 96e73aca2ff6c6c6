"""From the body of a messages call to a chat as `/v1/chat/completions` takes it. Pure."""

from __future__ import annotations

from typing import Any

from protocol.errors import shown_value
from protocol.http.anthropic.codec.messages import chat_messages
from protocol.http.anthropic.codec.requests import MessageFields, MessagesRequest, Tool
from protocol.http.openai.codec.requests import ChatRequest
from protocol.http.openai.errors import FieldError

_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


def chat_of(body: MessageFields) -> ChatRequest:
    """Without what samples, which only messages have (`messages_chat`).

    Raises:
        FieldError: a field has a form that there is not, or that cannot be honoured.
    """
    messages = chat_messages(body.system, body.messages)
    chat = ChatRequest(
        model=body.model,
        messages=messages,
        # A last message of the assistant is the begin of the answer.
        continue_final_message=messages[-1]["role"] == "assistant",
    )
    if body.tools:
        chat.tools = [_tool(tool, place) for place, tool in enumerate(body.tools)]
    if body.tool_choice is not None:
        chat.tool_choice = _choice(body)
        chat.parallel_tool_calls = not body.tool_choice.disable_parallel_tool_use
    if body.thinking is not None:
        _think(chat, body)
    if body.output_config is not None:
        chat.reasoning_effort = body.output_config.effort
        chat.response_format = _format(body.output_config.format)
    return chat


def messages_chat(body: MessagesRequest) -> ChatRequest:
    """Raises FieldError as `chat_of` does."""
    chat = chat_of(body)
    chat.max_completion_tokens = body.max_tokens
    chat.stop = body.stop_sequences
    chat.temperature = body.temperature
    chat.top_p = body.top_p
    chat.top_k = body.top_k
    chat.stream = body.stream
    return chat


def _tool(tool: Tool, place: int) -> dict[str, Any]:
    where = f"tools[{place}]"
    if tool.type not in (None, "custom"):
        raise FieldError(
            f"'{where}.type': tools of the server's own are not supported: expected 'custom', got '{tool.type:.80}'",
            f"{where}.type",
            "unsupported_parameter",
        )
    if tool.name is None:
        raise FieldError(f"'{where}.name': Field required", f"{where}.name")
    if tool.input_schema is None:
        raise FieldError(f"'{where}.input_schema': Field required", f"{where}.input_schema")
    if tool.defer_loading:
        raise FieldError(
            f"'{where}.defer_loading' cannot be honoured: tools are not searched",
            f"{where}.defer_loading",
            "unsupported_parameter",
        )
    if tool.allowed_callers is not None and "direct" not in tool.allowed_callers:
        raise FieldError(
            f"'{where}.allowed_callers' cannot be honoured: only the model calls tools: expected 'direct' among them",
            f"{where}.allowed_callers",
            "unsupported_parameter",
        )
    function: dict[str, Any] = {"name": tool.name}
    if tool.description is not None:
        function["description"] = tool.description
    function["parameters"] = tool.input_schema
    if tool.strict is not None:
        function["strict"] = tool.strict
    if tool.input_examples:
        function["input_examples"] = tool.input_examples
    return {"type": "function", "function": function}


def _choice(body: MessageFields) -> Any:
    choice = body.tool_choice
    assert choice is not None
    if choice.type == "tool":
        if choice.name is None:
            raise FieldError("'tool_choice.name': Field required", "tool_choice.name")
        return {"type": "function", "function": {"name": choice.name}}
    if choice.type not in _CHOICES:
        raise FieldError(
            f"'tool_choice.type': expected 'auto', 'any', 'tool' or 'none', got '{choice.type:.40}'",
            "tool_choice.type",
        )
    return _CHOICES[choice.type]


def _think(chat: ChatRequest, body: MessageFields) -> None:
    """By the names that templates have for it; what has no such switch thinks as it likes."""
    thinking = body.thinking
    assert thinking is not None
    if thinking.type not in ("enabled", "adaptive", "disabled"):
        raise FieldError(
            f"'thinking.type': expected 'enabled', 'adaptive' or 'disabled', got '{thinking.type:.40}'", "thinking.type"
        )
    if thinking.type == "enabled" and thinking.budget_tokens is None:
        raise FieldError("'thinking.budget_tokens': Field required", "thinking.budget_tokens")
    if thinking.display not in (None, "summarized", "omitted"):
        raise FieldError(
            f"'thinking.display': expected 'summarized' or 'omitted', got '{thinking.display:.40}'", "thinking.display"
        )
    thinks = thinking.type != "disabled"
    chat.chat_template_kwargs = {"enable_thinking": thinks, "thinking": thinks}
    chat.include_reasoning = thinks
    if thinking.type == "enabled":
        chat.thinking_token_budget = thinking.budget_tokens


def _format(form: dict[str, Any] | None) -> dict[str, Any] | None:
    if form is None:
        return None
    where = "output_config.format"
    if form.get("type") != "json_schema":
        raise FieldError(
            f"'{where}.type': expected 'json_schema', got {shown_value(form.get('type'))}", f"{where}.type"
        )
    if not isinstance(form.get("schema"), dict):
        raise FieldError(f"'{where}.schema': expected an object, a JSON schema", f"{where}.schema")
    return {"type": "json_schema", "json_schema": {"name": "output", "schema": form["schema"]}}
