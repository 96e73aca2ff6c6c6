"""One pipeline of OpenVINO GenAI: the generations that run in it, and what each of its steps has brought them.

A cancelled request frees its blocks with the next step, and one whose handle is dropped is cancelled. One that does not
fit into the cache ends as IGNORED, without a word. Calls of the library are few and only made where they can tell
something new: after a step the processor's caches have the model in them, and each call takes ten times as long as in a
loop.
"""

from __future__ import annotations

import random
from collections.abc import Collection
from typing import Any

import numpy as np
import openvino
import openvino_genai as genai

from .engine import Event, Generation, Image, Refused, Sampling, TokenLogprob
from .structures import reason_of, structured

_LARGEST_SEED = 1 << 63
_FINISHES = {genai.GenerationFinishReason.STOP: "stop", genai.GenerationFinishReason.LENGTH: "length"}


class _Running:
    """A generation in the pipeline."""

    __slots__ = ("generation", "handle", "is_aborted", "left", "stop_ids", "wants_logprobs")

    def __init__(self, generation: Generation, handle: Any, stop_ids: Collection[int]) -> None:
        self.generation = generation
        self.handle = handle
        self.stop_ids = stop_ids  # after which it may have ended
        self.wants_logprobs = generation.sampling.logprobs is not None
        self.is_aborted = False
        self.left = generation.sampling.max_tokens


class Pipeline:
    """A pipeline as the library has made it. `temperature` is for generations that do not say; one that `sees` takes
    texts and pictures in place of token ids.

    Attributes:
        cache_usage: the part of its cache that was in use after the last step, from 0 to 1.
        unscheduled: how many generations the last step has left out.
        has_stop: whether the model has a token of its own that ends a generation.
    """

    def __init__(self, made: Any, *, temperature: float, sees: bool) -> None:
        self._made = made
        self._temperature = temperature
        self._sees = sees
        self._running: dict[int, _Running] = {}
        config = made.get_config()
        self._eos = config.eos_token_id
        self._stop_ids = set(config.stop_token_ids) | ({config.eos_token_id} - {-1})
        self.has_stop = bool(self._stop_ids)
        self.cache_usage = 0.0
        self.unscheduled = 0

    @property
    def is_idle(self) -> bool:
        return not self._running

    def start(self, generation: Generation) -> None:
        """Raises Refused."""
        config = self._config(generation.sampling)
        sequence, add = generation.sequence, self._made.add_request
        try:
            if self._sees:
                config.apply_chat_template = False
                handle = add(sequence, generation.text, [_picture(each) for each in generation.images], config)
            else:
                handle = add(sequence, openvino.Tensor(np.array([generation.token_ids], dtype=np.int64)), config)
        except RuntimeError as error:  # its checks of the configuration
            raise Refused(reason_of(error)) from None
        self._running[sequence] = _Running(generation, handle, self._stop_ids.union(generation.sampling.stop_token_ids))

    def abort(self, sequence: int) -> None:
        """End a generation with the next step."""
        running = self._running[sequence]
        running.is_aborted = True
        running.handle.cancel()

    def cancel_all(self) -> None:
        for running in self._running.values():
            running.handle.cancel()

    def step(self) -> list[Event]:
        """Called while there are generations. What it raises, the pipeline does not outlive."""
        made, running = self._made, self._running
        made.step()
        events = []
        ended = []
        for each in running.values():
            event = _read(each)
            if event is not None:
                events.append(event)
                if event.finish:
                    ended.append(event.sequence)
        if ended:
            if len(ended) == len(running):
                made.step()  # does nothing but say that the cache is free
            for sequence in ended:
                del running[sequence]
        metrics = made.get_metrics()
        self.cache_usage = metrics.cache_usage / 100
        self.unscheduled = metrics.requests - metrics.scheduled_requests
        return events

    def _config(self, sampling: Sampling) -> Any:
        config = genai.GenerationConfig()
        config.max_new_tokens = sampling.max_tokens
        config.min_new_tokens = sampling.min_tokens
        config.ignore_eos = sampling.ignore_eos
        stop_ids = set(sampling.stop_token_ids)
        if self._eos != -1:
            config.stop_token_ids = stop_ids | self._stop_ids
            config.set_eos_token_id(self._eos)
        else:
            config.stop_token_ids = stop_ids
        temperature = self._temperature if sampling.temperature is None else sampling.temperature
        config.do_sample = temperature > 0
        if temperature > 0:
            config.temperature = temperature
            config.rng_seed = random.getrandbits(63) if sampling.seed is None else sampling.seed % _LARGEST_SEED
            for name in ("top_p", "min_p"):
                if (value := getattr(sampling, name)) is not None:
                    setattr(config, name, value)
            if sampling.top_k is not None and sampling.top_k > 0:
                config.top_k = sampling.top_k
        for name in ("presence_penalty", "frequency_penalty", "repetition_penalty"):
            if (value := getattr(sampling, name)) is not None:
                setattr(config, name, value)
        if sampling.logprobs is not None:
            config.logprobs = 1
        if sampling.structure is not None:
            config.structured_output_config = structured(sampling.structure)
        return config


def _read(running: _Running) -> Event | None:
    """What a step has brought a generation, if anything."""
    sequence = running.generation.sequence
    if running.is_aborted:
        return Event(sequence, finish="abort")
    handle = running.handle
    tokens: list[int] = []
    logprobs: list[TokenLogprob] = []
    finish = ""
    if handle.can_read():  # a step brings one output
        for output in handle.read().values():
            tokens = output.generated_ids
            if running.wants_logprobs:
                logprobs = [TokenLogprob(each) for each in output.generated_log_probs]
            running.left -= len(tokens)
            if running.left <= 0 or (tokens and tokens[-1] in running.stop_ids):
                finish = _FINISHES.get(output.finish_reason, "")
    if not tokens and not finish:  # what ends in another way is seen after its last tokens
        status = handle.get_status()
        if status == genai.GenerationStatus.RUNNING:
            return None
        finish = _finish_of(status, running)
    if finish == "error":
        prompt = len(running.generation.token_ids)
        return Event(sequence, tokens, finish, error=f"a prompt of {prompt} tokens does not fit into the cache")
    if not finish:
        return Event(sequence, tokens, "", None, logprobs)
    stop = tokens[-1] if finish == "stop" and tokens else None
    seen = _prompt_tokens(handle) if running.generation.images else 0
    return Event(sequence, tokens, finish, stop, logprobs, prompt_tokens=seen)


def _finish_of(status: Any, running: _Running) -> str:
    """Of a generation without a reason of its own: what does not fit into the cache, perhaps no more."""
    if status == genai.GenerationStatus.IGNORED:
        return "length" if running.left < running.generation.sampling.max_tokens else "error"
    return "stop"


def _prompt_tokens(handle: Any) -> int:
    """Of a generation that has ended, with what its pictures have taken; 0 where the library does not say."""
    try:
        return int(handle.get_perf_metrics().get_num_input_tokens())
    except (AttributeError, RuntimeError):  # of older releases; of one that was cut off for want of cache
        return 0


def _picture(image: Image) -> Any:
    pixels = np.frombuffer(image.pixels, np.uint8)
    return openvino.Tensor(pixels.reshape(1, image.height, image.width, 3))
