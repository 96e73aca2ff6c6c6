"""Tools of a chat: what `tool_choice` asks of the model, and how its answer is read. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from protocol.errors import shown_name, shown_value
from protocol.http.openai.codec.requests import ChatRequest
from protocol.http.openai.errors import FieldError
from protocol.text.deltas import ContentDelta, Delta, ToolCallArguments, ToolCallStart
from protocol.text.model import TextModel
from protocol.text.output_parser import OutputParser, is_reasoning_open, marker_tokens, output_parser
from protocol.text.parsers.writer import call_id

# A list of objects with a name and arguments, which is what `tool_choice` `required` makes a model write.
_LIST_PARSER = "mistral"
_HARMONY = "harmony"


@dataclass(frozen=True, slots=True)
class ToolPlan:
    """How the tools of one chat are used.

    Attributes:
        shown: what the template is told of.
        choice: `none`, `auto`, `required`, or `named`.
        name: the tool that is to be called, where it is `named`.
        structure: what the model has to write (vLLM's `structured_outputs`).
        is_single: only the first call of an answer counts.
    """

    choice: str = "none"
    shown: Sequence[Mapping[str, Any]] = ()
    name: str = ""
    structure: Mapping[str, Any] | None = None
    is_single: bool = False


def plan_tools(request: ChatRequest, text: TextModel) -> ToolPlan:
    """Raises:
    FieldError: `tools` or `tool_choice` are not as they must be, or the model has no parser for calls.
    """
    tools = request.tools or []
    choice = request.tool_choice
    if isinstance(choice, dict):
        kind, name = "named", _chosen(choice)
    else:
        kind, name = choice or ("auto" if tools else "none"), ""
    if kind not in ("none", "auto", "required", "named"):
        raise FieldError(
            f"'tool_choice': expected 'none', 'auto', 'required' or a function, got {shown_value(kind)}", "tool_choice"
        )
    if not tools:
        if kind in ("required", "named"):
            word = '"required"' if kind == "required" else "Named"
            raise FieldError(f"{word} tool choice requires CreateChatCompletionRequest.tools to be provided", "tools")
        return ToolPlan()
    functions = [_function(tool, place) for place, tool in enumerate(tools)]
    if kind == "none":
        return ToolPlan()
    if kind == "auto" and not text.tool_parser:
        raise FieldError(
            f"\"auto\" tool choice requires the parameter 'tool_call_parser' of model '{text.name}' to be set",
            "tool_choice",
        )
    if kind == "named" and name not in [each["name"] for each in functions]:
        raise FieldError(f"Tool '{shown_name(name)}' has not been passed in `tools`.", "tool_choice")
    structure = _STRUCTURES[kind](functions, name) if kind in _STRUCTURES else None
    return ToolPlan(kind, tools, name, structure, is_single=request.parallel_tool_calls is False)


def answer_parser(
    plan: ToolPlan, text: TextModel, prompt: str, *, shows_reasoning: bool = True
) -> Callable[[], OutputParser | None]:
    """A maker of the parser of each choice, which gives None where all text is content."""
    reasoning = text.reasoning_parser
    in_reasoning = is_reasoning_open(reasoning, prompt)
    if plan.choice == "none" and not reasoning:
        return lambda: None

    def make() -> OutputParser:
        parser: OutputParser
        match plan.choice:
            case "auto":
                parser = output_parser(text.tool_parser, reasoning, in_reasoning=in_reasoning, tools=plan.shown)
            case "required" if reasoning != _HARMONY:
                parser = _ListOfCalls(
                    output_parser(_LIST_PARSER, _other(reasoning), in_reasoning=in_reasoning, id_maker=call_id)
                )
            case "required":
                parser = output_parser(_HARMONY, reasoning)
            case "named":
                parser = _NamedCall(plan.name, output_parser("", reasoning, in_reasoning=in_reasoning))
            case _:
                parser = output_parser("", reasoning, in_reasoning=in_reasoning)
        return _Chosen(parser, is_single=plan.is_single, shows_reasoning=shows_reasoning)

    return make


def needs_special_tokens(plan: ToolPlan, text: TextModel) -> bool:
    """Whether a parser reads markers that are tokens of their own, so that the model must not leave those out."""
    tokenizer = text.tokenizer
    if tokenizer is None or (plan.choice == "none" and not text.reasoning_parser):
        return False
    markers = marker_tokens(text.tool_parser if plan.choice == "auto" else "", text.reasoning_parser)
    return any(tokenizer.token_id(marker) is not None for marker in markers)


class _NamedCall:
    """All content is the arguments of one call."""

    def __init__(self, name: str, parser: OutputParser) -> None:
        self._name = name
        self._parser = parser
        self._has_begun = False

    def push(self, text: str) -> list[Delta]:
        return self._read(self._parser.push(text))

    def finish(self) -> list[Delta]:
        return self._read(self._parser.finish())

    def _read(self, deltas: list[Delta]) -> list[Delta]:
        read: list[Delta] = []
        for delta in deltas:
            if not isinstance(delta, ContentDelta):
                read.append(delta)
                continue
            if not self._has_begun:
                self._has_begun = True
                read.append(ToolCallStart(0, call_id(), self._name))
            read.append(ToolCallArguments(0, delta.text))
        return read


class _ListOfCalls:
    """All content is a list of calls: behind the first one there is only what stands between them, and an end where
    the list was cut off."""

    def __init__(self, parser: OutputParser) -> None:
        self._parser = parser
        self._has_begun = False

    def push(self, text: str) -> list[Delta]:
        return self._read(self._parser.push(text))

    def finish(self) -> list[Delta]:
        return self._read(self._parser.finish())

    def _read(self, deltas: list[Delta]) -> list[Delta]:
        read: list[Delta] = []
        for delta in deltas:
            self._has_begun |= isinstance(delta, ToolCallStart)
            if not (self._has_begun and isinstance(delta, ContentDelta)):
                read.append(delta)
        return read


class _Chosen:
    """Leaves out what the client does not want to see."""

    def __init__(self, parser: OutputParser, *, is_single: bool, shows_reasoning: bool) -> None:
        self._parser = parser
        self._is_single = is_single
        self._shows_reasoning = shows_reasoning

    def push(self, text: str) -> list[Delta]:
        return self._choose(self._parser.push(text))

    def finish(self) -> list[Delta]:
        return self._choose(self._parser.finish())

    def _choose(self, deltas: list[Delta]) -> list[Delta]:
        if not self._is_single and self._shows_reasoning:
            return deltas
        return [delta for delta in deltas if self._is_wanted(delta)]

    def _is_wanted(self, delta: Delta) -> bool:
        if isinstance(delta, ToolCallStart | ToolCallArguments):
            return not self._is_single or delta.index == 0
        return isinstance(delta, ContentDelta) or self._shows_reasoning


def _other(reasoning: str) -> str:
    return "" if reasoning == _HARMONY else reasoning


def _function(tool: Mapping[str, Any], place: int) -> Mapping[str, Any]:
    function = tool.get("function")
    if tool.get("type", "function") != "function" or not isinstance(function, dict):
        raise FieldError(
            f"'tools[{place}]': expected one of type 'function', got {shown_value(tool.get('type'))}", f"tools[{place}]"
        )
    name, parameters = function.get("name"), function.get("parameters")
    if not isinstance(name, str) or not name:
        raise FieldError(f"'tools[{place}].function.name': expected a name", f"tools[{place}].function.name")
    if parameters is not None and not isinstance(parameters, dict):
        raise FieldError(
            f"'tools[{place}].function.parameters': expected an object, a JSON schema",
            f"tools[{place}].function.parameters",
        )
    return function


def _chosen(choice: Mapping[str, Any]) -> str:
    function = choice.get("function")
    name = function.get("name") if isinstance(function, dict) else None
    if choice.get("type") != "function" or not isinstance(name, str):
        raise FieldError(
            "'tool_choice': expected an object with type 'function' and a function's name, got "
            f"{shown_value(choice, 80)}",
            "tool_choice",
        )
    return name


def _schema(function: Mapping[str, Any]) -> dict[str, Any]:
    return dict(function.get("parameters") or {"type": "object", "properties": {}})


def _any_call(functions: Sequence[Mapping[str, Any]], name: str) -> dict[str, Any]:
    """A list of at least one call. Definitions that the schemas of arguments refer to are put at the top."""
    calls = []
    definitions: dict[str, Any] = {}
    for function in functions:
        schema = _schema(function)
        definitions.update(schema.pop("$defs", {}))
        calls.append(
            {
                "type": "object",
                "properties": {"name": {"type": "string", "enum": [function["name"]]}, "parameters": schema},
                "required": ["name", "parameters"],
            }
        )
    made: dict[str, Any] = {"type": "array", "minItems": 1, "items": {"type": "object", "anyOf": calls}}
    return {"json": {**made, "$defs": definitions} if definitions else made}


def _named_call(functions: Sequence[Mapping[str, Any]], name: str) -> dict[str, Any]:
    return {"json": next(_schema(each) for each in functions if each["name"] == name)}


_STRUCTURES: Mapping[str, Callable[[Sequence[Mapping[str, Any]], str], dict[str, Any]]] = {
    "required": _any_call,
    "named": _named_call,
}
