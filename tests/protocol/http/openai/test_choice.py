"""The text of a choice: counts, ends, and stop strings that a model does not know."""

from __future__ import annotations

import pytest

from protocol.errors import Cancelled
from protocol.http.openai.choice import ChoiceText
from protocol.http.openai.codec.chunks import Usage
from protocol.http.openai.codec.tensors import TextPart
from protocol.http.openai.prompts import Prompt
from protocol.http.openai.usage import total_usage
from protocol.text.model import TextModel
from protocol.text.stop_strings import StopStrings
from tests.protocol.http.openai.words import word_tokenizer


def test_counts() -> None:
    choice = ChoiceText()
    assert choice.take(TextPart("a", "", None, 3, 1)) == "a"
    assert choice.take(TextPart("b", "length", None, 3, 2)) == "b"
    assert (choice.input_tokens, choice.output_tokens, choice.finish_reason) == (3, 3, "length")


@pytest.mark.parametrize(("reason", "shown"), [("stop", "stop"), ("length", "length"), ("eos", "stop")])
def test_reasons(reason: str, shown: str) -> None:
    choice = ChoiceText()
    choice.take(TextPart(finish_reason=reason))
    assert choice.finish_reason == shown


def test_an_engine_that_gives_up_has_not_stopped() -> None:
    with pytest.raises(Cancelled, match="aborted"):
        ChoiceText().take(TextPart(finish_reason="abort"))


@pytest.mark.parametrize(("most", "reason"), [(None, "stop"), (2, "length"), (3, "stop"), (0, "stop")])
def test_a_model_that_does_not_say_why_it_ends(most: int | None, reason: str) -> None:
    choice = ChoiceText(max_tokens=most)
    choice.take(TextPart("a", output_tokens=2))
    assert choice.end() == ""
    assert choice.finish_reason == reason


def test_stop_strings_across_pieces() -> None:
    choice = ChoiceText(StopStrings(["END"]))
    shown = [choice.take(TextPart(piece)) for piece in ("a E", "N", "D b")]
    assert ("".join(shown), choice.finish_reason, choice.is_stopped) == ("a ", "stop", True)


def test_what_only_looked_like_a_stop_string_is_shown_at_the_end() -> None:
    choice = ChoiceText(StopStrings(["END"]))
    assert choice.take(TextPart("a EN")) + choice.end() == "a EN"
    choice = ChoiceText(StopStrings(["END"]))
    assert choice.take(TextPart("a E")) + choice.take(TextPart("N", "length")) == "a EN"
    assert choice.finish_reason == "length"


def test_usage_counts_each_prompt_once() -> None:
    choices = [ChoiceText() for _ in range(4)]
    for number, choice in enumerate(choices):
        choice.take(TextPart("a", "stop", None, 10 + number // 2, 1))
    assert total_usage(TextModel("m", 1), [Prompt("a"), Prompt("b")], choices) == Usage(21, 4)


def test_usage_by_the_tokenizer() -> None:
    text = TextModel("m", 1, tokenizer=word_tokenizer())
    choice = ChoiceText(keeps=True)
    choice.take(TextPart("hello "))
    choice.take(TextPart("world"))
    choice.end()
    assert total_usage(text, [Prompt("hello")], [choice]) == Usage(1, 2)
    assert total_usage(text, [Prompt("hello", token_ids=[1] * 7)], [choice]) == Usage(7, 2)


def test_usage_that_nobody_knows() -> None:
    assert total_usage(TextModel("m", 1), [Prompt("a")], [ChoiceText()]) is None
