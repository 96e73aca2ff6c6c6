"""Description of a text model: what another process needs to have the same model, without what lives in this one.

Flow: `TextModel` → [describe] → link → `TextDescription` → the same `TextModel`, whose tokenizer and chat template are
that process's own. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from protocol.text.chat_template import ChatTemplate
from protocol.text.model import TextFacts, TextModel
from protocol.text.special_tokens import SpecialTokens
from protocol.text.tokenizer import Tokenizer
from protocol.text.tokenizer_file import TokenizerFile


class TokenizerDescription(msgspec.Struct, frozen=True):
    """A tokenizer: `file` is None for one that was not read from a file, which only its own process has."""

    file: TokenizerFile | None
    special: SpecialTokens


class TemplateDescription(msgspec.Struct, frozen=True):
    """A chat template: the arguments that it is made of."""

    source: str
    special_tokens: Mapping[str, str]
    with_tools: str | None

    def made(self) -> ChatTemplate:
        """Blocks: a long template takes some ten milliseconds. Raises as `ChatTemplate` does."""
        return ChatTemplate(self.source, self.special_tokens, with_tools=self.with_tools)


class TextDescription(TextFacts, frozen=True):
    """A text model."""

    tokenizer: TokenizerDescription | None = None
    chat_template: TemplateDescription | None = None

    def model(self, tokenizer: Tokenizer | None, chat_template: ChatTemplate | None) -> TextModel:
        """The model with these parts, which are those that are described."""
        return TextModel(**self.facts(), tokenizer=tokenizer, chat_template=chat_template)


def describe(text: TextModel) -> TextDescription:
    tokenizer, template = text.tokenizer, text.chat_template
    return TextDescription(
        **text.facts(),
        tokenizer=None if tokenizer is None else TokenizerDescription(tokenizer.file, tokenizer.special),
        chat_template=(
            None
            if template is None
            else TemplateDescription(template.source, template.special_tokens, template.with_tools)
        ),
    )
