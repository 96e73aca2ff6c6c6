"""Frames between the server and an engine's worker. Shared by both sides; no I/O.

They have the form that `trioton_worker.frames` describes, with kinds of their own beside some of those:

    server → worker                                  worker → server
    INITIALIZE  load the model                       DONE (with the engine's description) or FAILED
    FINALIZE    close the engine, then exit          DONE or FAILED
    SUBMIT      one generation
    ABORT       end these generations
                                                     STEP      what a step has brought, and the engine's load
    CONTROL     add or remove an adapter, …          CONTROLLED
    CHECK       say what is wrong with the engine    CHECKED

CONTROL asks for what is done beside generations: its head has a `number`, which the answer has too, `do`, one of
`CONTROLS`, and what that needs. CONTROLLED has the adapters that there are then, and an `error` where it was not done.

The column of SUBMIT has the prompt's token ids, its body the pixels of all pictures, its head the rest. The column of
ABORT has the sequences' numbers.

The column of STEP has the engine's load (`Stats`, its cache usage in millionths), the number of events, and for each
event the sequence's number, how it ended (0 for not yet, else the place in `FINISHED` plus 1), the stop token or -1,
the number of cached tokens or -1, the number of new tokens, and these tokens. Its head is there only where some events
have more: `logprobs`, `errors`, `queued` (seconds) and `prompts` (tokens) have it by the event's place.
"""

from __future__ import annotations

import array
from collections.abc import Mapping, Sequence
from typing import Any

from .engine import FINISHED, Event, Generation, Image, Sampling, Stats, Structure, TokenLogprob

SUBMIT, ABORT, CONTROL = 11, 12, 13
STEP, CONTROLLED = 28, 29
CONTROLS = ("add_adapter", "remove_adapter", "sleep", "wake", "reset_prefix_cache")

_FINISH_CODES = {"": 0, **{name: place for place, name in enumerate(FINISHED, start=1)}}
_FINISHES = ("", *FINISHED)
_STATS = len(Stats._fields)
_USAGE = Stats._fields.index("cache_usage")
_MILLION = 1_000_000


class BadStep(ValueError):
    """A STEP frame is not as it must be."""


def encode_column(numbers: Sequence[int]) -> bytes:
    """A frame's column."""
    return array.array("q", numbers).tobytes()


def encode_submission(generation: Generation) -> dict[str, Any]:
    """The head of SUBMIT: fields that have their default are left out."""
    sampling = generation.sampling
    asked = {name: value for name, value in vars(sampling).items() if value != _DEFAULTS.get(name)}
    if sampling.structure is not None:
        asked["structure"] = [sampling.structure.kind, sampling.structure.value]
    if sampling.logit_bias:
        asked["logit_bias"] = list(sampling.logit_bias.items())
    head: dict[str, Any] = {"sequence": generation.sequence, "sampling": asked}
    if generation.adapter:
        head["adapter"] = generation.adapter
    if generation.priority:
        head["priority"] = generation.priority
    if generation.text:
        head["text"] = generation.text
    if generation.images:
        head["images"] = [[each.width, each.height] for each in generation.images]
    return head


def decode_submission(head: Mapping[str, Any], token_ids: Sequence[int], pixels: Any = b"") -> Generation:
    """The generation of a SUBMIT frame."""
    images = []
    data = memoryview(pixels)
    for width, height in head.get("images", ()):
        size = 3 * width * height
        images.append(Image(width, height, data[:size]))
        data = data[size:]
    asked = dict(head["sampling"])
    if "structure" in asked:
        asked["structure"] = Structure(*asked["structure"])
    if "logit_bias" in asked:
        asked["logit_bias"] = dict(asked["logit_bias"])
    return Generation(
        head["sequence"],
        token_ids,
        Sampling(**asked),
        head.get("adapter", ""),
        int(head.get("priority", 0)),
        head.get("text", ""),
        images,
    )


_DEFAULTS = vars(Sampling(max_tokens=-1))


def encode_step(events: Sequence[Event], stats: Stats) -> tuple[list[int], dict[str, Any]]:
    """The column and the head of STEP."""
    column = [*map(int, stats), len(events)]
    column[_USAGE] = int(stats.cache_usage * _MILLION)
    logprobs: dict[int, Any] = {}
    errors: dict[int, Any] = {}
    queued: dict[int, float] = {}
    prompts: dict[int, int] = {}
    for place, event in enumerate(events):
        tokens = event.token_ids
        stop = -1 if event.stop_token is None else event.stop_token
        column += (event.sequence, _FINISH_CODES[event.finish], stop, event.cached_tokens, len(tokens))
        column += tokens
        if event.logprobs:
            logprobs[place] = event.logprobs
        if event.error:
            errors[place] = (event.error, event.is_refused)
        if event.queued_seconds:
            queued[place] = event.queued_seconds
        if event.prompt_tokens:
            prompts[place] = event.prompt_tokens
    head: dict[str, Any] = {}
    if logprobs:
        head["logprobs"] = logprobs
    if errors:
        head["errors"] = errors
    if queued:
        head["queued"] = queued
    if prompts:
        head["prompts"] = prompts
    return column, head


def decode_step(column: Sequence[int], head: Mapping[str, Any]) -> tuple[list[Event], Stats]:
    """The events and the load of a STEP frame. Raises BadStep."""
    end = len(column)
    if end <= _STATS:
        raise BadStep(f"it has {end} numbers, fewer than the engine's load takes")
    usage = column[_USAGE] / _MILLION
    stats = Stats._make((*column[:_USAGE], usage, *column[_USAGE + 1 : _STATS]))
    more = [head.get(name, {}) for name in ("logprobs", "errors", "queued", "prompts")]
    events = []
    position = _STATS + 1
    for place in range(column[_STATS]):
        try:
            sequence, finish, stop, cached, count = column[position : position + 5]
            name = _FINISHES[finish]
        except (ValueError, IndexError):
            raise BadStep(f"its event {place} is cut off, or ends in an unknown way") from None
        first = position + 5
        position = first + count
        if count < 0 or position > end:
            raise BadStep(f"its event {place} claims {count} tokens")
        event = Event(sequence, column[first:position], name, None if stop < 0 else stop, (), cached)
        if head:
            key = str(place)
            event = _with_more(event, *(each.get(key) for each in more))
        events.append(event)
    if position != end:
        raise BadStep(f"it has {end - position} numbers behind its events")
    return events, stats


def _with_more(event: Event, logprobs: Any, error: Any, queued: Any, prompt: Any) -> Event:
    try:
        found = tuple(TokenLogprob(each[0], each[1], tuple(map(tuple, each[2]))) for each in logprobs or ())
        text, is_refused = error or ("", False)
        seconds, tokens = float(queued or 0), int(prompt or 0)
    except (TypeError, ValueError, IndexError):
        raise BadStep("its head is not as it must be") from None
    return event._replace(
        logprobs=found, error=text, is_refused=is_refused, queued_seconds=seconds, prompt_tokens=tokens
    )
