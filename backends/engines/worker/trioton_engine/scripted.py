"""The scripted engine: replays token ids by a rule or a script, at a set pace; for tests and measurements.

Its options, all of them optional:

    rule             "echo" (the prompt's tokens, then a stop), "repeat" (the same over and over), or "script"
    script           the file of the rule "script", in the model's folder: a JSON list of objects with `prompt` (token
                     ids; left out in one for all other prompts), `tokens`, and `finish`; default script.json
    step_seconds     how long a step takes
    load_seconds     how long the load takes
    max_num_seqs     how many generations run at once
    cache_blocks     how many blocks of 16 tokens its pretended cache has
    eos_token_id     the token behind an echo
    crash_token      a prompt with this token has the process end at the third step of its generation
    raise_token      the same, by an exception of `step`
    hang_token       the same, by a step that never ends
    fail_token       a prompt with this token fails, alone
    can_sleep        "true": it sleeps in its process
    adapters         "true": it has adapters, each of which turns the output around
    max_loras        how many of them it says to have in memory at once

An adapter's folder may have a file adapter.json with `error` (it cannot be loaded, for this reason), `once` (true: the
folder can be loaded once only), `load_seconds`, `crash` (true: the process ends), and `rotate` (a number: the output
begins that many tokens later, in place of being turned around).
"""

from __future__ import annotations

import json
import os
import select
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from .engine import Adapter, Engine, EngineInfo, EngineModel, Event, Generation, Refused, Stats, TokenLogprob

BLOCK_TOKENS = 16
_FEATURES = frozenset(
    {
        *("min_tokens", "temperature", "top_p", "top_k", "min_p", "seed", "stop_token_ids", "ignore_eos", "logprobs"),
        *("presence_penalty", "frequency_penalty", "repetition_penalty"),
    }
)
_MOST_LOGPROBS = 5
_REMEMBERED_PROMPTS = 64
_LAST_STEP = 3  # that of a generation that ends the process


