"""vLLM as an engine: AsyncLLM, whose engine process computes while this one takes what it has made.

Its folder is a Hugging Face model. Options are vLLM's engine arguments (`vllm_arguments`), of any of its features.

vLLM wants an asyncio loop: it runs within `step`, until the engine has sent something or the server has, so all stays
in one thread. Each generation is a task that reads one of vLLM's streams; all of them that a step of the engine has
moved on are ready in the same turn of the loop, and so in one frame.

What is to be known of the library: its engine is a process of its own, whose end is the end of this one, and the other
way round (`main`); an aborted request is free when the engine has made another, empty step, and only the engine's
answer to what is asked behind it tells that; priorities are refused where they are not switched on; of adapters, see
`vllm_adapters`.
"""

from __future__ import annotations

import asyncio
import functools
import json
import multiprocessing
import multiprocessing.connection
import os
import threading
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from vllm import SamplingParams
from vllm.exceptions import VLLMClientError
from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError

from .engine import (
    Adapter,
    Engine,
    EngineInfo,
    EngineModel,
    Event,
    Generation,
    Refused,
    Sampling,
    Stats,
    Structure,
    TokenLogprob,
)
from .vllm_adapters import KnownAdapter, VllmAdapters, spare_place
from .vllm_arguments import engine_arguments
from .vllm_load import VllmLoad

T = TypeVar("T")

_FEATURES = frozenset(
    {
        *("min_tokens", "temperature", "top_p", "top_k", "min_p", "seed", "stop_token_ids", "ignore_eos", "logprobs"),
        *("presence_penalty", "frequency_penalty", "repetition_penalty", "logit_bias", "bad_words"),
        *(f"structure.{kind}" for kind in ("json", "json_object", "regex", "grammar", "choice", "structural_tag")),
    }
)
# Fields of `Sampling` that vLLM's parameters have under the same name.
_SAME = (
    *("max_tokens", "min_tokens", "temperature", "top_p", "top_k", "min_p", "seed", "presence_penalty"),
    *("frequency_penalty", "repetition_penalty", "ignore_eos", "logprobs"),
)
_DEFAULTS = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")
_FINISHES = {"stop": "stop", "length": "length", "abort": "abort", "repetition": "stop"}
_LEAST_LOGPROB = -9999.0
_ENVIRONMENT = {
    "VLLM_NO_USAGE_STATS": "1",  # nothing is reported to anybody
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",  # see `main`
    "VLLM_V1_OUTPUT_PROC_CHUNK_SIZE": "4096",  # all of a step at once: nobody else waits for this process
}


