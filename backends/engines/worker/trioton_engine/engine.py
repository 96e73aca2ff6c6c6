"""The engine port: the interface between the server and a library that generates tokens.

An engine gets prompts as token ids and gives token ids back; text is the server's. It runs in a worker process of its
own, in whose main thread all methods are called, one at a time:

    load → (submit | abort | step | stats | add_adapter | remove_adapter | sleep | wake | check | …)* → close

`step` is called as long as a generation has not ended, and moves all generations on. It may take its time, and hold the
interpreter's lock: nothing else runs in the process. What it raises ends the process: the generations that it had fail,
and the server starts a new one.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

# How a generation ends: at a stop token, at its greatest length, aborted, or failed.
FINISHED = ("stop", "length", "abort", "error")


class Refused(Exception):
    """The engine cannot do what one generation asks for; the text says what, and is the client's error."""


@dataclass(frozen=True)
class Adapter:
    """A LoRA adapter by its name.

    Attributes:
        name: by which requests choose it.
        path: its folder.
    """

    name: str
    path: str


@dataclass(frozen=True)
class EngineModel:
    """What an engine is to load.

    Attributes:
        name: the model's name, for texts.
        directory: the folder with the engine's files.
        options: the engine's own options, by name; their values are as JSON has them, or texts from `config.pbtxt`.
        adapters: those that are known from the start.
        context_length: the greatest number of tokens of prompt and output together that the configuration wants; 0
            where it does not say.
        device: where the model is to run, "CPU", or "GPU" with the number of one behind a point; empty where the
            engine is to choose.
        tokenizer: the folder of the tokenizer; empty for `directory`.
    """

    name: str
    directory: str
    options: Mapping[str, object] = field(default_factory=dict)
    adapters: Sequence[Adapter] = ()
    context_length: int = 0
    device: str = ""
    tokenizer: str = ""


@dataclass(frozen=True)
class EngineInfo:
    """What an engine says of itself and of the model that it has loaded.

    Attributes:
        features: the names of the fields of `Sampling` that it honours, and of structures as
            `structure.<kind of Structure>`, `adapter` where it has adapters, `images` where it sees pictures, and
            `sleep` where it can sleep. A request that uses another one is refused by its name, and the engine never
            sees it.
        context_length: the greatest number of tokens of prompt and output together; 0 where it has no limit.
        most_logprobs: how many of the likeliest tokens it can report at each place, beside the chosen one.
        sequences: how many generations it runs at once; more wait within it. 0 where there is no limit.
        adapters: how many adapters it has in memory at once; 0 where it has none, or no limit.
    """

    features: frozenset[str] = frozenset()
    context_length: int = 0
    most_logprobs: int = 0
    sequences: int = 0
    adapters: int = 0


@dataclass(frozen=True)
class Structure:
    """The form that the output must have.

    Attributes:
        kind: "json" (a JSON schema as text), "json_object" (any JSON object), "regex", "grammar" (EBNF), "choice" (a
            JSON list of texts as text), or "structural_tag".
        value: the schema, expression, grammar or list.
    """

    kind: str
    value: str


@dataclass(frozen=True)
class Sampling:
    """How tokens are chosen, and when it ends. None and empty values stand for what was not asked for.

    Attributes:
        max_tokens: the greatest number of new tokens; always given.
        min_tokens: no stop token ends it before so many.
        temperature: 0 for the likeliest token always.
        top_p: the likeliest tokens that have so much probability together.
        top_k: so many of the likeliest tokens; 0 or -1 for all.
        min_p: tokens that have at least this part of the likeliest one's probability.
        seed: the same one gives the same tokens.
        presence_penalty: against tokens that the output has.
        frequency_penalty: the same, for each time that it has them.
        repetition_penalty: a factor against tokens that prompt or output have; 1 for none.
        stop_token_ids: tokens that end it, beside the model's own.
        ignore_eos: the model's own do not end it.
        logprobs: report the chosen tokens' log probabilities, and those of so many of the likeliest; None for neither.
        logit_bias: what is added to tokens' logits.
        bad_words: texts that the output must not have.
        structure: the form of the output.
    """

    max_tokens: int
    min_tokens: int = 0
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    stop_token_ids: Sequence[int] = ()
    ignore_eos: bool = False
    logprobs: int | None = None
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    bad_words: Sequence[str] = ()
    structure: Structure | None = None


@dataclass(frozen=True)
class Image:
    """A picture. `pixels` has three bytes for each, red, green and blue, row by row from the top left."""

    width: int
    height: int
    pixels: bytes | memoryview


@dataclass(frozen=True)
class Generation:
    """One request to an engine.

    Attributes:
        sequence: its number, which its events have too; used once.
        token_ids: the prompt.
        sampling: how it goes on from there.
        adapter: the name of an adapter; empty for none.
        priority: the lower first, where the engine has priorities.
        text: the prompt as a text, for an engine with the feature `images`; without the special token in front that
            its tokenizer adds.
        images: what it sees, in the order of their places in the text.
    """

    sequence: int
    token_ids: Sequence[int]
    sampling: Sampling
    adapter: str = ""
    priority: int = 0
    text: str = ""
    images: Sequence[Image] = ()


