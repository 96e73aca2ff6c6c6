"""Prompts that are made, for language models that no data is given for: random words by a seed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from trioton.perf.data.dataset import Dataset, Step

# Short and common words: about one token each for most tokenizers.
_TEXT = (
    "the of and to in is it that was for on are as with they be at one have this from by hot word but what some we "
    "can out other were all there when up use your how said an each she which do their time if will way about many "
    "then them write would like so these her long make thing see him two has look more day could go come did"
)
_WORDS = _TEXT.split(" ")


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompts:
    """`count` different prompts of `words` words, for answers of `max_tokens` tokens at most; 0 for no bound."""

    seed: int = 0
    count: int = 64
    words: int = 128
    max_tokens: int = 64
    is_chat: bool = True

    def dataset(self, model: str) -> Dataset:
        """Bodies for OpenAI's routes: chats, or completions."""
        bodies = (self._body(model, text) for text in self._texts())
        return Dataset((tuple(Step(body=body) for body in bodies),), is_generated=True)

    def _texts(self) -> Iterator[str]:
        for number in range(self.count):
            drawn = random.Random(f"{self.seed}/{number}")
            yield " ".join(drawn.choices(_WORDS, k=self.words))

    def _body(self, model: str, text: str) -> dict[str, Any]:
        asked: dict[str, Any] = {"messages": [{"role": "user", "content": text}]} if self.is_chat else {"prompt": text}
        bound = {"max_tokens": self.max_tokens} if self.max_tokens else {}
        return {"model": model, **asked, **bound}
