"""vLLM as an engine: AsyncLLM, whose engine process computes while this one takes what it has made.

Its folder is a Hugging Face model. Options are vLLM's engine arguments (`vllm_arguments`), of any of its features.

vLLM wants an asyncio loop: it runs within `step`, until the engine has sent something or the server has, so all stays
in one thread. A generation has no task: vLLM puts its outputs, one after the other, where its stream would take them
from, and what a step of the engine has brought all generations is there in the same turn of the loop, and so in one
frame.

What is to be known of the library: its engine is a process of its own, whose end is the end of this one, and the other
way round (`main`); an aborted request is free when the engine has made another, empty step, and only the engine's
answer to what is asked behind it tells that; priorities are refused where they are not switched on; of adapters, see
`vllm_adapters`.
"""

from __future__ import annotations

import asyncio
import functools
import multiprocessing
import multiprocessing.connection
import os
import threading
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from vllm import envs
from vllm.exceptions import VLLMClientError
from vllm.platforms import current_platform
from vllm.usage.usage_lib import UsageContext
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError

from .engine import Adapter, Engine, EngineInfo, EngineModel, Event, Generation, Refused, Sampling, Stats
from .vllm_adapters import KnownAdapter, VllmAdapters, spare_place
from .vllm_arguments import engine_arguments
from .vllm_load import VllmLoad
from .vllm_outputs import event_of
from .vllm_pictures import VllmPictures
from .vllm_sampling import DEFAULTS, FEATURES, sampling_params

T = TypeVar("T")

_ENVIRONMENT = {
    "VLLM_NO_USAGE_STATS": "1",  # nothing is reported to anybody
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",  # see `main`
    "VLLM_V1_OUTPUT_PROC_CHUNK_SIZE": "4096",  # all of a step at once: nobody else waits for this process
}

_WARM_UP_TOKENS = 128


class _Request:
    """A generation that vLLM has, or is to have when `begun` is done."""

    __slots__ = ("adapter", "begun", "generation", "is_first")

    def __init__(self, generation: Generation, adapter: KnownAdapter | None) -> None:
        self.generation = generation
        self.adapter = adapter
        self.begun: asyncio.Task[None]
        self.is_first = True  # of its outputs


