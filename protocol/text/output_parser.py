"""Output parsers by name: divide the text of a model into answer, reasoning and tool calls, as it comes. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from protocol.errors import InvalidArgument
from protocol.text.deltas import ContentDelta, Delta
from protocol.text.parsers import deepseek, harmony, hermes, llama3, mistral, qwen3_coder
from protocol.text.parsers.parameter_types import parameter_types
from protocol.text.parsers.reasoning import MISTRAL_THINK, THINK, ReasoningParser
from protocol.text.parsers.writer import call_id, mistral_call_id


class OutputParser(Protocol):
    """A machine for one answer. Any cutting of its text gives, joined, the same deltas."""

    def push(self, text: str) -> list[Delta]:
        """What is certain with this text."""
        ...

    def finish(self) -> list[Delta]:
        """What was held back, as the text ends here."""
        ...


_HARMONY = "harmony"
_TOOL_MARKERS: Mapping[str, Sequence[str]] = {
    "deepseek": deepseek.MARKERS,
    _HARMONY: harmony.MARKERS,
    "hermes": hermes.MARKERS,
    "llama3": llama3.MARKERS,
    "mistral": mistral.MARKERS,
    "qwen": hermes.MARKERS,
    "qwen3_coder": qwen3_coder.MARKERS,
}
_REASONING_MARKERS: Mapping[str, Sequence[str]] = {
    "deepseek_r1": THINK,
    _HARMONY: harmony.MARKERS,
    "mistral": MISTRAL_THINK,
    "qwen3": THINK,
    "think": THINK,
}
TOOL_PARSERS = tuple(_TOOL_MARKERS)
REASONING_PARSERS = tuple(_REASONING_MARKERS)


def output_parser(
    tool_parser: str = "",
    reasoning_parser: str = "",
    *,
    in_reasoning: bool | None = None,
    tools: Sequence[Mapping[str, Any]] = (),
    id_maker: Callable[[], str] | None = None,
) -> OutputParser:
    """The parser for one answer; "" is none.

    Args:
        tool_parser: a name of `TOOL_PARSERS`.
        reasoning_parser: a name of `REASONING_PARSERS`.
        in_reasoning: whether the prompt has left the reasoning open (`is_reasoning_open`); None for what is usual with
            this parser: open with `deepseek_r1` alone.
        tools: the request's `tools`; the parser `qwen3_coder` takes the types of arguments from them.
        id_maker: makes the ids of tool calls; by default such as the parser's model knows.

    Raises:
        InvalidArgument: there is no such parser, or the two do not go together.
    """
    _check(tool_parser, reasoning_parser)
    make_id = id_maker or (mistral_call_id if tool_parser == "mistral" else call_id)
    if _HARMONY in (tool_parser, reasoning_parser):
        return harmony.HarmonyParser(make_id, has_tools=tool_parser == _HARMONY)
    tool_calls = _tool_parser(tool_parser, tools, make_id)
    if not reasoning_parser:
        return tool_calls
    is_open = reasoning_parser == "deepseek_r1" if in_reasoning is None else in_reasoning
    tags = MISTRAL_THINK if reasoning_parser == "mistral" else THINK
    return _ReasoningThenTools(ReasoningParser(tags, is_open=is_open), tool_calls)


def is_reasoning_open(reasoning_parser: str, prompt: str) -> bool | None:
    """Whether a prompt has left the model's reasoning open, as `output_parser` takes it; None where it says nothing.

    Templates end a prompt with the tag that begins the reasoning, or with an empty reasoning where the model is to do
    without.
    """
    if reasoning_parser in ("", _HARMONY):
        return None
    begin, end = MISTRAL_THINK if reasoning_parser == "mistral" else THINK
    last = prompt[-1024:].rstrip()
    if last.endswith(begin):
        return True
    return False if last.endswith(end) else None


def marker_tokens(tool_parser: str = "", reasoning_parser: str = "") -> frozenset[str]:
    """The tokens that these parsers read, which a detokenizer must not skip (`Tokenizer.detokenizer(keep=…)`)."""
    _check(tool_parser, reasoning_parser)
    return frozenset(_TOOL_MARKERS.get(tool_parser, ())) | frozenset(_REASONING_MARKERS.get(reasoning_parser, ()))


class _Plain:
    """All text is content."""

    def push(self, text: str) -> list[Delta]:
        return [ContentDelta(text)] if text else []

    def finish(self) -> list[Delta]:
        return []


class _ReasoningThenTools:
    """A parser of reasoning, whose content another one reads."""

    def __init__(self, reasoning: OutputParser, tool_calls: OutputParser) -> None:
        self._reasoning = reasoning
        self._tool_calls = tool_calls

    def push(self, text: str) -> list[Delta]:
        return self._read(self._reasoning.push(text))

    def finish(self) -> list[Delta]:
        return self._read(self._reasoning.finish()) + self._tool_calls.finish()

    def _read(self, deltas: list[Delta]) -> list[Delta]:
        read: list[Delta] = []
        for delta in deltas:
            read += self._tool_calls.push(delta.text) if isinstance(delta, ContentDelta) else [delta]
        return read


def _tool_parser(name: str, tools: Sequence[Mapping[str, Any]], make_id: Callable[[], str]) -> OutputParser:
    match name:
        case "":
            return _Plain()
        case "deepseek":
            return deepseek.DeepSeekParser(make_id)
        case "llama3":
            return llama3.Llama3Parser(make_id)
        case "mistral":
            return mistral.MistralParser(make_id)
        case "qwen3_coder":
            return qwen3_coder.Qwen3CoderParser(make_id, types=parameter_types(tools))
        case _:
            return hermes.HermesParser(make_id)


def _check(tool_parser: str, reasoning_parser: str) -> None:
    for field, name, known in (
        ("tool_call_parser", tool_parser, TOOL_PARSERS),
        ("reasoning_parser", reasoning_parser, REASONING_PARSERS),
    ):
        if name and name not in known:
            raise InvalidArgument(f"{field}: expected one of {', '.join(known)}, got '{name}'")
    if _HARMONY in (tool_parser, reasoning_parser) and not {tool_parser, reasoning_parser} <= {"", _HARMONY}:
        raise InvalidArgument(
            f"tool_call_parser '{tool_parser}' and reasoning_parser '{reasoning_parser}' exclude each other: "
            f"'{_HARMONY}' reads both"
        )
