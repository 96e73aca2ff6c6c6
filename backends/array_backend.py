"""Base class of most backends: numpy arrays in and out, with blocking framework calls in the instance's own thread.

A subclass says how to load, how to run one joined batch, and perhaps how to free and what its inputs and outputs are;
this class does the rest of a batch's life. Everything a subclass writes runs in the instance's own thread:

    model instance actor → execute → [thread: gather → run → scatter] → BatchResult

While a batch runs, the next one is gathered in a second thread, on a device by a second stream, and where one is there
the batch is scattered in that thread, too: the instance's own goes from run to run. Answers keep the batches' order.
"""

from __future__ import annotations

import abc
import threading
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any, ClassVar

import trio
from numpy.typing import NDArray

from backends.array_batch import Arrays, BatchLayout
from backends.devices.batch import DeviceBatchLayout
from backends.devices.stream import DeviceStream
from backends.instance_batch import HostWork, InstanceBatch, Ran
from backends.instance_thread import Elsewhere, InstanceThread
from backends.interface import BatchResult, InstanceDied, InstanceSpec
from backends.out_of_memory import is_out_of_memory, out_of_memory
from backends.padding import Padding
from backends.requirements import framework_missing
from backends.signature_backend import SignatureBackend
from protocol.errors import ServerError
from protocol.messages import InferenceRequest, Tensor
from repository.model_config import ModelConfig
from repository.shape_rules import DimRule, read_shape_rules