class TokenLogprob(NamedTuple):
    """The log probability of one chosen token.

    Attributes:
        logprob: its natural logarithm.
        rank: its place among all tokens by probability, 1 for the likeliest; 0 where the engine does not say.
        top: the likeliest tokens there, each with its log probability, the likeliest first.
    """

    logprob: float
    rank: int = 0
    top: Sequence[tuple[int, float]] = ()


class Event(NamedTuple):
    """What a step has brought one generation.

    Attributes:
        sequence: the generation's number.
        token_ids: the new tokens, also the stop token that has ended it.
        finish: how it has ended, one of `FINISHED`; empty while it goes on. After that no event has its number.
        stop_token: the stop token, where one has ended it and is the last of `token_ids`.
        logprobs: one for each new token, where they are wanted.
        cached_tokens: how many tokens of the prompt were computed before; said once, with the first tokens; -1 where
            the engine does not know.
        error: why it has failed, where `finish` is "error".
        is_refused: the failure is the client's mistake.
        queued_seconds: how long it has waited within the engine before it was computed; said once, with the first
            tokens; 0 where the engine does not know.
        prompt_tokens: how many tokens the prompt has with what pictures take of it; said once, with `finish`; 0 where
            it saw none, or the engine does not know.
    """

    sequence: int
    token_ids: Sequence[int] = ()
    finish: str = ""
    stop_token: int | None = None
    logprobs: Sequence[TokenLogprob] = ()
    cached_tokens: int = -1
    error: str = ""
    is_refused: bool = False
    queued_seconds: float = 0.0
    prompt_tokens: int = 0


class Stats(NamedTuple):
    """The engine's load, now.

    Attributes:
        running: generations that are computed.
        waiting: generations that wait for room within the engine.
        cache_usage: the part of the key-value cache that is in use, from 0 to 1.
        cache_blocks: how many blocks the cache has; 0 where that is unknown, or it grows.
        block_tokens: how many tokens a block holds.
        preemptions: how often a generation had to give up its blocks, since the start.
        prefix_queries: how many prompt tokens were looked up in the cache, since the start.
        prefix_hits: how many of them were there.
    """

    running: int = 0
    waiting: int = 0
    cache_usage: float = 0.0
    cache_blocks: int = 0
    block_tokens: int = 0
    preemptions: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0


class Engine(abc.ABC):
    """A library that generates tokens, for one model. The constructor takes nothing, and loads nothing."""

    @abc.abstractmethod
    def load(self, model: EngineModel) -> EngineInfo:
        """Load the model, for as long as that takes; called once, first. An exception's text is the load's error. An
        option that it does not know is such an error."""

    @abc.abstractmethod
    def submit(self, generation: Generation) -> None:
        """Take a generation, without waiting for it. Raises `Refused` where it cannot do what is asked for."""

    @abc.abstractmethod
    def abort(self, sequence: int) -> None:
        """End a generation early, and free what it holds by the end of the next `step`, which says so by an event with
        `finish` "abort". One that has ended is ignored."""

    @abc.abstractmethod
    def step(self, wake: int) -> Sequence[Event]:
        """Move the generations on, by one token each if that is possible, and return what has come. Called only while
        there are some. One that waits for something must return when the descriptor `wake` becomes readable: somebody
        has something to say."""

    @abc.abstractmethod
    def stats(self) -> Stats:
        """Its load; called after each step, so it must be cheap."""

    @abc.abstractmethod
    def close(self) -> None:
        """Free everything; the process ends after that. Also called after a failed `load`."""

    def add_adapter(self, adapter: Adapter) -> None:
        """Load an adapter, or learn of it; there is none of its name. What is raised is the client's error, and the
        engine is then as it was."""
        raise Refused("this engine has no adapters")

    def remove_adapter(self, name: str) -> None:
        """Forget an adapter, which no generation uses. Raises `Refused`."""
        raise Refused("this engine has no adapters")

    def adapters(self) -> Sequence[Adapter]:
        """Those that generations may use now."""
        return ()

    def sleep(self, level: int) -> None:
        """Give memory back until `wake` is called: with level 1 what can be had again without the files, with level 2
        all of it. There are no generations, and none come. Only called with the feature `sleep`; without it the process
        ends, and another one is started in its place."""
        raise Refused("this engine cannot sleep")

    def wake(self) -> None:
        """End the sleep."""
        raise Refused("this engine cannot sleep")

    def reset_prefix_cache(self) -> None:
        """Forget the prefixes of prompts that are kept, for all that begins from now on."""
        raise Refused("this engine has no prefixes that it could forget")

    def check(self) -> str:
        """What is wrong with it; empty while it can serve."""
        return ""
