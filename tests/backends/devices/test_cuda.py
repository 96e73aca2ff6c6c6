"""The runtime of NVIDIA GPUs: what it asks of cupy, with host memory behind its names; and with a GPU where one is."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

from backends.devices.devices import Devices
from backends.devices.stream import DeviceStream
from protocol.datatypes import DataType
from protocol.errors import Overloaded, Unavailable
from protocol.messages import Tensor
from protocol.tensors.cuda import find_cupy
from protocol.tensors.device_tensor import device_tensor
from tests.fake_cupy import CUDARuntimeError, FakeRuntime, FakeStream

VALUES = np.arange(12, dtype=np.float32)


def halves() -> list[Tensor]:
    return [Tensor.from_numpy("x", VALUES[:6]), Tensor.from_numpy("x", VALUES[6:])]


def round_trip(stream: DeviceStream) -> list[float]:
    found: list[float] = np.frombuffer(stream.to_host([stream.joined(halves())])[0], np.float32).tolist()
    return found


def test_there_and_back(cupy_runtime: FakeRuntime) -> None:
    devices = Devices()
    stream = devices.stream(1)
    assert stream.device == (2, 1)
    assert round_trip(stream) == VALUES.tolist()
    assert [(each.device, each.ptr) for each in cupy_runtime.streams] == [(1, stream.number)]
    assert cupy_runtime.pinned  # both ways, and kept for the next time
    assert cupy_runtime.allocated == {}
    assert cupy_runtime.current_device is None


def test_across_devices(cupy_runtime: FakeRuntime) -> None:
    devices = Devices()
    first, second = devices.stream(0), devices.stream(1)
    buffer = first.joined(halves())
    first.synchronize()
    copied = second.joined([device_tensor("x", DataType.FP32, (12,), buffer)])
    assert copied.address != buffer.address
    assert np.frombuffer(second.to_host([copied])[0], np.float32).tolist() == VALUES.tolist()


def test_the_pool_has_its_limit_and_the_driver_the_rest(cupy_runtime: FakeRuntime) -> None:
    devices = Devices(cuda_pool_bytes={0: 64})
    stream = devices.stream(0)
    pool: Any = cupy_runtime.pool  # type: ignore[attr-defined]
    assert pool.limits == {0: 64}
    kept = [stream.allocate(48), stream.allocate(48)]
    assert [size for size, _ in cupy_runtime.allocated.values()] == [48, 48]
    cupy_runtime.free_bytes = 100
    with pytest.raises(Overloaded, match="GPU 0: no memory left: cudaErrorMemoryAllocation"):
        stream.allocate(48)
    del kept
    assert cupy_runtime.allocated == {}


def test_no_pool(cupy_runtime: FakeRuntime) -> None:
    stream = Devices(cuda_pool_bytes={0: 0}).stream(0)
    assert stream.allocate(8).byte_size == 8
    assert not hasattr(cupy_runtime, "pool")


def test_peers(cupy_runtime: FakeRuntime) -> None:
    """Enabled once for each pair, by whomever; or not at all."""
    Devices(has_peer_access=False).stream(0)
    assert cupy_runtime.peers == []
    for _ in range(2):
        Devices().stream(0)
    assert cupy_runtime.peers == [(0, 1)]


def test_priorities(cupy_runtime: FakeRuntime) -> None:
    devices = Devices()
    devices.stream(0)
    devices.stream(0, priority=-3)
    assert [each.priority for each in cupy_runtime.streams] == [None, -3]


def test_device_and_stream_are_made_current(cupy_runtime: FakeRuntime) -> None:
    stream = Devices().stream(1)
    with stream.current():
        assert cupy_runtime.current_stream is not None
        assert (cupy_runtime.current_device, cupy_runtime.current_stream.ptr) == (1, stream.number)
    assert cupy_runtime.current_device is None


def test_a_device_that_is_lost(cupy_runtime: FakeRuntime) -> None:
    stream = Devices().stream(0)
    buffer = stream.joined(halves())
    cupy_runtime.is_lost = True
    with pytest.raises(Unavailable, match="GPU 0: cudaErrorInvalidValue"):
        stream.to_host([buffer])


def test_a_device_that_is_not_there(cupy_runtime: FakeRuntime) -> None:
    with pytest.raises(Unavailable, match="GPU 7: cudaErrorInvalidDevice"):
        Devices().stream(7)


def test_without_cupy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(Unavailable) as caught:
        Devices().stream(0)
    assert caught.value.message == (
        "GPU 0 cannot be used: cupy is not installed or sees no GPU; pip install 'trioton[gpu]', or "
        "'trioton[gpu-cuda12]' for CUDA 12"
    )


def test_zeros_are_there_when_the_stream_was_waited_for(cupy_runtime: FakeRuntime) -> None:
    stream = Devices().stream(0)
    buffer = stream.joined(halves())
    stream.clear(buffer.part(8, 16))
    found = np.frombuffer(stream.to_host([buffer])[0], np.float32).tolist()
    assert found == [0, 1, 0, 0, 0, 0, *range(6, 12)]


def test_a_graph_runs_when_it_is_launched_and_not_before(cupy_runtime: FakeRuntime) -> None:
    stream = Devices().stream(0)
    source, target = stream.joined(halves()), stream.allocate(48)
    stream.clear(target)
    launch = stream.capture(lambda: stream.copy(target, source))
    assert np.frombuffer(stream.to_host([target])[0], np.float32).tolist() == [0] * 12
    for _ in range(2):
        launch()
        assert np.frombuffer(stream.to_host([target])[0], np.float32).tolist() == VALUES.tolist()
    assert cupy_runtime.launches == 2


def test_what_cannot_be_captured_leaves_the_stream_usable(
    cupy_runtime: FakeRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(stream: FakeStream) -> None:
        stream.abandon_capture()
        raise CUDARuntimeError("cudaErrorStreamCaptureInvalidated: operation failed due to a previous error")

    monkeypatch.setattr(FakeStream, "end_capture", refuse)
    stream = Devices().stream(0)
    with pytest.raises(Unavailable, match="GPU 0: cudaErrorStreamCaptureInvalidated"):
        stream.capture(lambda: None)
    assert round_trip(stream) == VALUES.tolist()


def test_memory_that_is_dropped_before_its_copy_shows(cupy_runtime: FakeRuntime) -> None:
    stream = Devices().stream(0)
    buffer = stream.joined(halves())
    stream._held.clear()
    del buffer
    with pytest.raises(Unavailable, match="cudaErrorIllegalAddress"):
        stream.synchronize()


def test_cupy_has_what_its_stand_in_has() -> None:
    cupy = pytest.importorskip("cupy", exc_type=ImportError)
    own = {"current_device", "current_stream", "stream", "check_copy", "check_kept", "is_device"}
    for name in vars(FakeRuntime).keys() - own:
        assert name.startswith("_") or hasattr(cupy.cuda.runtime, name), name
    for name in ("Device", "Memory", "MemoryPointer", "MemoryPool", "PinnedMemory"):
        assert isinstance(getattr(cupy.cuda, name), type), name
    for name in ("synchronize", "begin_capture", "end_capture", "__enter__", "__exit__"):
        assert hasattr(cupy.cuda.Stream, name), name
    assert hasattr(cupy.cuda.graph.Graph, "launch")
    assert issubclass(cupy.cuda.runtime.CUDARuntimeError, RuntimeError)
    assert issubclass(cupy.cuda.memory.OutOfMemoryError, MemoryError)


NEEDS_GPU = (pytest.mark.gpu, pytest.mark.skipif(find_cupy() is None, reason="cupy sees no GPU"))


@pytest.mark.parametrize("pinned_bytes", [pytest.param(size, marks=NEEDS_GPU) for size in (1 << 20, 0)])
def test_on_a_gpu(pinned_bytes: int) -> None:
    """There and back, with and without pinned memory; what is there already is used as it is, by cupy too."""
    import cupy

    devices = Devices(pinned_bytes=pinned_bytes)
    stream = devices.stream(0)
    assert round_trip(stream) == VALUES.tolist()
    buffer = stream.joined(halves())
    stream.synchronize()
    tensor = device_tensor("x", DataType.FP32, (3, 4), buffer)
    assert stream.joined([tensor]) is buffer
    taken = cupy.from_dlpack(tensor)
    assert taken.data.ptr == buffer.address
    assert cupy.asnumpy(taken).tolist() == VALUES.reshape(3, 4).tolist()
    assert tensor.as_numpy().tolist() == VALUES.reshape(3, 4).tolist()
    assert np.frombuffer(stream.to_host([stream.joined([tensor, tensor])])[0], np.float32).tolist() == [*VALUES] * 2


@pytest.mark.gpu
@pytest.mark.skipif(find_cupy() is None, reason="cupy sees no GPU")
def test_a_gpu_that_is_full() -> None:
    """The request fails, and the device serves on."""
    stream = Devices().stream(0)
    with pytest.raises(Overloaded, match="no memory left"):
        stream.allocate(1 << 50)
    assert round_trip(stream) == VALUES.tolist()


@pytest.mark.gpu
@pytest.mark.skipif(find_cupy() is None, reason="cupy sees no GPU")
def test_zeros_and_graphs_on_a_gpu() -> None:
    stream = Devices().stream(0)
    source, target = stream.joined(halves()), stream.allocate(48)
    stream.clear(target)
    launch = stream.capture(lambda: stream.copy(target, source))
    assert np.frombuffer(stream.to_host([target])[0], np.float32).tolist() == [0] * 12
    launch()
    assert np.frombuffer(stream.to_host([target])[0], np.float32).tolist() == VALUES.tolist()