class VllmEngine(Engine):
    """See above."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._llm: Any = None
        self._running: dict[int, asyncio.Task[None]] = {}
        self._leaving: set[asyncio.Task[None]] = set()  # aborted
        self._events: list[Event] = []
        self._death: BaseException | None = None
        self._wake = -1
        self._is_closing = False
        self._adapters: VllmAdapters | None = None

    def load(self, model: EngineModel) -> EngineInfo:
        for name, value in _ENVIRONMENT.items():
            os.environ.setdefault(name, value)
        _choose_device(model.device)
        arguments = engine_arguments(model)
        self._has_priorities = arguments.scheduling_policy == "priority"
        most_adapters = spare_place(arguments) if arguments.enable_lora else 0
        self._llm = llm = self._call(_start(arguments))
        watched = [each.sentinel for each in multiprocessing.active_children()]
        threading.Thread(target=self._end_with, args=(watched,), daemon=True).start()
        if arguments.enable_lora:
            self._adapters = VllmAdapters(llm, most_adapters, model.adapters)
        self._load = VllmLoad()
        found = llm.model_config.get_diff_sampling_param()
        self._defaults = {name: found[name] for name in _DEFAULTS if name in found}
        most = llm.model_config.max_logprobs
        features = {"adapter": arguments.enable_lora, "sleep": arguments.enable_sleep_mode}
        return EngineInfo(
            _FEATURES | {feature for feature, is_there in features.items() if is_there},
            context_length=llm.model_config.max_model_len,
            most_logprobs=llm.model_config.get_vocab_size() if most < 0 else most,
            sequences=llm.vllm_config.scheduler_config.max_num_seqs,
            adapters=most_adapters or arguments.max_loras if arguments.enable_lora else 0,
        )

    def _end_with(self, watched: Sequence[int]) -> None:
        """In a thread of its own: this process also ends when nothing runs that would notice."""
        multiprocessing.connection.wait(watched)
        if not self._is_closing:
            print("vLLM's engine process has ended", flush=True)
            os._exit(1)

    def _call(self, work: Coroutine[Any, Any, T]) -> T:
        """Run the loop until something is done."""
        task = self._loop.create_task(work)
        task.add_done_callback(self._stop)
        while not task.done():
            self._loop.run_forever()
        return task.result()

    def _stop(self, *_: object) -> None:
        self._loop.stop()

    def submit(self, generation: Generation) -> None:
        adapter = self._adapters.find(generation.adapter) if self._adapters and generation.adapter else None
        try:
            parameters = sampling_params(generation.sampling, self._defaults)
        except (ValueError, VLLMClientError) as error:
            raise Refused(str(error)) from None
        task = self._loop.create_task(self._generate(generation, parameters, adapter))
        task.add_done_callback(functools.partial(self._ended, generation.sequence, adapter))
        self._running[generation.sequence] = task
        if adapter is not None:
            adapter.users.add(generation.sequence)

    async def _generate(self, generation: Generation, parameters: SamplingParams, adapter: KnownAdapter | None) -> None:
        sequence = generation.sequence
        try:
            lora = await self._adapters.load(adapter) if self._adapters and adapter else None
            async for output in self._llm.generate(
                {"prompt_token_ids": list(generation.token_ids)},
                parameters,
                str(sequence),
                lora_request=lora,
                priority=generation.priority if self._has_priorities else 0,
            ):
                self._put(_event(generation, output))
        except asyncio.CancelledError:
            await self._free()
            raise
        except EngineDeadError:
            raise
        except (ValueError, VLLMClientError, Refused) as error:
            self._put(Event(sequence, finish="error", error=str(error), is_refused=True))
        except Exception as error:
            self._put(Event(sequence, finish="error", error=f"{type(error).__name__}: {error}"))

    async def _free(self) -> None:
        """Wait until the engine has freed what was aborted and has said so, where no other generation has it go on. It
        takes what it is told in turn, and makes a step before it takes more: so the second answer comes behind that
        step's figures."""
        if not self._running:
            for _ in range(2):
                await self._llm.is_sleeping()

    def _ended(self, sequence: int, adapter: KnownAdapter | None, task: asyncio.Task[None]) -> None:
        self._leaving.discard(task)
        if self._adapters and adapter:
            self._adapters.release(adapter, sequence)
        if task.cancelled():  # perhaps before it had begun
            self._put(Event(sequence, finish="abort"))
        elif (error := task.exception()) is not None:
            self._death = error
        self._loop.stop()

    def _put(self, event: Event) -> None:
        if event.finish:
            self._running.pop(event.sequence, None)
        self._events.append(event)
        self._loop.stop()

    def abort(self, sequence: int) -> None:
        task = self._running.pop(sequence, None)
        if task is not None:
            self._leaving.add(task)
            task.cancel()

    def step(self, wake: int) -> Sequence[Event]:
        if wake != self._wake:
            self._wake = wake
            self._loop.add_reader(wake, self._stop)
        if not self._events:
            self._loop.run_forever()
        if self._death is not None:
            raise self._death
        events, self._events = self._events, []
        return events

    def stats(self) -> Stats:
        return self._load.read(is_idle=not self._running)

    def add_adapter(self, adapter: Adapter) -> None:
        if self._adapters is None:
            super().add_adapter(adapter)
        else:
            self._call(self._adapters.add(adapter))

    def remove_adapter(self, name: str) -> None:
        if self._adapters is None:
            super().remove_adapter(name)
        else:
            self._call(self._adapters.remove(name))

    def adapters(self) -> Sequence[Adapter]:
        return () if self._adapters is None else self._adapters.all

    def sleep(self, level: int) -> None:
        self._change(self._llm.sleep(level))

    def wake(self) -> None:
        self._change(self._llm.wake_up())

    def reset_prefix_cache(self) -> None:
        self._change(self._llm.reset_prefix_cache())

    def _change(self, work: Coroutine[Any, Any, object]) -> None:
        try:
            self._call(work)
        except EngineDeadError:
            raise
        except Exception as error:
            raise Refused(f"{type(error).__name__}: {error}") from None

    def check(self) -> str:
        try:
            self._call(self._llm.check_health())
        except EngineDeadError as error:
            return str(error)
        return ""

    def close(self) -> None:
        self._is_closing = True
        if self._llm is not None:
            self._llm.shutdown()


