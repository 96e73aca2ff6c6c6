"""What is the host's of one batch beside the run of another: in which thread, in which order, and what fails how."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import trio
import trio.testing
from numpy.typing import NDArray

from backends.array_backend import ArrayBackend
from backends.devices.devices import Devices
from backends.interface import BatchResult
from protocol.datatypes import DataType
from protocol.errors import Internal, InvalidArgument, ServerError
from protocol.messages import InferenceRequest, Tensor
from protocol.tensors.device_tensor import DeviceTensor, device_tensor
from tests.backends.devices.host_runtime import HostRuntime, Pins
from tests.backends.helpers import answer, loaded, request_of, source_of, spec_of, threads_ended

CONFIG = """
max_batch_size: 8
input [ { name: "X" data_type: TYPE_FP32 dims: [ 1 ] } ]
output [ { name: "Y" data_type: TYPE_FP32 dims: [ 1 ] } ]
"""
OWN, BESIDE = "m_0_0", "m_0_0 host"


class Input(Tensor):
    """Notes by which thread it is read."""

    readers: list[str]

    def as_numpy(self) -> NDArray[Any]:
        self.readers.append(threading.current_thread().name)
        return super().as_numpy()


class Output:
    """An array that notes by which thread it is read."""

    def __init__(self, array: NDArray[Any], readers: list[str]) -> None:
        self._array = array
        self._readers = readers

    def __array__(self, *_: Any, **__: Any) -> NDArray[Any]:
        self._readers.append(threading.current_thread().name)
        return self._array


class Gated(ArrayBackend):
    """Y = 2 X. Each run waits for its gate, and those of numbers above 100 for none. Refuses negative numbers."""

    overlaps_from_ns = 0

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.runs: list[list[float]] = []
        self.readers: list[str] = []
        self.entered, self.gate = threading.Semaphore(0), threading.Semaphore(0)
        self.is_closed = False

    def load_model(self) -> None:
        pass

    def run(self, inputs: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        x = inputs["X"]
        assert threading.current_thread().name == OWN
        self.runs.append(x.reshape(-1).tolist())
        self.entered.release()
        if x[0, 0] < 100:
            assert self.gate.acquire(timeout=30)
        if (x < 0).any():
            raise InvalidArgument("X must not be negative")
        outputs: dict[str, Any] = {"Y": Output(2 * x, self.readers)}
        return outputs

    def close_model(self) -> None:
        self.is_closed = True


def number(value: float, readers: list[str] | None = None) -> InferenceRequest:
    request = request_of(("X", np.array([[value]], np.float32)))
    if readers is not None:
        plain = request.inputs[0]
        request.inputs[0] = Input(plain.name, plain.datatype, plain.shape, plain.data, readers)
    return request


class Load:
    """Batches given to a backend one after the other, and their answers: None for one that has none."""

    def __init__(self, backend: Gated, nursery: trio.Nursery) -> None:
        self.backend = backend
        self.nursery = nursery
        self.answers: list[list[object] | None] = []

    async def give(self, *requests: InferenceRequest) -> trio.CancelScope:
        """Give the next batch. Cancelling the scope stops waiting for it."""
        scope: trio.CancelScope = await self.nursery.start(self._run, requests)
        await trio.testing.wait_all_tasks_blocked()
        return scope

    async def _run(self, requests: tuple[InferenceRequest, ...], *, task_status: trio.TaskStatus[Any]) -> None:
        number = len(self.answers)
        self.answers.append(None)
        with trio.CancelScope() as scope:
            task_status.started(scope)
            try:
                result: BatchResult = await self.backend.execute(requests)
            except Internal as error:
                self.answers[number] = [error.message]
                return
            self.answers[number] = [value(each) for each in result.responses]

    async def entered(self) -> None:
        """A run has begun."""
        assert await trio.to_thread.run_sync(lambda: self.backend.entered.acquire(timeout=30))

    async def beside(self) -> None:
        """What was to be done beside has been done."""
        await self.backend._beside.run(lambda: None)

    async def answered(self, count: int) -> None:
        with trio.fail_after(30):
            while len([each for each in self.answers if each is not None]) < count:
                await trio.lowlevel.checkpoint()


def value(result: Any) -> object:
    return result.message if isinstance(result, ServerError) else answer(result)["Y"].reshape(-1).tolist()


@asynccontextmanager
async def under_load(backend_class: type[Gated] = Gated) -> AsyncIterator[Load]:
    async with loaded(backend_class, spec_of(source_of(CONFIG))) as backend:
        assert isinstance(backend, Gated)
        with trio.fail_after(60):
            async with trio.open_nursery() as nursery:
                yield Load(backend, nursery)


async def test_the_next_batch_is_gathered_while_one_runs_and_that_is_scattered_beside_the_next() -> None:
    async with under_load() as load:
        first: list[str] = []
        second: list[str] = []
        await load.give(number(1, first))
        await load.entered()
        await load.give(number(2, second), number(3, second))
        await load.beside()
        assert load.backend.runs == [[1]]
        assert (first, second) == ([OWN], [BESIDE, BESIDE])
        load.backend.gate.release()
        await load.entered()
        await load.answered(1)  # while the second still runs
        assert load.backend.readers == [BESIDE]
        load.backend.gate.release()
        await load.answered(2)
        assert load.answers == [[[2]], [[4], [6]]]
        assert load.backend.readers == [BESIDE, OWN]  # with nothing to run, the instance's thread answers itself
        assert second == [BESIDE, BESIDE]


async def test_answers_keep_the_order_of_the_batches() -> None:
    """A batch that ends with nothing behind it does not pass one that is still to be scattered."""
    async with under_load() as load:
        backend = load.backend
        held = threading.Event()
        await load.give(number(1))
        await load.entered()
        await load.give(number(101))
        await load.beside()
        backend._beside.post(lambda: held.wait(30))
        backend.gate.release()
        await load.entered()
        await backend._thread.run(lambda: None)  # the second has run
        await trio.testing.wait_all_tasks_blocked()
        assert load.answers == [None, None]
        held.set()
        await load.answered(2)
        assert load.answers == [[[2]], [[202]]]
        assert backend.readers == [BESIDE, BESIDE]


async def test_short_runs_are_left_to_one_thread() -> None:
    class Short(Gated):
        overlaps_from_ns = 10**18

    async with under_load(Short) as load:
        readers: list[str] = []
        await load.give(number(1))
        await load.entered()
        await load.give(number(2, readers))
        load.backend.gate.release(2)
        await load.answered(2)
        assert readers == [OWN]
        assert load.backend.readers == [OWN, OWN]
        assert BESIDE not in [thread.name for thread in threading.enumerate()]


async def test_errors_are_those_of_their_batch_and_request() -> None:
    async with under_load() as load:
        await load.give(number(1))
        await load.entered()
        await load.give(number(2), number(-3))
        load.backend.gate.release(4)
        await load.answered(2)
        assert load.answers == [[[2]], [[4], "X must not be negative"]]
        assert load.backend.runs == [[1], [2, -3], [2], [-3]]


async def test_a_scatter_that_fails_beside_fails_its_batch_alone() -> None:
    class Wrong(Gated):
        def run(self, inputs: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
            outputs = super().run(inputs)
            return {} if inputs["X"][0, 0] == 1 else outputs

    async with under_load(Wrong) as load:
        await load.give(number(1))
        await load.entered()
        await load.give(number(2))
        load.backend.gate.release(2)
        await load.answered(2)
        assert load.answers == [["model 'm', output 'Y': the model gave no such output, but: none"], [[4]]]


async def test_a_batch_that_was_gathered_and_is_wanted_no_more_does_not_run() -> None:
    async with under_load() as load:
        await load.give(number(1))
        await load.entered()
        gone = number(2)
        await load.give(gone)
        cancelled = await load.give(number(3))
        await load.beside()
        load.backend.cancel(gone)
        cancelled.cancel()
        await trio.testing.wait_all_tasks_blocked()
        load.backend.gate.release()
        await load.answered(2)
        assert load.answers == [[[2]], ["the request was cancelled while its batch ran"], None]
        assert load.backend.runs == [[1]]


async def test_a_batch_is_cancelled_while_it_is_scattered_beside() -> None:
    async with under_load() as load:
        scope = await load.give(number(1))
        await load.entered()
        await load.give(number(2))
        held = threading.Event()
        load.backend._beside.post(lambda: held.wait(30))
        load.backend.gate.release()
        await load.entered()
        scope.cancel()
        await trio.testing.wait_all_tasks_blocked()
        held.set()
        load.backend.gate.release()
        await load.answered(1)
        await load.give(number(103))
        await load.answered(2)
        assert load.answers == [None, [[4]], [[206]]]


async def test_unloading_waits_for_what_is_scattered_beside() -> None:
    async with under_load() as load:
        backend = load.backend
        await load.give(number(1))
        await load.entered()
        await load.give(number(2))
        held = threading.Event()
        backend._beside.post(lambda: held.wait(30))
        backend.gate.release(2)
        load.nursery.start_soon(backend.unload)
        await load.entered()
        await trio.testing.wait_all_tasks_blocked()
        assert not backend.is_closed
        held.set()
        await load.answered(2)
        assert load.answers == [[[2]], [[4]]]
    assert backend.is_closed
    await threads_ended(BESIDE)


class OnDevice(Gated):
    """The same on a device, which is slow to copy: what nobody waits for is not there."""

    takes_device_tensors = True

    def load_model(self) -> None:
        self.runtime = HostRuntime()
        devices = Devices(new_runtime=lambda *_: self.runtime, pin=Pins())
        self.device_stream = devices.stream(0, self.spec.config)

    def run(self, inputs: dict[str, Any]) -> dict[str, Any]:
        x, stream = inputs["X"], self.device_stream
        assert isinstance(x, DeviceTensor)
        assert stream is not None
        stream.synchronize()
        array = np.frombuffer(ctypes.string_at(x.buffer.address, x.byte_size), np.float32).reshape(x.shape)
        (made,) = super().run({"X": array}).values()
        return {"Y": device_tensor("Y", DataType.FP32, x.shape, stream.to_device(np.asarray(made)))}


async def test_copies_to_and_from_a_device_go_by_a_stream_of_their_own() -> None:
    async with under_load(OnDevice) as load:
        backend = load.backend
        assert isinstance(backend, OnDevice)
        await load.give(number(1))
        await load.entered()
        copied = len(backend.runtime.copied)
        await load.give(number(2), number(3))
        await load.beside()
        assert backend.runtime.copied[copied:] == [8]  # while the first runs
        backend.gate.release(2)
        await load.answered(2)
        assert load.answers == [[[2]], [[4], [6]]]
        assert backend.runs == [[1], [2, 3]]
        assert BESIDE in [thread.name for thread in threading.enumerate()]


async def test_a_device_that_is_full_while_another_batch_runs_takes_the_next_in_its_turn() -> None:
    async with under_load(OnDevice) as load:
        backend = load.backend
        assert isinstance(backend, OnDevice)
        await load.give(number(1))
        await load.entered()
        backend.runtime.free_bytes = 0
        await load.give(number(2), number(3))
        await load.beside()
        backend.runtime.free_bytes = 1 << 20
        backend.gate.release(2)
        await load.answered(2)
        assert load.answers == [[[2]], [[4], [6]]]
        assert backend.runs == [[1], [2, 3]]
