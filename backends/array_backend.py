"""The base of most backends: arrays in, arrays out, blocking code welcome.

A subclass says how to load, how to run one joined batch, and perhaps how to free and what its inputs and outputs
are; this class does the rest of a batch's life. Everything a subclass writes runs in the instance's own thread:

    model instance actor → execute → [thread: gather → run → scatter] → BatchResult
"""

from __future__ import annotations

import abc
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from time import monotonic_ns
from typing import Any, ClassVar, TypeAlias

import trio
from numpy.typing import NDArray

from backends.array_batch import Arrays, BatchLayout
from backends.devices.batch import DeviceBatchLayout
from backends.devices.stream import DeviceStream
from backends.instance_thread import InstanceThread
from backends.interface import Backend, BatchResult, BatchTiming, InstanceDied, InstanceSpec, ModelSource
from backends.padding import Padding
from backends.parameters import parse_int
from backends.requirements import framework_missing
from protocol.errors import Cancelled, ServerError
from protocol.messages import InferenceRequest, InferenceResponse, Tensor
from repository.completion import (
    DEFAULT_MAX_BATCH_SIZE,
    TensorSignature,
    check_against_model,
    complete_from_model,
)
from repository.model_config import ModelConfig
from repository.shape_rules import DimRule, read_shape_rules

# The inputs and the outputs of a model as its own file tells them.
Signature: TypeAlias = tuple[Sequence[TensorSignature], Sequence[TensorSignature]]


