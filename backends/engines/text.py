"""Text parts of a model with an engine: its tokenizer and the length of its context, from its folder."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from backends.interface import ModelSource
from protocol.errors import InvalidArgument, ServerError
from protocol.text.special_tokens import SpecialTokens
from protocol.text.tokenizer import Tokenizer


@dataclass(frozen=True, slots=True)
class TextParts:
    """`context_length` is 0 where the folder does not say."""

    tokenizer: Tokenizer
    context_length: int = 0


def read_text_parts(source: ModelSource, directory: Path) -> TextParts:
    """Blocks. Raises ServerError where there is no tokenizer."""
    folder = directory
    try:
        text = (folder / "tokenizer.json").read_text()
        eos = json.loads((folder / "generation_config.json").read_text()).get("eos_token_id", ())
        eos = (eos,) if isinstance(eos, int) else tuple(eos)
        length = json.loads((folder / "config.json").read_text()).get("max_position_embeddings", 0)
        return TextParts(Tokenizer.from_json(text, SpecialTokens(eos_token_ids=eos)), length)
    except OSError as error:
        raise InvalidArgument(f"model '{source.name}': {error}") from None
    except ServerError:
        raise
