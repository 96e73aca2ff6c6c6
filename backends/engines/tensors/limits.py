"""Limits of a generation: how many tokens may follow its prompt, and which one goes first. Pure."""

from __future__ import annotations

from protocol.errors import InvalidArgument

# The most new tokens, where neither the request nor a known context says.
_DEFAULT_MAX_TOKENS = 1024


def most_tokens(prompt: int, asked: int | None, context: int, where: str) -> int:
    """How many tokens may follow the prompt: what is asked for, or what the context leaves. Raises InvalidArgument."""
    if not prompt:
        raise InvalidArgument(f"{where}: text_input has no tokens")
    if not context:
        return asked or _DEFAULT_MAX_TOKENS
    if prompt >= context:
        raise InvalidArgument(
            f"{where}: text_input has {prompt} tokens, which leaves no room for others: the context has {context}"
        )
    if asked is not None and prompt + asked > context:
        raise InvalidArgument(
            f"{where}: text_input has {prompt} tokens, and max_tokens is {asked}: together they must not exceed the "
            f"context of {context} tokens"
        )
    return asked or context - prompt


# Requests with a priority of Triton's, where 1 is the first, come before those without.
_LEVELS = 1 << 31


def level(priority: int) -> int:
    """The engine's priority, where the lower is the first, of a request's."""
    return min(priority, _LEVELS) - _LEVELS if priority else 0
