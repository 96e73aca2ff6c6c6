"""Answers: tokens become text and responses, however they were cut."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backends.engines.answer import Answer
from backends.engines.tensors.request import AnswerOptions
from backends.engines.worker.trioton_engine.engine import Event, TokenLogprob
from protocol.messages import InferenceRequest, InferenceResponse
from tests.backends.engines.models import tiny_tokenizer

TOKENIZER = tiny_tokenizer()
EOS = TOKENIZER.eos_token_ids[0]
TEXT = "A größer 🙂 model repository is a folder of models, and the scheduler has a queue."


def tokens_of(text: str) -> list[int]:
    return TOKENIZER.encode(text, add_special_tokens=False)


def answer(prompt: str = "prompt", *, parameters: dict[str, Any] | None = None, **options: Any) -> Answer:
    request = InferenceRequest("m", [], id="7", parameters=parameters or {})
    min_tokens = options.pop("min_tokens", 0)
    return Answer(
        request,
        AnswerOptions(**options),
        TOKENIZER,
        prompt=prompt,
        prompt_tokens=3,
        version=4,
        min_tokens=min_tokens,
    )


def outputs(response: InferenceResponse) -> dict[str, Any]:
    found = {}
    for tensor in response.outputs:
        [value] = tensor.as_numpy().reshape(-1)
        found[tensor.name] = value.decode() if isinstance(value, bytes) else value.item()
    return found


def streamed(made: Answer, tokens: Sequence[int], last: str = "length") -> list[dict[str, Any]]:
    """One event for each token, and what may be sent after each."""
    found = []
    for place, token in enumerate(tokens, start=1):
        finish = last if place == len(tokens) else ""
        made.push(Event(1, (token,), finish, token if finish == "stop" else None))
        if made.has_news:
            found.append(outputs(made.take()))
        if made.finish:
            break
    return found


@pytest.mark.parametrize("has_prompt", [True, False])
def test_a_whole_answer_is_one_response(has_prompt: bool) -> None:
    made = answer(has_prompt=has_prompt, extras=frozenset({"finish_reason", "num_input_tokens", "num_output_tokens"}))
    tokens = tokens_of(TEXT)
    [only] = streamed(made, tokens)
    assert only == {
        "text_output": ("prompt" if has_prompt else "") + TEXT,
        "finish_reason": "length",
        "num_input_tokens": 3,
        "num_output_tokens": len(tokens),
    }


def test_the_responses_of_a_stream_joined_are_the_whole_text() -> None:
    made = answer(is_streaming=True, extras=frozenset({"finish_reason", "num_output_tokens"}))
    tokens = [*tokens_of(TEXT), EOS]
    found = streamed(made, tokens, "stop")
    assert "".join(each["text_output"] for each in found) == TEXT
    assert sum(each["num_output_tokens"] for each in found) == len(tokens), "the stop token counts"
    assert [each["finish_reason"] for each in found] == [*[""] * (len(found) - 1), "stop"]


def test_what_waits_for_a_slow_client_is_joined() -> None:
    made = answer(is_streaming=True, extras=frozenset({"num_output_tokens"}))
    tokens = tokens_of(TEXT)
    for token in tokens:
        made.push(Event(1, (token,)))
    made.push(Event(1, (), "length"))
    assert outputs(made.take()) == {"text_output": TEXT, "num_output_tokens": len(tokens)}


def test_a_stop_token_of_the_request_is_shown_only_where_that_is_asked_for() -> None:
    tokens = tokens_of("one two")
    shown = [streamed(answer(includes_stop=include), tokens, "stop")[-1]["text_output"] for include in (False, True)]
    assert shown == [TOKENIZER.decode(tokens[:-1]), "one two"]


@pytest.mark.parametrize(
    ("stop", "text"),
    [
        (("repository",), "A größer 🙂 model "),
        (("zzz", "older of"), "A größer 🙂 model repository is a f"),
        ((" 🙂",), "A größer"),
        (("queue.",), TEXT.removesuffix("queue.")),
        (("nothing of it",), TEXT),
    ],
)
def test_stop_strings_across_tokens(stop: tuple[str, ...], text: str) -> None:
    for is_streaming in (False, True):
        made = answer(is_streaming=is_streaming, stop=stop, extras=frozenset({"finish_reason"}))
        found = streamed(made, tokens_of(TEXT))
        assert "".join(each["text_output"] for each in found) == text
        assert found[-1]["finish_reason"] == ("length" if text == TEXT else "stop")


def test_a_stop_string_counts_only_behind_the_least_tokens() -> None:
    tokens = tokens_of("one two one two three")
    made = answer(stop=("two",), min_tokens=3)
    [only] = streamed(made, tokens)
    assert only["text_output"].startswith("one two")
    assert len(only["text_output"]) > len("one two")


def test_what_pictures_take_of_a_prompt_is_counted_at_the_end() -> None:
    made = answer(extras=frozenset({"num_input_tokens"}), known=("num_input_tokens",), is_streaming=True)
    made.push(Event(1, tokens_of("one")))
    assert outputs(made.take())["num_input_tokens"] == 3
    made.push(Event(1, tokens_of("two"), "length", prompt_tokens=600))
    assert outputs(made.take())["num_input_tokens"] == made.prompt_tokens == 600


def test_the_details_of_the_end_come_as_parameters_where_they_are_asked_for() -> None:
    made = answer(stop=("two",), parameters={"return_details": True})
    made.push(Event(1, tokens_of("one two"), cached_tokens=2))
    assert made.was_cut
    assert made.take().parameters == {"stop_reason": "two", "cached_tokens": 2}
    made = answer(parameters={"return_details": True})
    made.push(Event(1, (5, 9), "stop", 9))
    assert made.take().parameters == {"stop_reason": 9}
    made = answer()
    made.push(Event(1, (5, 9), "stop", 9, cached_tokens=3))
    assert made.take().parameters == {}


def test_logprobs_are_those_of_the_tokens_that_are_told() -> None:
    made = answer(is_streaming=True, extras=frozenset({"logprobs", "cumulative_logprob"}))
    first, second = tokens_of("A model")[:2]
    made.push(Event(1, (first,), logprobs=[TokenLogprob(-0.5, 1, [(first, -0.5), (second, -1.0)])]))
    found = outputs(made.take())
    assert found["cumulative_logprob"] == -0.5
    assert json.loads(found["logprobs"]) == [
        {
            str(first): {"logprob": -0.5, "rank": 1, "decoded_token": "A"},
            str(second): {"logprob": -1.0, "rank": 2, "decoded_token": " model"},
        }
    ]
    made.push(Event(1, (second,), "length", logprobs=[TokenLogprob(-2.0)]))
    found = outputs(made.take())
    assert found["cumulative_logprob"] == -2.5
    assert json.loads(found["logprobs"]) == [{str(second): {"logprob": -2.0, "rank": None, "decoded_token": " model"}}]


def test_only_the_outputs_that_a_request_names() -> None:
    request = InferenceRequest("m", [], requested_outputs=("finish_reason",))
    made = Answer(request, AnswerOptions(), TOKENIZER, prompt="", prompt_tokens=1, version=1)
    made.push(Event(1, (5,), "length"))
    assert outputs(made.take()) == {"finish_reason": "length"}


@given(
    st.text(max_size=60),
    st.lists(st.integers(1, 7), min_size=1, max_size=20),
    st.sampled_from([(), ("a",), ("e ", "🙂")]),
)
def test_any_cutting_gives_the_same_text(text: str, sizes: list[int], stop: tuple[str, ...]) -> None:
    tokens = tokens_of(text)
    whole = answer("", stop=stop)
    whole.push(Event(1, tokens, "length"))
    cut = answer("", is_streaming=True, stop=stop)
    shown, place = "", 0
    for size in [*sizes, len(tokens) + 1]:
        piece = tokens[place : place + size]
        place += size
        cut.push(Event(1, piece, "length" if place >= len(tokens) else ""))
        if cut.has_news:
            shown += outputs(cut.take())["text_output"]
        if cut.finish:
            break
    assert shown == outputs(whole.take())["text_output"]
