"""Truncation of chats: which turns are left out, and what never is."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from protocol.errors import InvalidArgument
from protocol.http.openai.chats.truncation import Message, truncated
from protocol.http.openai.errors import FieldError
from protocol.http.openai.prompts import CONTEXT_EXCEEDED, Prompt

ROLES = {"s": "system", "d": "developer", "u": "user", "a": "assistant", "t": "tool"}


def cut(chat: str, most: int) -> str:
    """Of a chat, one letter for each message, what is left where so many messages fit."""
    messages = [{"role": ROLES[letter], "content": letter} for letter in chat]
    calls = 0

    def make(given: Sequence[Message]) -> Prompt:
        nonlocal calls
        calls += 1
        if len(given) > most:
            raise FieldError("too long", "messages", CONTEXT_EXCEEDED)
        return Prompt("".join(each["content"] for each in given))

    prompt = truncated(messages, make)
    assert calls <= 2 + len(chat).bit_length()
    return prompt.text


@pytest.mark.parametrize(
    ("chat", "most", "left"),
    [
        ("suau", 9, "suau"),
        ("suau", 3, "su"),
        ("suauau", 4, "suau"),
        ("sduatauau", 6, "sduau"),
        ("uatuatu", 4, "uatu"),
        ("uatuatu", 3, "u"),
        ("u" * 1000, 17, "u" * 17),
        ("s" + "ua" * 500 + "u", 4, "suau"),
    ],
)
def test_turns_are_left_out_from_the_oldest_on(chat: str, most: int, left: str) -> None:
    assert cut(chat, most) == left


@pytest.mark.parametrize(("chat", "most"), [("su", 1), ("sua", 2), ("ss", 1), ("", -1), ("ata", 2)])
def test_the_last_turn_and_the_system_stay(chat: str, most: int) -> None:
    with pytest.raises(FieldError, match="too long"):
        cut(chat, most)


def test_other_errors_are_passed_on() -> None:
    def make(messages: Sequence[Message]) -> Prompt:
        raise InvalidArgument("no")

    with pytest.raises(InvalidArgument, match="no"):
        truncated([{"role": "user"}], make)
