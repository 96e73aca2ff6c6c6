"""Chat template: renders the messages of a chat into a model's prompt, by Jinja in a sandbox, as Hugging Face does.

Templates find here what transformers gives them: `trim_blocks`, `lstrip_blocks`, `break` and `continue`, `tojson`
without escapes for HTML, `raise_exception`, `strftime_now`, and `{% generation %}` blocks. The sandbox keeps a template
from the server's own objects. It does not keep it from taking long: ranges, repeated strings and the length of the
result are bounded, loops within loops are not. So callers render in a thread.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from protocol.errors import InvalidArgument, text_of
from protocol.text.extra import missing_package

if TYPE_CHECKING:
    from jinja2 import Template

# Characters of a template, and of what one gives.
MAX_TEMPLATE_CHARACTERS = 1 << 20
MAX_PROMPT_CHARACTERS = 1 << 26
# Names that are not free for a template's own variables (`ChatTemplate.render`).
RESERVED_VARIABLES = frozenset(
    {"self", "messages", "tools", "documents", "add_generation_prompt", "continue_final_message"}
)
# What templates call the reasoning of an earlier answer.
_REASONING = ("reasoning_content", "thinking", "reasoning")
# Of what a template says when it refuses messages.
_LONGEST_ERROR = 4096
# Stands at the end of a message that is to be continued, to find its end in the prompt.
_END_MARK = "\ue000end of the final message\ue001"


class ChatTemplate:
    """A compiled template. Has no state of its own that renders change, so several threads may render at once."""

    def __init__(
        self, source: str, special_tokens: Mapping[str, str] | None = None, *, with_tools: str | None = None
    ) -> None:
        """`special_tokens` are variables of the template: `bos_token`, `eos_token`, … `with_tools` is the text of
        another template, for chats that have tools.

        Raises:
            InvalidArgument: the template does not compile.
            Unsupported: Jinja is not installed.
        """
        self.source = source
        self.special_tokens = dict(special_tokens or {})
        self.with_tools = with_tools
        self._template = _compile(source)
        self._template_with_tools = self._template if with_tools is None else _compile(with_tools)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        tools: Sequence[Mapping[str, Any]] | None = None,
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        documents: Sequence[Mapping[str, Any]] | None = None,
        **variables: Any,
    ) -> str:
        """The prompt. Blocks, for as long as the template likes.

        `continue_final_message` ends it with the last message's text, for the model to go on with. `variables` are the
        template's own switches, such as `enable_thinking`; none of them is one of `RESERVED_VARIABLES`.

        Raises:
            InvalidArgument: the template refuses the messages, by its own words, or fails on them.
        """
        if continue_final_message:
            if add_generation_prompt:
                raise InvalidArgument("add_generation_prompt and continue_final_message exclude each other")
            messages = _marked(messages)
        known = {
            **self.special_tokens,
            **variables,
            "messages": [_with_reasoning(message) for message in messages],
            "tools": tools,
            "documents": documents,
            "add_generation_prompt": add_generation_prompt,
        }
        prompt = _rendered(self._template if tools is None else self._template_with_tools, known)
        return _cut(prompt) if continue_final_message else prompt


def _rendered(template: Template, variables: Mapping[str, Any]) -> str:
    try:
        return _joined(template.generate(variables))
    except InvalidArgument:
        raise
    except Exception as error:
        raise InvalidArgument(f"chat template: {_words_of(error)}") from None


def _compile(source: str) -> Template:
    if len(source) > MAX_TEMPLATE_CHARACTERS:
        raise InvalidArgument(
            f"chat template: expected at most {MAX_TEMPLATE_CHARACTERS} characters, got {len(source)}"
        )
    try:
        from protocol.text.jinja_environment import chat_environment
    except ImportError:
        raise missing_package("jinja2", "a chat template") from None
    try:
        return chat_environment().from_string(source)
    except Exception as error:
        raise InvalidArgument(f"chat template: {_words_of(error)}") from None


def _words_of(error: Exception) -> str:
    """The text alone of what a template raises, with the line of a syntax error; a foreign exception with its type."""
    if type(error).__module__.partition(".")[0] != "jinja2":
        return text_of(error)[:_LONGEST_ERROR]
    line = getattr(error, "lineno", None)
    text = str(getattr(error, "message", None) or error)
    return (text if line is None else f"line {line}: {text}")[:_LONGEST_ERROR]


def _joined(pieces: Iterable[str]) -> str:
    parts = []
    size = 0
    for piece in pieces:
        size += len(piece)
        if size > MAX_PROMPT_CHARACTERS:
            raise InvalidArgument(f"chat template: the prompt has more than {MAX_PROMPT_CHARACTERS} characters")
        parts.append(piece)
    return "".join(parts)


def _with_reasoning(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """The message with its reasoning under both names that templates read, as transformers does."""
    found = next((message[name] for name in _REASONING if message.get(name) is not None), None)
    return message if found is None else {"thinking": found, **message, "reasoning_content": found}


def _marked(messages: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """The messages with a mark at the end of the last one's text."""
    last = messages[-1] if messages else {}
    content = last.get("content")
    if isinstance(content, str):
        return [*messages[:-1], {**last, "content": content + _END_MARK}]
    parts = list(content) if isinstance(content, list | tuple) else []
    for place in reversed(range(len(parts))):
        part = parts[place]
        if isinstance(part, Mapping) and isinstance(part.get("text"), str):
            parts[place] = {**part, "text": part["text"] + _END_MARK}
            return [*messages[:-1], {**last, "content": parts}]
    raise InvalidArgument("continue_final_message: expected a last message with text, got none")


def _cut(prompt: str) -> str:
    end = prompt.rfind(_END_MARK)
    if end < 0:
        raise InvalidArgument("continue_final_message: the chat template does not show the text of the last message")
    return prompt[:end]