class _Running:
    """A generation, and what of it has been replayed."""

    __slots__ = ("generation", "has_begun", "made", "queued_seconds", "stop_token", "submitted", "tokens")

    def __init__(self, generation: Generation, tokens: Iterator[int], stop_token: int | None) -> None:
        self.generation = generation
        self.tokens = tokens
        self.stop_token = stop_token
        self.made = 0
        self.has_begun = False
        self.submitted = time.monotonic()
        self.queued_seconds = 0.0

    @property
    def blocks(self) -> int:
        return -(-(len(self.generation.token_ids) + self.made + 1) // BLOCK_TOKENS)


class ScriptedEngine(Engine):
    """See above."""

    def __init__(self) -> None:
        self._running: dict[int, _Running] = {}
        self._waiting: dict[int, _Running] = {}
        self._aborted: list[int] = []
        self._adapters: dict[str, Adapter] = {}
        self._prompts: deque[tuple[int, ...]] = deque(maxlen=_REMEMBERED_PROMPTS)
        self._looked_up = self._found = 0
        self._is_asleep = False

    def load(self, model: EngineModel) -> EngineInfo:
        options = dict(model.options)
        self._rule = str(options.pop("rule", "echo"))
        script = str(options.pop("script", "script.json"))
        self._step_seconds = float(str(options.pop("step_seconds", 0)))
        load_seconds = float(str(options.pop("load_seconds", 0)))
        self._most = _number(options.pop("max_num_seqs", 256))
        self._blocks = _number(options.pop("cache_blocks", 4096))
        self._eos = _number(options.pop("eos_token_id", 0))
        self._crash, self._raise, self._hang, self._fail = (
            _number(options.pop(f"{what}_token", -1)) for what in ("crash", "raise", "hang", "fail")
        )
        self._most_adapters = _number(options.pop("max_loras", 0))
        options.pop("enable_lora", None)  # the server has looked at it
        self._has_adapters = str(options.pop("adapters", "false")).lower() == "true"
        self._can_sleep = str(options.pop("can_sleep", "false")).lower() == "true"
        if options:
            raise ValueError(f"the scripted engine has no option '{min(options)}'")
        if self._rule not in ("echo", "repeat", "script"):
            raise ValueError(f"the option 'rule' must be echo, repeat or script, got '{self._rule}'")
        self._scripts: dict[tuple[int, ...] | None, Any] = {}
        if self._rule == "script":
            entries = json.loads(Path(model.directory, script).read_text())
            self._scripts = {tuple(each["prompt"]) if "prompt" in each else None: each for each in entries}
        self._adapters = {each.name: each for each in model.adapters}
        time.sleep(load_seconds)
        return EngineInfo(
            _FEATURES | {name for name, has in (("adapter", self._has_adapters), ("sleep", self._can_sleep)) if has},
            context_length=model.context_length,
            most_logprobs=_MOST_LOGPROBS,
            sequences=self._most,
            adapters=self._most_adapters,
        )

    def submit(self, generation: Generation) -> None:
        prompt = tuple(generation.token_ids)
        if self._is_asleep:
            raise RuntimeError("it sleeps")
        if generation.adapter and generation.adapter not in self._adapters:
            raise Refused(f"there is no adapter '{generation.adapter}'")
        if -(-len(prompt) // BLOCK_TOKENS) > self._blocks:
            raise Refused(f"a prompt of {len(prompt)} tokens does not fit into a cache of {self._blocks} blocks")
        tokens, stop_token = self._replay(prompt)
        if generation.adapter:
            places = _adapter_settings(self._adapters[generation.adapter]).get("rotate")
            tokens = tokens[::-1] if places is None else [*tokens[places:], *tokens[:places]]
        endless = self._rule == "repeat" or generation.sampling.ignore_eos
        replayed: Iterator[int] = cycle(tokens) if endless and tokens else iter(tokens)
        self._waiting[generation.sequence] = _Running(generation, replayed, None if endless else stop_token)

    def _replay(self, prompt: tuple[int, ...]) -> tuple[Sequence[int], int | None]:
        if self._rule != "script":
            return prompt, self._eos
        script: Mapping[str, Any] | None = self._scripts.get(prompt, self._scripts.get(None))
        if script is None:
            raise Refused("the script has no such prompt")
        return script["tokens"], self._eos if script.get("finish", "stop") == "stop" else None

    def abort(self, sequence: int) -> None:
        if self._running.pop(sequence, None) or self._waiting.pop(sequence, None):
            self._aborted.append(sequence)

    def step(self, wake: int) -> Sequence[Event]:
        events = [Event(sequence, finish="abort") for sequence in self._aborted]
        self._aborted.clear()
        self._admit()
        if self._step_seconds and self._running:
            time.sleep(self._step_seconds)
        elif not self._running and not events:
            select.select([wake], [], [])
        events += [self._advance(each) for each in list(self._running.values())]
        return events

    def _admit(self) -> None:
        for sequence, each in list(self._waiting.items()):
            if len(self._running) >= self._most or self._used + each.blocks > self._blocks:
                return
            each.queued_seconds = time.monotonic() - each.submitted
            self._running[sequence] = self._waiting.pop(sequence)

    def _advance(self, running: _Running) -> Event:
        generation, sampling = running.generation, running.generation.sampling
        sequence = generation.sequence
        if self._fail in generation.token_ids:
            del self._running[sequence]
            return Event(sequence, finish="error", error="the script wants this generation to fail")
        if running.made + 1 >= _LAST_STEP:
            self._break_off(generation)
        cached = -1 if running.has_begun else self._cached(tuple(generation.token_ids))
        queued = 0.0 if running.has_begun else running.queued_seconds
        running.has_begun = True
        token = next(running.tokens, None)
        if token is None and running.stop_token is None:  # the script has an end, but no stop
            del self._running[sequence]
            return Event(sequence, finish="length", cached_tokens=cached)
        is_stop = token is None or (token in sampling.stop_token_ids and running.made + 1 > sampling.min_tokens)
        token = running.stop_token if token is None else token
        assert token is not None
        running.made += 1
        finish = "stop" if is_stop else "length" if running.made >= sampling.max_tokens else ""
        if finish:
            del self._running[sequence]
        logprobs = () if sampling.logprobs is None else (_logprob(token, sampling.logprobs),)
        stop = token if is_stop else None
        return Event(sequence, (token,), finish, stop, logprobs, cached, queued_seconds=queued)

    def _break_off(self, generation: Generation) -> None:
        if self._crash in generation.token_ids:
            print("the script wants the process to end", flush=True)
            os._exit(3)
        if self._raise in generation.token_ids:
            raise RuntimeError("the script wants the step to fail")
        if self._hang in generation.token_ids:
            print("the script wants the step to hang", flush=True)
            while True:
                time.sleep(60)

    def _cached(self, prompt: tuple[int, ...]) -> int:
        shared = max((_common(prompt, each) for each in self._prompts), default=0)
        found = min(shared, len(prompt) - 1) // BLOCK_TOKENS * BLOCK_TOKENS
        self._prompts.append(prompt)
        self._looked_up += len(prompt)
        self._found += found
        return found

    @property
    def _used(self) -> int:
        return sum(each.blocks for each in self._running.values())

    def stats(self) -> Stats:
        return Stats(
            len(self._running),
            len(self._waiting),
            self._used / self._blocks,
            self._blocks,
            BLOCK_TOKENS,
            prefix_queries=self._looked_up,
            prefix_hits=self._found,
        )

    def add_adapter(self, adapter: Adapter) -> None:
        if not self._has_adapters:
            super().add_adapter(adapter)
        settings = _adapter_settings(adapter)
        time.sleep(settings.get("load_seconds", 0))
        if settings.get("crash"):
            os._exit(3)
        if settings.get("once"):
            Path(adapter.path, "loaded").touch(exist_ok=False)
        if "error" in settings:
            raise Refused(settings["error"])
        self._adapters[adapter.name] = adapter

    def remove_adapter(self, name: str) -> None:
        if self._adapters.pop(name, None) is None:
            raise Refused(f"there is no adapter '{name}'")

    def adapters(self) -> Sequence[Adapter]:
        return tuple(self._adapters.values())

    def sleep(self, level: int) -> None:
        if not self._can_sleep:
            super().sleep(level)
        self._is_asleep = True

    def wake(self) -> None:
        self._is_asleep = False

    def reset_prefix_cache(self) -> None:
        self._prompts.clear()

    def close(self) -> None:
        """There is nothing to free."""


def _adapter_settings(adapter: Adapter) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads(Path(adapter.path, "adapter.json").read_text())
    except FileNotFoundError:
        return {}
    return found


def _number(value: Any) -> int:
    return int(str(value))


def _common(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens both begin with."""
    return next(
        (place for place, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other))
    )


def _logprob(token: int, count: int) -> TokenLogprob:
    top = [(token + place, -0.5 - place) for place in islice(range(_MOST_LOGPROBS), count)]
    return TokenLogprob(-0.5, 1, top)
