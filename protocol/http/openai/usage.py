"""Usage: the tokens of a call, as its model says, or else as its tokenizer counts them. Blocks for long texts."""

from __future__ import annotations

from collections.abc import Sequence

from protocol.http.openai.choice import ChoiceText
from protocol.http.openai.codec.chunks import Usage
from protocol.http.openai.prompts import Prompt
from protocol.text.model import TextModel

# Of English in the vocabularies of today's models.
_CHARACTERS_PER_TOKEN = 4


def total_usage(text: TextModel, prompts: Sequence[Prompt], choices: Sequence[ChoiceText]) -> Usage | None:
    """Each prompt counts once, whatever its choices. None where nobody can count."""
    per_prompt = len(choices) // len(prompts)
    usage = Usage()
    for place, prompt in enumerate(prompts):
        own = choices[place * per_prompt : (place + 1) * per_prompt]
        size = prompt_tokens(text, prompt, own[0])
        if size is None:
            return None
        usage.prompt_tokens += size
        for choice in own:
            usage.completion_tokens += choice.output_tokens or _counted(text, choice.kept)
    return usage


def prompt_tokens(text: TextModel, prompt: Prompt, choice: ChoiceText) -> int | None:
    if choice.input_tokens:
        return choice.input_tokens
    if prompt.size is not None:
        return prompt.size
    if text.tokenizer is None:
        return None
    return len(text.tokenizer.encode(prompt.text, add_special_tokens=prompt.adds_special_tokens))


def estimate(text: str) -> float:
    """The tokens of a text, about, without a tokenizer."""
    return len(text) / _CHARACTERS_PER_TOKEN


def _counted(text: TextModel, output: str) -> int:
    if text.tokenizer is None or not output:
        return 0
    return len(text.tokenizer.encode(output, add_special_tokens=False))
