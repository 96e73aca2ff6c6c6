"""Engine backend: language models whose tokens an engine generates, in a worker process of its own.

Flow: model instance actor → [engine backend: request → tokens] → `generations` → engine worker, and back by steps.
A request is read, tokenized and queued; it waits in the admission's queue for the engine, and `execute_decoupled` waits
for neither. Source of the tensors' names: Triton's vLLM backend.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import trio

from backends.engines.adapters import EngineAdapters
from backends.engines.answer import Answer
from backends.engines.generations import Generations
from backends.engines.metrics.engine import EngineMetrics
from backends.engines.metrics.observed import ObservedResponder
from backends.engines.pictures import PictureReader
from backends.engines.settings import EngineSettings
from backends.engines.sleep import EngineSleep
from backends.engines.tensors.completion import check_engine_config, complete_engine_config
from backends.engines.tensors.images import NO_IMAGES, Images
from backends.engines.tensors.limits import level, most_tokens
from backends.engines.tensors.request import TOKEN_IDS, TextRequest
from backends.engines.tensors.sampling import sampling_of
from backends.engines.tensors.sets import VLLM, tensor_set
from backends.engines.text import read_text_parts
from backends.engines.worker.trioton_engine.engine import EngineInfo
from backends.engines.worker_link import EngineWorker
from backends.interface import (
    Backend,
    BatchResult,
    BatchTiming,
    InstanceDied,
    InstanceSpec,
    ModelSource,
    NotBegun,
    Responder,
)
from backends.requirements import framework_missing
from protocol.core import MemoryUsage, QueueRoom
from protocol.datatypes import DataType
from protocol.errors import Cancelled, Internal, InvalidArgument, ServerError, Unavailable, Unsupported
from protocol.failures import CallbackFailures
from protocol.messages import InferenceRequest, InferenceResponse, Tensor
from protocol.text.tokenizer import Tokenizer
from repository.model_config import ModelConfig

logger = logging.getLogger("trioton.backends.engines")

# Longer texts are tokenized in a thread, and more token ids looked at: the loop must not wait for them.
INLINE_CHARACTERS = 2000
# What an engine that sees has in its features.
IMAGES = "images"
_NO_TIME = BatchTiming(0, 0, 0)


class EngineBackend(Backend):
    """One engine, from `load` to `unload`. Subclasses name theirs in `engine`, as `module:Class`, which is imported in
    the worker only."""

    engine: ClassVar[str]
    can_be_decoupled = True
    unload_seconds = 15.0

    def __init__(self, spec: InstanceSpec) -> None:
        super().__init__(spec)
        source = spec.source
        failures = CallbackFailures() if source.services is None else source.services.failures
        self._failures = failures
        self._gen_ai = None if source.services is None else source.services.gen_ai
        self._where = f"model '{source.name}'"
        self._worker: EngineWorker | None = None
        self._generations: Generations | None = None
        self._tensors = VLLM
        self._adapters: EngineAdapters | None = None
        self._metrics: EngineMetrics | None = None
        self._tokenizer: Tokenizer | None = None
        self._settings: EngineSettings | None = None
        self._context_length = 0
        self._death = ""
        self._has_died = trio.Event()
        self._sleep = EngineSleep(spec.name)
        self._pictures = PictureReader(self._where, None if source.services is None else source.services.media)
        # Whose texts are tokenized in a thread, or whose pictures are decoded.
        self._tokenizing: dict[InferenceRequest, trio.CancelScope] = {}

    @classmethod
    async def complete_config(cls, source: ModelSource) -> ModelConfig:
        """Add the tensors, and make the model decoupled."""
        return complete_engine_config(source.config)

    @classmethod
    async def check_model(cls, source: ModelSource) -> None:
        """Read the options, and the tokenizer. The engine is not loaded."""
        check_engine_config(source.config)
        settings = await trio.to_thread.run_sync(EngineSettings.of, source)
        await trio.to_thread.run_sync(read_text_parts, source, settings)

    async def load(self) -> None:
        """Start the worker and load the engine, for as long as that takes."""
        source = self.spec.source
        check_engine_config(source.config)
        self._tensors = tensor_set(source.config)
        in_thread = functools.partial(trio.to_thread.run_sync, abandon_on_cancel=True)
        settings = await self.prepared(await in_thread(EngineSettings.of, source))
        text = await in_thread(read_text_parts, source, settings)
        settings = replace(settings, tokenizer=str(text.folder))
        generations = Generations(source.name, settings.limits, self._failures)
        adapters = EngineAdapters(self._where, settings.adapters, self.spec.adapters, generations)
        worker = await self._start(settings, adapters, generations)
        lengths = [settings.context_length, worker.info.context_length, text.context_length]
        self._context_length = min((length for length in lengths if length), default=0)
        self._metrics = EngineMetrics.of(
            self.spec, context_length=self._context_length, info=worker.info, adapters=worker.adapters
        )
        generations.attach(worker, self._metrics)
        self._worker, self._generations, self._tokenizer = worker, generations, text.tokenizer
        self._settings, self._adapters = settings, adapters

    async def _start(
        self, settings: EngineSettings, adapters: EngineAdapters, generations: Generations
    ) -> EngineWorker:
        """A worker that has all adapters. Raises ServerError; cancelled, nothing is left."""
        source = self.spec.source
        try:
            worker = await EngineWorker.start(
                self.spec, self.engine, replace(settings, adapters=adapters.at_start()), generations.step
            )
        except Internal as error:
            if error.message.startswith("ModuleNotFoundError: "):
                raise framework_missing(
                    source.config.backend, model=source.name, error=ModuleNotFoundError(error.message)
                ) from None
            says_where = error.message.startswith(self._where)
            raise error if says_where else Internal(f"{self._where}: {error.message}") from None
        try:
            while adapters.is_behind():
                await worker.link.attending(functools.partial(adapters.catch_up, worker))
        except BaseException:
            await worker.link.close()
            raise
        return worker

    async def prepared(self, settings: EngineSettings) -> EngineSettings:
        """The settings with which the engine is loaded, once its files are in the form that it reads."""
        return settings

    async def execute(self, requests: Sequence[InferenceRequest]) -> BatchResult:
        raise Unsupported(f"{self._where} is decoupled")

    async def execute_decoupled(
        self, requests: Sequence[InferenceRequest], responders: Sequence[Responder]
    ) -> BatchTiming:
        """Queue the requests; their responders are used from then on."""
        if self._sleep.level:
            for responder in responders:
                responder.close(self._asleep())
            await trio.lowlevel.checkpoint()
            return _NO_TIME
        worker = self._worker
        if worker is None or self._death or worker.link.channel.is_closed:
            for responder in responders:
                responder.close(NotBegun())
            raise InstanceDied(self._death or f"model instance '{self.spec.name}' has no engine")
        for request, responder in zip(requests, map(self._observed, requests, responders), strict=True):
            try:
                self._begin(worker, request, responder)
            except ServerError as error:
                responder.close(error)
        await trio.lowlevel.checkpoint()
        return _NO_TIME

    def _observed(self, request: InferenceRequest, responder: Responder) -> Responder:
        """One that sees how the request ends, if calls are observed, and this one is not by its edge."""
        if self._gen_ai is None or request.gen_ai is not None:
            return responder
        return ObservedResponder(self._gen_ai, request, responder)

    def _begin(self, worker: EngineWorker, request: InferenceRequest, responder: Responder) -> None:
        assert self._generations is not None
        arrival = self._generations.now()
        parsed = self._tensors.parse(request)
        if parsed.stops_id:
            self._stop_named(parsed.stops_id, request, responder)
            return
        if isinstance(responder, ObservedResponder):
            responder.ask(parsed.sampling)
        if parsed.images and IMAGES not in worker.info.features:
            name = parsed.images[0].input
            raise InvalidArgument(f"{self._where}: {name}: engine '{self.spec.config.backend}' sees no pictures")
        if not parsed.images and (len(parsed.token_ids) or len(parsed.text)) <= INLINE_CHARACTERS:
            self._queue(worker.info, request, responder, parsed, self._tokens(parsed), arrival)
        else:
            self._tokenizing[request] = trio.CancelScope()
            worker.link.spawn(self._begin_later, worker, request, responder, parsed, arrival)

    def _stop_named(self, request_id: str, request: InferenceRequest, responder: Responder) -> None:
        """End the requests of an id, and answer the one that asks for it, with no text."""
        for other, scope in self._tokenizing.items():
            if other.id == request_id:
                scope.cancel()
        if self._generations is not None:
            self._generations.cancel_named(request_id)
        tensor = Tensor("text_output", DataType.BYTES, (1,), bytes(4))
        version = self.spec.source.version
        answer = InferenceResponse(request.model_name, version, [tensor], request.id, is_final=True)
        if not responder.send_nowait(answer):
            responder.close()

    async def _begin_later(
        self,
        worker: EngineWorker,
        request: InferenceRequest,
        responder: Responder,
        parsed: TextRequest,
        arrival: float,
    ) -> None:
        """As `_begin`, for a long text, or pictures. Cancelled with the worker, it gives the request back."""
        try:
            with self._tokenizing[request]:
                token_ids = await trio.to_thread.run_sync(self._tokens, parsed, abandon_on_cancel=True)
                images = await self._pictures.read(parsed.images) if parsed.images else NO_IMAGES
                self._queue(worker.info, request, responder, parsed, token_ids, arrival, images)
                return
            responder.close(Cancelled("Request cancelled by client"))  # or its caller has gone
        except ServerError as error:
            responder.close(error)
        except Exception as error:
            self._failures.note("backend", error, f"{self._where}: a request could not be read")
            responder.close(Internal(f"{self._where} failed unexpectedly; the server's log has the details"))
        except trio.Cancelled:
            responder.close(NotBegun())
            raise
        finally:
            del self._tokenizing[request]
            if self._generations is not None:
                self._generations.tell_changed()

    def _tokens(self, parsed: TextRequest) -> list[int]:
        """Raises InvalidArgument."""
        tokenizer = self._tokenizer
        assert tokenizer is not None
        if not parsed.token_ids:
            return tokenizer.encode(parsed.text, add_special_tokens=parsed.adds_special_tokens)
        unknown = next((each for each in parsed.token_ids if not tokenizer.has_token(each)), None)
        if unknown is not None:
            raise InvalidArgument(
                f"{self._where}: {TOKEN_IDS}: {unknown} is no token of the vocabulary, which has "
                f"{tokenizer.vocabulary_size}"
            )
        return list(parsed.token_ids)

    def _queue(
        self,
        info: EngineInfo,
        request: InferenceRequest,
        responder: Responder,
        parsed: TextRequest,
        token_ids: Sequence[int],
        arrival: float,
        images: Images = NO_IMAGES,
    ) -> None:
        """Raises ServerError."""
        assert self._tokenizer is not None
        assert self._generations is not None
        assert self._worker is not None
        fields = parsed.sampling
        max_tokens = most_tokens(len(token_ids), fields.max_tokens, self._context_length, self._where)
        sampling = sampling_of(fields, max_tokens, info, engine=self.spec.config.backend, where=self._where)
        adapter = fields.lora_name or ""
        if adapter:
            assert self._adapters is not None
            self._adapters.check(self._worker, adapter)
        answer = Answer(
            request,
            parsed.options,
            self._tokenizer,
            prompt=self._prompt_text(parsed),
            prompt_tokens=len(token_ids),
            version=self.spec.source.version,
            min_tokens=sampling.min_tokens,
        )
        priority = fields.priority if fields.priority is not None else level(request.priority)
        self._generations.add(
            request,
            responder,
            answer,
            token_ids,
            sampling,
            arrival=arrival,
            adapter=adapter,
            priority=priority,
            text=self._seen_text(parsed) if IMAGES in info.features else "",
            images=images,
        )

    def _seen_text(self, parsed: TextRequest) -> str:
        """The prompt for an engine that takes texts, and puts the first token in front itself."""
        assert self._tokenizer is not None
        text = parsed.text or self._tokenizer.decode(list(parsed.token_ids), skip_special_tokens=False)
        return text.removeprefix(self._tokenizer.bos_token or "")

    def _prompt_text(self, parsed: TextRequest) -> str:
        if parsed.text or not (parsed.token_ids and parsed.options.has_prompt):
            return parsed.text
        assert self._tokenizer is not None
        return self._tokenizer.decode(list(parsed.token_ids))

    def cancel(self, request: InferenceRequest) -> None:
        """Stop generating: within one step of the engine, or at once where it waits."""
        scope = self._tokenizing.get(request)
        if scope is not None:
            scope.cancel()
        elif self._generations is not None:
            self._generations.cancel(request)

    async def is_ready(self) -> bool:
        """Ask the engine."""
        if self._worker is None or self._death or self._sleep.level:
            return False
        return await self._worker.readiness.check()

    def memory_usage(self) -> Sequence[MemoryUsage]:
        """The resident memory of the worker's process."""
        resident = None if self._worker is None else self._worker.link.resident_bytes()
        return () if resident is None else (MemoryUsage("CPU", 0, resident),)

    def queue_room(self) -> QueueRoom | None:
        """What waits for the engine, and how much may."""
        return None if self._generations is None else self._generations.queue_room

    @property
    def takes_adapters(self) -> bool:
        return self._worker is not None and "adapter" in self._worker.info.features

    async def follow_adapter(self, name: str) -> None:
        worker, adapters = self._awake(), self._adapters
        assert adapters is not None
        if not self.takes_adapters:
            raise Unsupported(f"{self._where}: LoRA feature is not enabled.")
        try:
            await adapters.follow(worker, name)
        finally:
            if self._metrics is not None:
                self._metrics.adapters.keep(worker.adapters)

    def _awake(self) -> EngineWorker:
        """Raises Unavailable."""
        if self._sleep.level:
            raise self._asleep()
        if self._worker is None or self._death:
            raise Unavailable(f"model instance '{self.spec.name}' has no engine now")
        return self._worker

    def _asleep(self) -> Unavailable:
        return Unavailable(f"{self._where} is asleep; POST /wake_up wakes it")

    @property
    def can_sleep(self) -> bool:
        return self._sleep.level > 0 or self._worker is not None

    @property
    def sleep_level(self) -> int:
        return self._sleep.level

    async def sleep(self, level: int) -> None:
        await self._sleep.change(self._fall_asleep, level)

    async def wake(self) -> None:
        await self._sleep.change(self._wake_up)

    async def _fall_asleep(self, level: int) -> None:
        if self._sleep.level:
            return
        worker, generations = self._awake(), self._generations
        assert generations is not None
        self._sleep.level = level
        try:
            while self._tokenizing or not generations.is_idle:
                await generations.wait_changed()
            if self._death or worker.link.channel.is_closed:
                raise Unavailable(f"model instance '{self.spec.name}' has died")
            if "sleep" in worker.info.features:
                await worker.sleep(level)
        except BaseException:
            self._sleep.level = 0
            raise
        self._sleep.is_settled = True
        self._show_sleep()
        if "sleep" not in worker.info.features:
            generations.detach()
            self._worker = None
            try:
                await self._sleep.leave()
            except BaseException:
                await worker.link.close()
                raise
            await worker.stop()

    def _show_sleep(self) -> None:
        if self._metrics is not None:
            self._metrics.sleep(self._sleep.level)

    async def _wake_up(self) -> None:
        if not self._sleep.level:
            return
        if self._worker is not None:
            await self._worker.wake()
        else:
            settings, adapters, generations = self._settings, self._adapters, self._generations
            assert settings is not None
            assert adapters is not None
            assert generations is not None
            worker = await self._start(settings, adapters, generations)
            assert self._metrics is not None
            generations.attach(worker, self._metrics)
            self._worker = worker
            await self._sleep.attend_again()
        self._sleep.level, self._sleep.is_settled = 0, False
        self._show_sleep()

    async def reset_prefix_cache(self) -> None:
        await self._awake().reset_prefix_cache()

    def death_text(self) -> str:
        return self._death

    async def wait_died(self) -> None:
        await self._has_died.wait()

    async def attend(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Take the engine's steps, until the worker has ended; an engine that sleeps may have none."""
        generations = self._generations
        assert generations is not None
        self._sleep.tell(task_status)
        if self._worker is None:
            self._sleep.started()
        while True:
            worker = self._worker
            if worker is None:
                await self._sleep.wait_woken()
            elif not await self._sleep.attend(functools.partial(worker.attend, generations.step_owed_for)):
                if not self._sleep.is_settled:
                    break
                await self._lose(worker)
        end = await worker.link.end_text(worker.problem)
        self._death = f"model instance '{self.spec.name}' died: its {worker.link.runner.noun} {end}"
        generations.end(InstanceDied(self._death))
        self._has_died.set()

    async def _lose(self, worker: EngineWorker) -> None:
        """The worker has ended while its engine slept: another one is started when that is to wake up."""
        if self._worker is worker:
            self._worker = None
            if self._generations is not None:
                self._generations.detach()
            await worker.link.close()

    async def unload(self) -> None:
        """Close the engine within some seconds, then end its process."""
        await self._sleep.end()
        worker, self._worker = self._worker, None
        if worker is not None:
            await worker.stop()
        if self._generations is not None:
            self._generations.detach()

    def retire(self) -> None:
        """Show its metrics no more."""
        EngineMetrics.retire(self.spec)
