"""Frames of an engine's worker: what one side writes the other one reads, and what is broken is refused."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from backends.engines.worker.trioton_engine.engine import (
    Event,
    Generation,
    Image,
    Sampling,
    Stats,
    Structure,
    TokenLogprob,
)
from backends.engines.worker.trioton_engine.frames import (
    BadStep,
    decode_step,
    decode_submission,
    encode_step,
    encode_submission,
)

STATS = Stats(3, 2, 0.25, 128, 32, 7, 1000, 900)
EVENTS = [
    Event(1, [5, 6, 7]),
    Event(2, [8], "stop", 8, cached_tokens=16),
    Event(3, [], "error", error="it cannot", is_refused=True),
    Event(4, [], "abort"),
    Event(6, [1], queued_seconds=0.25),
    Event(7, [2], "length", prompt_tokens=600),
    Event(5, [9], "length", logprobs=(TokenLogprob(-0.5, 1, ((9, -0.5), (10, -2.0))),)),
]


def test_a_step_as_it_crosses() -> None:
    column, head = encode_step(EVENTS, STATS)
    events, stats = decode_step(column, json.loads(json.dumps(head)))
    assert events == [event._replace(logprobs=tuple(event.logprobs)) for event in EVENTS]
    assert stats == STATS


def test_a_plain_step_has_no_head() -> None:
    assert encode_step(EVENTS[:2], STATS)[1] == {}


def test_a_truncated_step_is_refused_wherever_it_is_cut() -> None:
    column, _ = encode_step(EVENTS[:2], STATS)
    for end in range(len(column)):
        with pytest.raises(BadStep):
            decode_step(column[:end], {})
    with pytest.raises(BadStep, match="1 numbers behind its events"):
        decode_step([*column, 0], {})


@pytest.mark.parametrize("finish", [5, 99])
def test_an_unknown_end_is_refused(finish: int) -> None:
    column, _ = encode_step([Event(1, [5])], STATS)
    column[len(STATS) + 2] = finish
    with pytest.raises(BadStep, match="ends in an unknown way"):
        decode_step(column, {})


@pytest.mark.parametrize(
    "head",
    [
        {"logprobs": {"0": 3}},
        {"logprobs": {"0": [[1]]}},
        {"errors": {"0": "x"}},
        {"queued": {"0": "x"}},
        {"prompts": {"0": "x"}},
    ],
)
def test_a_broken_head_is_refused(head: dict[str, object]) -> None:
    column, _ = encode_step([Event(1, [5])], STATS)
    with pytest.raises(BadStep):
        decode_step(column, head)


@pytest.mark.parametrize(
    "generation",
    [
        Generation(1, (1, 2), Sampling(max_tokens=3)),
        Generation(2, (1,), Sampling(max_tokens=3, temperature=0.0, top_p=0.5, stop_token_ids=[7]), "a", -5),
        Generation(3, (1,), Sampling(max_tokens=3, logit_bias={7: -1.0}, structure=Structure("regex", "a+"))),
        Generation(4, (1,), Sampling(max_tokens=3), text="a", images=[Image(1, 1, b"rgb"), Image(2, 1, b"rgbrgb")]),
    ],
)
def test_a_submission_as_it_crosses(generation: Generation) -> None:
    head = json.loads(json.dumps(encode_submission(generation)))
    pixels = b"".join(each.pixels for each in generation.images)
    assert decode_submission(head, generation.token_ids, pixels) == replace(generation, images=list(generation.images))
