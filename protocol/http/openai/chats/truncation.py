"""Truncation: a chat that the context does not hold loses its oldest turns. Pure, but what makes prompts blocks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from protocol.http.openai.errors import FieldError
from protocol.http.openai.prompts import CONTEXT_EXCEEDED, Prompt

Message = Mapping[str, Any]
_SYSTEM = ("system", "developer")


def truncated(messages: Sequence[Message], make: Callable[[Sequence[Message]], Prompt]) -> Prompt:
    """The prompt of as many of the last turns as fit, each of which begins with what a user says. What the system says
    at the begin stays.

    Raises:
        FieldError: not even the last turn fits; or what else `make` raises.
    """
    whole = _fitting(messages, make)
    if isinstance(whole, Prompt):
        return whole
    fixed = next((place for place, each in enumerate(messages) if each["role"] not in _SYSTEM), len(messages))
    turns = [place for place in range(fixed + 1, len(messages)) if messages[place]["role"] == "user"]
    found: Prompt | None = None
    low, high = 0, len(turns)
    while low < high:
        middle = (low + high) // 2
        prompt = _fitting([*messages[:fixed], *messages[turns[middle] :]], make)
        if isinstance(prompt, Prompt):
            found, high = prompt, middle
        else:
            low = middle + 1
    if found is None:
        raise whole
    return found


def _fitting(messages: Sequence[Message], make: Callable[[Sequence[Message]], Prompt]) -> Prompt | FieldError:
    try:
        return make(messages)
    except FieldError as error:
        if error.code != CONTEXT_EXCEEDED:
            raise
        return error