class ArrayBackend(SignatureBackend):
    """A backend whose model maps named arrays to named arrays.

    Subclasses must implement `load_model` and `run`, which may block: each instance has a thread of its own, in which
    they are called one after the other. An ImportError that leaves `load_model` or `signature` becomes
    the sentence that says what to install.
    """

    joins_requests = True
    can_run_ahead = True  # the instance's thread takes batches one after the other

    text_strings: ClassVar[bool] = False
    """BYTES inputs reach `run` as arrays of `str` instead of `bytes`; a request that is not UTF-8 fails alone."""

    # To hand on what is the host's costs some 0.05 ms.
    overlaps_from_ns: ClassVar[int] = 1_000_000
    """While runs take less than so many nanoseconds, the instance's thread does all by itself."""

    alignment: ClassVar[int] = 0
    """Large inputs that the server joins begin at a multiple of so many bytes; 0 where the framework does not care."""

    held_inputs: frozenset[str] = frozenset()
    """The inputs of states (`sequence_batching.state`) that the instance holds itself, set by `load_model`: batches
    then go to `run_holding`."""
    held_outputs: frozenset[str] = frozenset()
    """The outputs of these states."""

    device_stream: DeviceStream | None = None
    """The stream of an instance that computes on a device, set by `load_model`: `run` then gets and gives device
    tensors in place of arrays of numbers, and what it gives may be incomplete until the stream has been waited for. Its
    class should say `takes_device_tensors`. Private."""

    def __init__(self, spec: InstanceSpec) -> None:
        super().__init__(spec)
        self._thread = InstanceThread(spec.name, spec.cpu_cores)
        self._beside = InstanceThread(f"{spec.name} host", spec.cpu_cores)  # starts when there is something for it
        rules = read_shape_rules(spec.config)
        self._padding = None if rules is None or not rules.inputs else Padding(rules, spec.config)
        ruled = None if rules is None else rules.batch
        self._batch_rule = self.batch_rule(spec.config) if ruled is None else ruled
        self._is_loaded = False
        self._work = self._host_work(None)
        self._work_beside: HostWork | None = None  # made by the thread beside
        self._batches: list[InstanceBatch] = []  # given to the thread, and not ended
        self._scattering: deque[InstanceBatch] = deque()  # of these, those that the thread has handed on
        self._run_ns = 0  # what the last run took
        self._running: InstanceBatch | None = None
        self._lock = threading.Lock()  # for `_running` and a batch's `is_unwanted`; held for moments

    @abc.abstractmethod
    def load_model(self) -> None:
        """Load the model of `self.spec`. Called once, first, in the instance's thread. Not stopped when the load is
        cancelled: it ends by itself, and `close_model` follows.

        Raises:
            ServerError: the model cannot be loaded.
            ImportError: the framework is not installed.
        """

    @abc.abstractmethod
    def run(self, inputs: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Compute one batch.

        `inputs` maps the configuration's names to C-contiguous, aligned arrays that must not be written to. Their
        shape is `dims` (or `reshape`), with the batch as first dimension where `max_batch_size` > 0. BYTES are
        object arrays of `bytes` (see `text_strings`), BF16 has dtype `ml_dtypes.bfloat16`. An optional input that
        the requests leave out is not there.

        The result holds every output of the configuration, with the datatype and shape that it says and at least as
        many rows as the inputs; that of a model with `sequence_batching.state` holds its state outputs too. The server
        sends the returned memory, so it must not be written to later, by the next run neither.

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
        beside the arrays: for each request its next states, each a `HeldTensor`."""
        raise NotImplementedError(f"{type(self).__name__} holds no states")

    def interrupt(self) -> None:
        """The caller of `run` has gone: make it end soon, by an exception.

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

    async def load(self) -> None:
        """Call `load_model` in the instance's thread. Cancelled: the thread loads on, and `unload` waits and frees."""
        await self._thread.run(self._load)

    def _load(self) -> None:
        try:
            self.load_model()
        except ImportError as error:
            raise framework_missing(self.spec.config.backend, model=self.spec.source.name, error=error) from error
        except MemoryError as error:
            raise out_of_memory(f"failed to load model '{self.spec.source.name}'", error) from error
        self._is_loaded = True
        self._work = self._host_work(self.device_stream)

    def _host_work(self, stream: DeviceStream | None) -> HostWork:
        config, version, instance = self.spec.config, self.spec.source.version, self.spec.name
        layout: BatchLayout
        if stream is None:
            layout = BatchLayout(
                config,
                version=version,
                instance=instance,
                text_strings=self.text_strings,
                alignment=self.alignment,
            )
        else:
            layout = DeviceBatchLayout(
                config, stream, version=version, instance=instance, text_strings=self.text_strings
            )
        if self.held_inputs:
            layout.leave_out(self.held_inputs, self.held_outputs)
        return HostWork(config, layout, self._padding, self._batch_rule)

    async def unload(self) -> None:
        """Call `close_model` after what the threads still do, and end them."""
        await self._thread.aclose(self._close)

    def _close(self) -> None:
        self._beside.join()
        if self._is_loaded:
            self._is_loaded = False
            self._work_beside = None
            self.close_model()

    async def execute(self, requests: Sequence[InferenceRequest]) -> BatchResult:
        """Gather, run and scatter in the instance's thread; what concerns the host alone beside the run of another
        batch, where there is one. Cancelled: the threads end the batch by themselves, soon if `interrupt` can do
        that."""
        batch = InstanceBatch(requests)
        if self._batches and self._run_ns >= self.overlaps_from_ns and not self._thread.is_closed:
            self._beside.post(partial(self._gather_ahead, batch))
        self._batches.append(batch)
        try:
            return await self._thread.run(self._execute, batch)
        except trio.Cancelled:
            self._give_up(batch)
            raise
        except MemoryError as error:  # of what is done around the run
            raise self._as_refusal(error) from error
        finally:
            self._batches.remove(batch)

    def cancel(self, request: InferenceRequest) -> None:
        """A batch is given up when all of its callers have gone."""
        for batch in self._batches:
            if batch.leave(request):
                self._give_up(batch)

    def _give_up(self, batch: InstanceBatch) -> None:
        with self._lock:
            batch.is_unwanted = True
            if self._running is batch:
                self.interrupt()

    def _gather_ahead(self, batch: InstanceBatch) -> None:
        """In the thread beside. Where it fails, as it may while another batch has the memory, the batch is gathered in
        its turn."""
        with batch.gathering:
            if not batch.is_gathered and not batch.is_unwanted:
                batch.watch.start()
                with suppress(Exception):
                    self._beside_work().gather_ahead(batch)
                batch.watch.lap("input")

    def _execute(self, batch: InstanceBatch) -> BatchResult | Elsewhere[BatchResult]:
        with self._lock:
            self._running = batch
        try:
            ran = self._compute(batch)
        finally:
            with self._lock:
                self._running = None
            if batch.is_unwanted:
                self.resume()
        # In the order of the batches: once one is there, those after it follow.
        if not self._scattering and (self._run_ns < self.overlaps_from_ns or not self._thread.has_calls()):
            return self._work.finish(batch, ran)
        self._scattering.append(batch)
        return Elsewhere(self._beside, partial(self._finish_beside, batch, ran))

    def _finish_beside(self, batch: InstanceBatch, ran: Ran | None) -> BatchResult:
        try:
            return self._beside_work().finish(batch, ran)
        finally:
            self._scattering.popleft()

    def _beside_work(self) -> HostWork:
        if self._work_beside is None:
            stream = self.device_stream
            self._work_beside = self._host_work(None if stream is None else stream.sibling())
        return self._work_beside

    def _compute(self, batch: InstanceBatch) -> Ran | None:
        """Run a batch; what its last run gave, which is not scattered yet."""
        work, watch = self._work, batch.watch
        with batch.gathering:
            watch.start()
            work.gather(batch)
        groups = work.groups(batch)
        ran: Ran | None = None
        for group in groups:  # grows while it is read: a refused group is tried again one by one
            if not group or batch.is_unwanted:
                continue
            if ran is not None:
                work.scatter(batch, ran)
                ran = None
                watch.lap("output")
            rows = work.rows(batch, group)
            inputs: Arrays = {}
            states: Sequence[Sequence[Tensor]] = ()
            try:
                inputs = work.inputs(batch, group, rows)
                watch.lap("input")
                if self.held_inputs:
                    outputs, states = self.run_holding(inputs, [batch.padded[index] for index in group])
                else:
                    outputs = self.run(inputs)
                if self.device_stream is not None:
                    self.device_stream.synchronize()  # then any thread may read them, and the inputs can go
            except InstanceDied:
                raise
            except Exception as error:
                watch.lap("infer")
                inputs = {}  # before the next attempt needs the memory
                self._settle()
                if batch.is_unwanted:
                    continue
                if not isinstance(error, ServerError) and not is_out_of_memory(error):
                    raise
                if len(group) > 1:
                    groups.extend([index] for index in group)
                else:
                    batch.results[group[0]] = _without_frames(self._as_refusal(error))
                continue
            self._run_ns = watch.lap("infer")
            ran = Ran(group, rows, outputs, states)
        return ran

    def _as_refusal(self, error: Exception) -> ServerError:
        if isinstance(error, ServerError):
            return error
        return out_of_memory(f"model '{self.spec.source.name}', instance '{self.spec.name}'", error)

    def _settle(self) -> None:
        """A run has failed: wait for what it has enqueued, so that its memory can go."""
        if self.device_stream is not None:
            with suppress(ServerError):
                self.device_stream.synchronize()


def _without_frames(error: ServerError) -> ServerError:
    """Tracebacks, its own and those of its causes, would keep all that this call knows: the memory of a device."""
    each: BaseException | None = error
    while each is not None:
        each.__traceback__ = None
        each = each.__cause__ or each.__context__
    return error
