"""Outputs of vLLM as events, without vLLM: the names of its fields are all that is needed of it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from backends.engines.worker.trioton_engine.engine import (
    Event,
    Generation,
    Image,
    Sampling,
    Structure,
    TokenLogprob,
)
from backends.engines.worker.trioton_engine.vllm_outputs import event_of

TIMES = SimpleNamespace(queued_ts=5.0, scheduled_ts=5.5)


def output(tokens: list[int], reason: str | None = None, *, logprobs: Any = None, **fields: Any) -> SimpleNamespace:
    made = SimpleNamespace(token_ids=tokens, finish_reason=reason, logprobs=logprobs)
    return SimpleNamespace(**{"outputs": [made], "num_cached_tokens": 16, "metrics": TIMES, **fields})


def event(made: SimpleNamespace, *, is_first: bool = False, **sampling: Any) -> Event:
    return event_of(Generation(7, [1], Sampling(max_tokens=9, **sampling)), made, is_first=is_first)


def test_what_is_said_once_comes_with_the_first_tokens() -> None:
    assert event(output([5]), is_first=True) == Event(7, [5], logprobs=[], cached_tokens=16, queued_seconds=0.5)
    assert event(output([5])) == Event(7, [5])
    without = output([5], num_cached_tokens=None, metrics=None)
    assert event(without, is_first=True) == Event(7, [5], logprobs=[])
    aborted = SimpleNamespace(queued_ts=5.0, scheduled_ts=0.0)  # it was never scheduled
    assert event(output([], "abort", metrics=aborted), is_first=True).queued_seconds == 0


@pytest.mark.parametrize(
    ("tokens", "reason", "finish", "stop"),
    [
        ([5, 6], "stop", "stop", 6),
        ([], "stop", "stop", None),
        ([5, 6], "length", "length", None),
        ([], "abort", "abort", None),
        ([5], "repetition", "stop", None),
    ],
)
def test_how_it_ends(tokens: list[int], reason: str, finish: str, stop: int | None) -> None:
    found = event(output(tokens, reason))
    assert (found.token_ids, found.finish, found.stop_token, found.error) == (tokens, finish, stop, "")


def test_what_pictures_take_of_the_prompt_is_told_at_the_end() -> None:
    generation = Generation(7, [1, 2], Sampling(max_tokens=9), images=[Image(1, 1, b"rgb")])
    made = [output([5], reason, prompt_token_ids=[1, 2, 2, 2, 2]) for reason in (None, "length")]
    assert [event_of(generation, each, is_first=False).prompt_tokens for each in made] == [0, 5]
    assert event(made[1]).prompt_tokens == 0, "of a prompt without any it is known"


def test_an_end_that_is_none_of_them() -> None:
    found = event(output([], "error"))
    assert (found.finish, found.error, found.is_refused) == ("error", "vLLM has ended the generation: error", False)
    refused = event(output([], "error"), structure=Structure("json", "{}"))
    assert (refused.error, refused.is_refused) == ("structured_outputs.json cannot be compiled", True)


def test_log_probabilities_by_their_ranks() -> None:
    entries = {
        9: SimpleNamespace(logprob=-2.0, rank=2),
        8: SimpleNamespace(logprob=float("-inf"), rank=3),
        5: SimpleNamespace(logprob=-0.5, rank=1),
    }
    [found] = event(output([9], logprobs=[entries]), logprobs=2).logprobs
    assert found == TokenLogprob(-2.0, 2, [(5, -0.5), (9, -2.0)])
    [excluded] = event(output([8], logprobs=[entries]), logprobs=0).logprobs
    assert excluded == TokenLogprob(-9999.0, 3, [])