class ArrayBackend(Backend):
    """A backend whose model maps named arrays to named arrays.

    Subclasses must implement `load_model` and `run`. An ImportError that leaves `load_model` or `signature` becomes
    the sentence that says what to install.
    """

    joins_requests = True
    can_run_ahead = True  # the instance's thread takes batches one after the other

    # BYTES inputs reach `run` as arrays of `str` instead of `bytes`; a request that is not UTF-8 fails alone.
    text_strings: ClassVar[bool] = False

    # Large inputs that the server joins begin at a multiple of so many bytes; 0 where the framework does not care.
    alignment: ClassVar[int] = 0

    # The inputs and outputs of states (`sequence_batching.state`) that the instance holds itself, set by `load_model`:
    # batches then go to `run_holding`.
    held_inputs: frozenset[str] = frozenset()
    held_outputs: frozenset[str] = frozenset()

    # The stream of an instance that computes on a device, set by `load_model`: `run` then gets and gives device tensors
    # in place of arrays of numbers, and what it gives may be incomplete until the stream has been waited for. Its class
    # should say `takes_device_tensors`.
    device_stream: DeviceStream | None = None

    def __init__(self, spec: InstanceSpec) -> None:
        super().__init__(spec)
        self._thread = InstanceThread(spec.name, spec.cpu_cores)
        self._layout = BatchLayout(
            spec.config,
            version=spec.source.version,
            instance=spec.name,
            text_strings=self.text_strings,
            alignment=self.alignment,
        )
        rules = read_shape_rules(spec.config)
        self._padding = None if rules is None or not rules.inputs else Padding(rules, spec.config)
        ruled = None if rules is None else rules.batch
        self._batch_rule = self.batch_rule(spec.config) if ruled is None else ruled
        self._is_loaded = False
        self._batches: list[_Batch] = []  # given to the thread, and not ended
        self._running: _Batch | None = None
        self._lock = threading.Lock()  # for `_running` and a batch's `is_unwanted`; held for moments

    @abc.abstractmethod
    def load_model(self) -> None:
        """Load the model of `self.spec`. Called once, first, in the instance's thread."""

    @abc.abstractmethod
    def run(self, inputs: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Compute one batch.

        `inputs` maps the configuration's names to C-contiguous, aligned arrays that must not be written to. Their
        shape is `dims` (or `reshape`), with the batch as first dimension where `max_batch_size` > 0. BYTES are
        object arrays of `bytes` (see `text_strings`), BF16 has dtype `ml_dtypes.bfloat16`. An optional input that
        the requests leave out is not there.

        The result holds every output of the configuration, with the datatype and shape that it says and at least as
        many rows as the inputs; that of a model with `sequence_batching.state` holds its state outputs too. The server
        sends the returned memory, so it must not be written to later.

        Raises:
            ServerError: the inputs are or may be at fault (InvalidArgument says that they are), and the attempt
                changed nothing. A batch of several requests is then run again one by one, so that one bad request
                fails alone. Any other exception, and `InstanceDied`, fails the whole batch.
        """

    def run_holding(
        self, inputs: dict[str, NDArray[Any]], requests: Sequence[InferenceRequest]
    ) -> tuple[dict[str, NDArray[Any]], Sequence[Sequence[Tensor]]]:
        """As `run`, for an instance that holds states: they are missing in `inputs` and in the arrays that it returns.
        The states are among the inputs of `requests`, the first time as plain tensors and then as what was returned
        beside the arrays: for each request its next states, `backends.interface.HeldTensor`."""
        raise NotImplementedError(f"{type(self).__name__} holds no states")

    def interrupt(self) -> None:
        """Nobody waits any more for what `run` computes: make it end soon, by an exception.

        Called in the server's loop, so it must not wait, while the instance's thread is in `run` or about to call it.
        `resume` follows when that call has ended.
        """

    def resume(self) -> None:
        """Be ready for the next batch after `interrupt`. Called in the instance's thread."""

    def close_model(self) -> None:
        """Free what `load_model` made. Called once, last, in the instance's thread; not if `load_model` failed."""

    @classmethod
    def batch_rule(cls, config: ModelConfig) -> DimRule | None:
        """To which numbers of rows batches are filled up where the shape rules of the model do not say it; None to
        leave them as they are. Raises ServerError where the configuration asks for something wrong."""
        return None

    @classmethod
    def signature(cls, source: ModelSource) -> Signature | None:
        """The inputs and outputs that the model's file declares; None if files of this framework do not say.

        Called before any instance exists, in a thread of no instance, and only if the configuration lacks inputs
        or outputs.
        """
        return None

    @classmethod
    async def complete_config(cls, source: ModelSource) -> ModelConfig:
        """Complete inputs, outputs and batching from `signature`. Cancelled: leaves the reading to its thread."""
        config = source.config
        if config.input and config.output:
            return config
        found = await trio.to_thread.run_sync(cls._read_signature, source, abandon_on_cancel=True)
        if found is None:
            return config
        inputs, outputs = found
        return complete_from_model(
            config, inputs=inputs, outputs=outputs, default_max_batch_size=default_max_batch_size(source)
        )

    @classmethod
    async def check_model(cls, source: ModelSource) -> None:
        """Compare the configuration with `signature`."""
        found = await trio.to_thread.run_sync(cls._read_signature, source, abandon_on_cancel=True)
        if found is not None:
            check_against_model(source.config, *found)

    @classmethod
    def _read_signature(cls, source: ModelSource) -> Signature | None:
        try:
            return cls.signature(source)
        except ImportError as error:
            raise framework_missing(source.config.backend, model=source.name, error=error) from error

    async def load(self) -> None:
        """Call `load_model` in the instance's thread. Cancelled: the thread loads on, and `unload` waits and frees."""
        await self._thread.run(self._load)

    def _load(self) -> None:
        try:
            self.load_model()
        except ImportError as error:
            raise framework_missing(self.spec.config.backend, model=self.spec.source.name, error=error) from error
        self._is_loaded = True
        if self.device_stream is not None:
            self._layout = DeviceBatchLayout(
                self.spec.config,
                self.device_stream,
                version=self.spec.source.version,
                instance=self.spec.name,
                text_strings=self.text_strings,
            )
        if self.held_inputs:
            self._layout.leave_out(self.held_inputs, self.held_outputs)

    async def unload(self) -> None:
        """Call `close_model` after what the thread still does, and end the thread."""
        await self._thread.aclose(self._close)

    def _close(self) -> None:
        if self._is_loaded:
            self._is_loaded = False
            self.close_model()

    async def execute(self, requests: Sequence[InferenceRequest]) -> BatchResult:
        """Gather, run and scatter in the instance's thread. Cancelled: the thread ends the batch by itself, soon if
        `interrupt` can do that."""
        batch = _Batch(requests)
        self._batches.append(batch)
        try:
            return await self._thread.run(self._execute, batch)
        except trio.Cancelled:
            self._give_up(batch)
            raise
        finally:
            self._batches.remove(batch)

    def cancel(self, request: InferenceRequest) -> None:
        """A batch is given up when all of its callers have gone."""
        for batch in self._batches:
            if batch.leave(request):
                self._give_up(batch)

    def _give_up(self, batch: _Batch) -> None:
        with self._lock:
            batch.is_unwanted = True
            if self._running is batch:
                self.interrupt()

    def _execute(self, batch: _Batch) -> BatchResult:
        with self._lock:
            self._running = batch
        try:
            return self._compute(batch)
        finally:
            with self._lock:
                self._running = None
            if batch.is_unwanted:
                self.resume()

    def _compute(self, batch: _Batch) -> BatchResult:
        requests = batch.requests
        results: list[InferenceResponse | ServerError | None] = [None] * len(requests)
        watch = _Stopwatch()
        arrays: dict[int, Arrays] = {}
        padding = self._padding
        padded = requests if padding is None else [padding.pad(request) for request in requests]
        for index, request in enumerate(padded):
            try:
                arrays[index] = self._layout.arrays(request)
            except ServerError as error:
                results[index] = error
        groups = [list(arrays)] if self.spec.config.is_batching else [[index] for index in arrays]
        for group in groups:  # grows while it is read: a refused group is tried again one by one
            if not group or batch.is_unwanted:
                continue
            found = [arrays[index] for index in group]
            rows = self._layout.rows(found)
            inputs: Arrays = {}
            outputs: Mapping[str, NDArray[Any]] = {}
            states: Sequence[Sequence[Tensor]] = ()
            try:
                inputs = self._layout.joined(found, self._missing(sum(rows)))
                inputs.update(self._layout.batch_inputs([padded[index] for index in group]))
                watch.lap("input")
                if self.held_inputs:
                    outputs, states = self.run_holding(inputs, [padded[index] for index in group])
                else:
                    outputs = self.run(inputs)
            except InstanceDied:
                raise
            except Exception as error:
                watch.lap("infer")
                inputs = {}  # before the next attempt needs the memory
                self._settle()
                if batch.is_unwanted:
                    continue
                if not isinstance(error, ServerError):
                    raise
                if len(group) > 1:
                    groups.extend([index] for index in group)
                else:
                    results[group[0]] = _without_frames(error)
                continue
            watch.lap("infer")
            responses = self._layout.responses(outputs, [padded[index] for index in group], rows)
            for response, next_states in zip(responses, states, strict=False):  # none where none are held
                response.outputs += next_states
            for index, response in zip(group, responses, strict=True):
                results[index] = response if padding is None else padding.trim(requests[index], response)
            watch.lap("output")
        gone = Cancelled("the request was cancelled while its batch ran")
        return BatchResult([gone if result is None else result for result in results], watch.timing())

    def _settle(self) -> None:
        """A run has failed: wait for what it has enqueued, so that its memory can go."""
        if self.device_stream is not None:
            with suppress(ServerError):
                self.device_stream.synchronize()

    def _missing(self, rows: int) -> int:
        """How many rows a batch is to be filled up with."""
        filled = None if self._batch_rule is None else self._batch_rule.padded(rows)
        return 0 if filled is None else filled - rows


class _Batch:
    """A batch on its way through the instance's thread. `is_unwanted` says that nobody waits for its answers."""

    __slots__ = ("_gone", "is_unwanted", "requests")

    def __init__(self, requests: Sequence[InferenceRequest]) -> None:
        self.requests = requests
        self.is_unwanted = False
        self._gone: set[int] = set()

    def leave(self, request: InferenceRequest) -> bool:
        """The caller of a request has gone; whether it is one of these, and the last of them."""
        for index, each in enumerate(self.requests):
            if each is request:
                self._gone.add(index)
                return len(self._gone) == len(self.requests)
        return False


def _without_frames(error: ServerError) -> ServerError:
    """Tracebacks, its own and those of its causes, would keep all that this call knows: the memory of a device."""
    each: BaseException | None = error
    while each is not None:
        each.__traceback__ = None
        each = each.__cause__ or each.__context__
    return error


class _Stopwatch:
    """Adds the time since the last lap to one of the phases `input`, `infer` and `output`."""

    def __init__(self) -> None:
        self._last = monotonic_ns()
        self._sums = {"input": 0, "infer": 0, "output": 0}

    def lap(self, phase: str) -> None:
        now = monotonic_ns()
        self._sums[phase] += now - self._last
        self._last = now

    def timing(self) -> BatchTiming:
        return BatchTiming(self._sums["input"], self._sums["infer"], self._sums["output"])


def default_max_batch_size(source: ModelSource) -> int:
    """What a model batches by that can, and does not say how far."""
    value = source.settings.get("default-max-batch-size", str(DEFAULT_MAX_BATCH_SIZE))
    return parse_int(value, place=f"model '{source.name}', backend-config 'default-max-batch-size'")