async def _start(arguments: Any) -> Any:
    """To be called within the loop."""
    return AsyncLLM.from_engine_args(arguments)


def _choose_device(device: str) -> None:
    """Show vLLM the one GPU that the instance is for, of those that this process sees."""
    kind, _, number = device.partition(".")
    if kind == "GPU":
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
        os.environ["CUDA_VISIBLE_DEVICES"] = visible[int(number)] if len(visible) > int(number) else number


def sampling_params(sampling: Sampling, defaults: Mapping[str, Any]) -> SamplingParams:
    """vLLM's parameters; `defaults` are those of the model's generation_config.json. Raises ValueError."""
    asked = {name: getattr(sampling, name) for name in _SAME}
    given: dict[str, Any] = {**defaults, **{name: value for name, value in asked.items() if value is not None}}
    if sampling.stop_token_ids:
        given["stop_token_ids"] = list(sampling.stop_token_ids)
    if sampling.logit_bias:
        given["logit_bias"] = dict(sampling.logit_bias)
    if sampling.bad_words:
        given["bad_words"] = list(sampling.bad_words)
    if sampling.structure is not None:
        given["structured_outputs"] = _structured(sampling.structure)
    return SamplingParams(detokenize=False, output_kind=RequestOutputKind.DELTA, **given)


def _structured(structure: Structure) -> StructuredOutputsParams:
    if structure.kind == "json_object":
        return StructuredOutputsParams(json_object=True)
    value = json.loads(structure.value) if structure.kind == "choice" else structure.value
    return StructuredOutputsParams(**{structure.kind: value})


def _event(generation: Generation, output: Any) -> Event:
    """What one of vLLM's outputs has brought."""
    sequence, sampling = generation.sequence, generation.sampling
    made = output.outputs[0]
    tokens = list(made.token_ids)
    reason = made.finish_reason
    if reason is not None and reason not in _FINISHES:
        kind = sampling.structure.kind if sampling.structure else ""
        text = f"structured_outputs.{kind} cannot be compiled" if kind else f"vLLM has ended the generation: {reason}"
        return Event(sequence, tokens, "error", error=text, is_refused=bool(kind))
    stop = tokens[-1] if reason == "stop" and tokens else None
    logprobs = [_logprob(*each, sampling.logprobs or 0) for each in zip(tokens, made.logprobs or (), strict=False)]
    cached = -1 if output.num_cached_tokens is None else output.num_cached_tokens
    return Event(sequence, tokens, _FINISHES.get(reason, ""), stop, logprobs, cached)


def _logprob(token: int, entries: Mapping[int, Any], count: int) -> TokenLogprob:
    """The chosen token's, and those of the likeliest, which are in no order."""
    chosen = entries[token]
    ranked = sorted((each.rank, other, each.logprob) for other, each in entries.items())
    top = [(other, _finite(value)) for _, other, value in ranked[:count]]
    return TokenLogprob(_finite(chosen.logprob), chosen.rank, top)


def _finite(logprob: float) -> float:
    """That of a token which a structure excludes is -inf, for which JSON has no number: as vLLM's own server has it."""
    return logprob if logprob > _LEAST_LOGPROB else _LEAST_LOGPROB
