"""Choices of a chat that come as one long text."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

import trio

from protocol.http.openai.chats.choice import READ_AT_ONCE, ChatAnswers, ChatChoice
from protocol.http.openai.choice import ChoiceText
from protocol.http.openai.codec.tensors import TextPart
from protocol.text.deltas import Delta, ToolCallArguments, ToolCallStart
from protocol.text.output_parser import output_parser

CALL = '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>\n'
CALLS = 300


class Shown(ChatChoice):
    """One that keeps what it shows."""

    def __init__(self) -> None:
        ids = count()
        super().__init__(
            ChatAnswers(lambda: output_parser("hermes", id_maker=lambda: f"call_{next(ids)}"), ends_with_calls=True),
            ChoiceText(),
        )
        self.deltas: list[Delta] = []

    async def show(self, deltas: Sequence[Delta]) -> None:
        self.deltas += deltas


async def test_others_run_while_a_long_text_is_read() -> None:
    choice, turns = Shown(), 0

    async def run_beside() -> None:
        nonlocal turns
        while not choice.has_ended:
            turns += 1
            await trio.lowlevel.checkpoint()

    text = CALL * CALLS
    async with trio.open_nursery() as nursery:
        nursery.start_soon(run_beside)
        await choice.take(TextPart(text, "stop"))
    assert turns >= len(text) // READ_AT_ONCE - 2, "one for each piece, whichever of the two tasks ran first"
    starts = [delta for delta in choice.deltas if isinstance(delta, ToolCallStart)]
    assert starts == [ToolCallStart(number, f"call_{number}", "add") for number in range(CALLS)]
    arguments = "".join(delta.text for delta in choice.deltas if isinstance(delta, ToolCallArguments))
    assert arguments == '{"a": 1}' * CALLS
    assert choice.finish_reason == "tool_calls"
