"""Output parsers by name: divide the text of a model into answer, reasoning and tool calls, as it comes. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from protocol.text.deltas import Delta

class OutputParser(Protocol):
    """A machine for one answer. Any cutting of its text gives, joined, the same deltas."""

    def push(self, text: str) -> list[Delta]:
        """What is certain with this text."""
        ...

    def finish(self) -> list[Delta]:
        """What was held back, as the text ends here."""
        ...


TOOL_PARSERS = ("deepseek", "harmony", "hermes", "llama3", "mistral", "qwen", "qwen3_coder")
REASONING_PARSERS = ("deepseek_r1", "harmony", "mistral", "qwen3", "think")


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
            this parser.
        tools: the request's `tools`; the parser `qwen3_coder` takes the types of arguments from them.
        id_maker: makes the ids of tool calls; by default such as the parser's model knows.

    Raises:
        InvalidArgument: there is no such parser, or the two do not go together.
    """
    raise NotImplementedError


def is_reasoning_open(reasoning_parser: str, prompt: str) -> bool | None:
    """Whether a prompt ends within the model's reasoning, as `output_parser` takes it; None where it does not say."""
    raise NotImplementedError


def marker_tokens(tool_parser: str = "", reasoning_parser: str = "") -> frozenset[str]:
    """The tokens that these parsers read, which a detokenizer must not skip (`Tokenizer.detokenizer(keep=…)`)."""
    raise NotImplementedError
