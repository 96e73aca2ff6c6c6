"""Special tokens of a model: their texts by role, and the ids that end a generation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class SpecialTokens:
    """What a model's folder says of its special tokens.

    Attributes:
        texts: text by role, as templates name them: `bos_token`, `eos_token`, `pad_token`, `unk_token`, …
        eos_token_ids: a generation ends with any of these.
    """

    texts: Mapping[str, str] = field(default_factory=dict)
    eos_token_ids: tuple[int, ...] = ()
