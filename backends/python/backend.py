"""The Python backend: a model instance is a `model.py` in a worker process of its own.

Flow: model instance actor → [backend] → `wire` → `channel` → worker process → back the same way.
Source: Triton's Python backend. Tensors are on the CPU in the worker, also for an instance of KIND_GPU: its kind and
device id reach the model as arguments of `initialize`.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TypeVar

import trio

from backends.interface import Backend, BatchResult, BatchTiming, InstanceDied, InstanceSpec, ModelSource
from backends.python.batch import decode_responses, encode_batch
from backends.python.channel import WorkerGone
from backends.python.environment import find_environment
from backends.python.link import WorkerFailed, WorkerLink
from backends.python.settings import PythonSettings
from backends.python.wire import BrokenFrame, DoneHead, ExecutedHead, Frame, decode_head
from backends.python.worker.trioton_worker.frames import COMPLETE, EXECUTED, INITIALIZE
from protocol.errors import Internal, InvalidArgument, ServerError
from protocol.messages import InferenceRequest, InferenceResponse
from repository.json_form import from_json_form, to_json_form
from repository.model_config import ModelConfig

# Copying this much takes less time than a thread does to begin.
_BLOCKING_SIZE = 1 << 22

T = TypeVar("T")


class PythonBackend(Backend):
    """One worker process, from `load` to `unload`."""

    prefers_gpu = True

    def __init__(self, spec: InstanceSpec) -> None:
        super().__init__(spec)
        self._link: WorkerLink | None = None
        self._outputs = frozenset(output.name for output in spec.config.output)
        # Why the instance is dead; empty while it is not.
        self._death = ""

    @classmethod
    async def complete_config(cls, source: ModelSource) -> ModelConfig:
        """Run the model's `auto_complete_config`, if it has one, in a worker of its own.

        Raises:
            Internal: it failed; the text is the Python exception with its place.
            InvalidArgument: what it returned is no configuration.
        """
        _check_file(source)
        name = f"{source.name} (auto_complete_config)"
        link = _start(source, name)
        head = {**_place(source), "config": to_json_form(source.config)}
        try:
            completed = (await _begin(source, link, COMPLETE, head, doing="auto_complete_config")).config
        finally:
            await link.close()
        if completed is None:
            return source.config
        what = f"auto_complete_config of model '{source.name}' returned a wrong configuration"
        return from_json_form(completed, what=what)

    async def load(self) -> None:
        """Start the worker and initialize the model, for as long as that takes. Cancelled, it leaves no process.

        Raises:
            Internal: the model failed, or its process ended; the text says how.
            ServerError: the configuration asks for what cannot be.
        """
        source = self.spec.source
        _check_file(source)
        link = _start(source, self.spec.name)
        try:
            await _begin(source, link, INITIALIZE, self._initialize_head(link), doing="initialize")
        except BaseException:
            await link.close()
            raise
        self._link = link

    def _initialize_head(self, link: WorkerLink) -> dict[str, object]:
        source = self.spec.source
        arguments = {
            "model_config": json.dumps(to_json_form(source.config)),
            "model_instance_kind": self.spec.kind.name,
            "model_instance_name": self.spec.name,
            "model_instance_device_id": str(self.spec.device_id),
            "model_repository": str(source.model_directory),
            "model_version": str(source.version),
            "model_name": source.name,
        }
        return {
            **_place(source),
            "args": arguments,
            "outputs": sorted(self._outputs),
            "can_share": link.arena.is_usable,
        }

    async def execute(self, requests: Sequence[InferenceRequest]) -> BatchResult:
        """One exchange with the worker. Cancelled, the worker finishes its batch, and the next call waits for that.

        Outputs are copies, or views of memory that nobody writes to again. Nobody else may call meanwhile.
        """
        link = self._living()
        started = time.perf_counter_ns()
        try:
            abandoned = await link.channel.answer()
            if abandoned is not None:
                head = _executed_head(abandoned)
                link.arena.note_answer(kept=head.kept, wanted=head.wanted)
            await self._ask(link, requests)
            sent = time.perf_counter_ns()
            frame = await link.channel.answer()
            computed = time.perf_counter_ns()
            assert frame is not None
            responses = await self._responses(link, frame, requests)
        except WorkerGone as gone:
            raise await self._died(link, str(gone)) from None
        except BrokenFrame as broken:
            raise await self._died(link, str(broken)) from None
        timing = BatchTiming(sent - started, computed - sent, time.perf_counter_ns() - computed)
        return BatchResult(responses, timing)

    async def _ask(self, link: WorkerLink, requests: Sequence[InferenceRequest]) -> None:
        arena = link.arena
        descriptors: list[int] = []

        def input_memory(size: int) -> memoryview | None:
            segment = arena.input_segment(size)
            return None if segment is None else segment.view

        def unsent() -> list[str]:
            segments = arena.take_unsent()
            descriptors.extend(segment.descriptor for segment in segments.values())
            return list(segments)

        size = sum(tensor.byte_size for request in requests for tensor in request.inputs)
        encode = partial(encode_batch, requests, self._outputs, input_memory=input_memory, unsent=unsent)
        batch = await _run(encode, size)
        await link.channel.ask(batch.start, batch.body, descriptors)

    async def _responses(
        self, link: WorkerLink, frame: Frame, requests: Sequence[InferenceRequest]
    ) -> list[InferenceResponse | ServerError]:
        head = _executed_head(frame)
        source = self.spec.source
        outputs = link.arena.outputs
        try:
            if head.failure is not None:
                link.log_failure(head.failure)
                raise Internal(
                    f"Failed to process the request(s) for model '{self.spec.name}', message: {head.failure.message}"
                )
            decode = partial(
                decode_responses,
                frame,
                head,
                requests,
                model_name=source.name,
                model_version=source.version,
                output_memory=None if outputs is None else outputs.view,
            )
            return await _run(decode, head.shared)
        finally:
            link.arena.note_answer(kept=head.kept, wanted=head.wanted)

    def _living(self) -> WorkerLink:
        if self._link is None or self._death:
            raise InstanceDied(self._death or f"model instance '{self.spec.name}' is not loaded")
        return self._link

    async def _died(self, link: WorkerLink, problem: str) -> InstanceDied:
        self._death = f"model instance '{self.spec.name}' died: its worker process {await link.end_text(problem)}"
        return InstanceDied(self._death)

    async def wait_died(self) -> None:
        """Also forwards what the model prints and logs: to be awaited while the instance is loaded."""
        link = self._link
        if link is not None:
            await link.attend()
        if self._link is None:  # unloaded meanwhile
            await trio.sleep_forever()

    async def unload(self) -> None:
        """Finalize the model within some seconds, then end its process and whatever it started."""
        link, self._link = self._link, None
        if link is not None:
            await link.stop()


async def _run(work: Callable[[], T], byte_size: int) -> T:
    """Call it here, or in a thread where it copies so much that the server's other work would wait."""
    return work() if byte_size <= _BLOCKING_SIZE else await trio.to_thread.run_sync(work)