class VllmEngine(Engine):
    """See above."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._llm: Any = None
        self._running: dict[int, _Request] = {}
        self._leaving: set[asyncio.Task[None]] = set()  # that have vLLM abort something
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
        self._call(llm.get_supported_tasks())  # the first generation would ask for them
        envs.enable_envs_cache()  # vLLM looks its variables up for each token
        [self._load] = (each for each in llm.logger_manager.stat_loggers if isinstance(each, VllmLoad))
        found = llm.model_config.get_diff_sampling_param()
        self._defaults = {name: found[name] for name in DEFAULTS if name in found}
        self._pictures = VllmPictures(llm.model_config)
        if current_platform.is_cpu():
            self._warm_up(llm.model_config.max_model_len)
        most = llm.model_config.max_logprobs
        features = {
            "adapter": arguments.enable_lora,
            "sleep": arguments.enable_sleep_mode,
            "images": self._pictures.are_seen,
        }
        return EngineInfo(
            FEATURES | {feature for feature, is_there in features.items() if is_there},
            context_length=llm.model_config.max_model_len,
            most_logprobs=llm.model_config.get_vocab_size() if most < 0 else most,
            sequences=llm.vllm_config.scheduler_config.max_num_seqs,
            adapters=most_adapters or arguments.max_loras if arguments.enable_lora else 0,
        )

    def _warm_up(self, context: int) -> None:
        """Generate from a long prompt. On processors with AMX, vLLM 0.32 dies by SIGILL in bfloat16 where the first
        prompt has a few tokens only; and all that is made at the first request is there for the first client."""
        count = max(1, min(_WARM_UP_TOKENS, context - 2))
        self.submit(Generation(0, [0] * count, Sampling(max_tokens=1, temperature=0.0, ignore_eos=True)))
        while self._running and self._death is None:
            self._loop.run_forever()
        events, self._events = self._events, []
        if self._death is not None or events[-1].error:
            raise RuntimeError(f"vLLM cannot generate: {self._death or events[-1].error}")
        self.reset_prefix_cache()
        self._load.reset()

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
        request = _Request(generation, adapter)
        request.begun = self._loop.create_task(self._begin(request, parameters))
        self._running[generation.sequence] = request
        if adapter is not None:
            adapter.users.add(generation.sequence)

    async def _begin(self, request: _Request, parameters: Any) -> None:
        generation, adapter = request.generation, request.adapter
        try:
            lora = await self._adapters.load(adapter) if self._adapters and adapter else None
            queue = await self._llm.add_request(
                str(generation.sequence),
                self._pictures.prompt(generation),
                parameters,
                lora_request=lora,
                priority=generation.priority if self._has_priorities else 0,
            )
            queue.put = take = functools.partial(self._take, request)
            early = queue.get_nowait()
            if early is not None:
                take(early)
        except Exception as error:
            self._take(request, self._pictures.judged(error, generation))

    def _take(self, request: _Request, output: Any) -> None:
        """One of vLLM's outputs, or what it raises for this generation. Raises nothing: vLLM would fail all of them."""
        generation = request.generation
        if generation.sequence not in self._running:  # aborted
            return
        is_first, request.is_first = request.is_first, False
        try:
            if isinstance(output, Exception):
                raise output
            event = event_of(generation, output, is_first=is_first)
        except EngineDeadError as error:
            self._die(error)
            return
        except (ValueError, VLLMClientError, Refused) as error:
            event = Event(generation.sequence, finish="error", error=str(error), is_refused=True)
        except Exception as error:
            event = Event(generation.sequence, finish="error", error=f"{type(error).__name__}: {error}")
            if error is not output:  # vLLM knows of no error
                self._spawn(self._llm.abort(str(generation.sequence)))
        self._put(request, event)

    def _put(self, request: _Request, event: Event) -> None:
        if event.finish:
            self._running.pop(event.sequence, None)
            self._release(request)
        if not self._events:
            self._loop.stop()
        self._events.append(event)

    def _release(self, request: _Request) -> None:
        if self._adapters and request.adapter:
            self._adapters.release(request.adapter, request.generation.sequence)

    def _die(self, error: BaseException) -> None:
        self._death = error
        self._loop.stop()

    def abort(self, sequence: int) -> None:
        request = self._running.pop(sequence, None)
        if request is not None:
            self._spawn(self._leave(request))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = self._loop.create_task(work)
        self._leaving.add(task)
        task.add_done_callback(self._left)

    async def _leave(self, request: _Request) -> None:
        """Have vLLM free it. It takes what it is told in turn, and makes a step before it takes more: so the second
        answer comes behind that step's figures. Where another generation has it go on, that is not waited for."""
        request.begun.cancel()
        await asyncio.wait((request.begun,))
        sequence = request.generation.sequence
        await self._llm.abort(str(sequence))
        if not self._running:
            for _ in range(2):
                await self._llm.is_sleeping()
        self._put(request, Event(sequence, finish="abort"))

    def _left(self, task: asyncio.Task[None]) -> None:
        self._leaving.discard(task)
        if (error := task.exception()) is not None:
            self._die(error)

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
        return self._load.read()

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
    arguments.disable_log_stats = True  # but to `VllmLoad`
    return AsyncLLM.from_engine_args(
        arguments,
        usage_context=UsageContext.OPENAI_API_SERVER,  # whose defaults are for serving
        stat_loggers=[VllmLoad],
    )


def _choose_device(device: str) -> None:
    """Show vLLM the one GPU that the instance is for, of those that this process sees."""
    kind, _, number = device.partition(".")
    if kind == "GPU":
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")
        os.environ["CUDA_VISIBLE_DEVICES"] = visible[int(number)] if len(visible) > int(number) else number