def _executed_head(frame: Frame) -> ExecutedHead:
    if frame.kind != EXECUTED:
        raise BrokenFrame(f"it answered a batch with a frame of kind {frame.kind}")
    return decode_head(frame, ExecutedHead)


def _check_file(source: ModelSource) -> None:
    path = source.model_file
    if path.suffix != ".py":
        raise InvalidArgument(f"Model name must end with '.py'. Model name is \"{path.name}\".")
    if not path.is_file():
        raise Internal(f"Python model file not found in '{path}'")


def _place(source: ModelSource) -> dict[str, object]:
    return {"path": str(source.model_file), "directory": str(source.model_directory)}


def _start(source: ModelSource, name: str) -> WorkerLink:
    environment = find_environment(source)
    log = logging.getLogger(f"trioton.model.{source.name}")
    try:
        return WorkerLink(environment, PythonSettings.of(source), log, name)
    except OSError as error:
        raise Internal(
            f"model '{source.name}': cannot start the interpreter '{environment.interpreter}': {error}"
        ) from error


async def _begin(
    source: ModelSource, link: WorkerLink, kind: int, head: Mapping[str, object], *, doing: str
) -> DoneHead:
    """The worker's answer to its first frame, for which there is no time limit.

    Raises:
        Internal: the model has failed, or the worker has ended; the text says how, and what was printed last.
    """
    async with link.attended():
        outcome = await link.request(kind, head)
        end = await link.end_text(str(outcome)) if isinstance(outcome, WorkerGone) else ""
    if isinstance(outcome, DoneHead):
        return outcome
    if isinstance(outcome, WorkerFailed):
        raise Internal(str(outcome))
    printed = "".join(f"\n  {line}" for line in link.tail())
    raise Internal(
        f"model '{source.name}': the worker process of '{link.name}' {end} during {doing}"
        + (f"; it printed last:{printed}" if printed else "")
    )
