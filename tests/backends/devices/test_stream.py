"""A stream of an instance: tensors come to the device and back in few copies, and nothing goes before its copy."""

from __future__ import annotations

import numpy as np
import pytest

from backends.devices.devices import DEFAULT_POOL_BYTES, Devices
from backends.devices.stream import DeviceStream
from protocol.datatypes import DataType
from protocol.errors import Overloaded, Unavailable
from protocol.messages import Tensor
from protocol.tensors.device_tensor import DeviceBuffer, DeviceTensor, device_tensor
from repository.model_config import ModelConfig, ModelOptimizationPolicy, PinnedMemoryBuffer
from tests.backends.devices.host_runtime import HostRuntime, Pins


class Machine:
    """Devices in host memory."""

    def __init__(self, pinned_bytes: int = 1 << 20) -> None:
        self.pins = Pins()
        self.runtimes: dict[int, HostRuntime] = {}
        self.devices = Devices(
            pinned_bytes=pinned_bytes, cuda_pool_bytes={1: 77}, new_runtime=self.new_runtime, pin=self.pins
        )

    def new_runtime(self, device_id: int, pool_bytes: int, has_peers: bool) -> HostRuntime:
        made = self.runtimes[device_id] = HostRuntime(device_id, pool_bytes, has_peers)
        return made

    def on_device(self, array: np.ndarray[tuple[int, ...], np.dtype[np.float32]], device_id: int = 0) -> DeviceTensor:
        """A tensor that somebody has put there, complete."""
        stream = self.devices.stream(device_id)
        buffer = stream.to_device(array)
        stream.synchronize()
        self.runtimes[device_id].copied.clear()
        return device_tensor("x", DataType.FP32, array.shape, buffer)


@pytest.fixture
def machine() -> Machine:
    return Machine()


def floats(*values: float) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    return np.array(values, dtype=np.float32)


def on_host(stream: DeviceStream, buffer: DeviceBuffer) -> list[float]:
    found: list[float] = np.frombuffer(stream.to_host([buffer])[0], np.float32).tolist()
    return found


def test_tensors_of_the_host_take_one_copy(machine: Machine) -> None:
    stream = machine.devices.stream(0)
    tensors = [Tensor.from_numpy("x", floats(1, 2)), Tensor.from_numpy("x", floats(3))]
    joined = stream.joined(tensors)
    assert (joined.byte_size, joined.device) == (12, (2, 0))
    assert machine.runtimes[0].copied == [12]
    assert machine.devices.pinned.used_bytes > 0
    assert on_host(stream, joined) == [1, 2, 3]
    assert machine.devices.pinned.used_bytes == 0


def test_what_is_there_is_taken_as_it_is(machine: Machine) -> None:
    tensor = machine.on_device(floats(1, 2))
    stream = machine.devices.stream(0)
    assert stream.has(tensor)
    assert stream.joined([tensor]) is tensor.buffer
    assert machine.runtimes[0].copied == []


def test_parts_of_a_batch_come_from_everywhere(machine: Machine) -> None:
    """From the host, this device and another; what is not aligned is copied, too."""
    here, there = machine.on_device(floats(3, 4)), machine.on_device(floats(6), device_id=1)
    stream = machine.devices.stream(0)
    first, second, fifth = (Tensor.from_numpy("x", floats(value)) for value in (1, 2, 5))
    joined = stream.joined([first, second, here, fifth, there])
    assert machine.runtimes[0].copied == [8, 8, 4, 4]
    assert on_host(stream, joined) == [1, 2, 3, 4, 5, 6]
    part = device_tensor("x", DataType.FP32, (1,), here.buffer.part(4, 4))
    assert not stream.has(part)
    assert not stream.has(there)
    assert on_host(stream, stream.joined([part])) == [4]


def test_sources_stay_until_they_are_copied(machine: Machine) -> None:
    stream = machine.devices.stream(0)
    tensor = machine.on_device(floats(1, 2))
    joined = stream.joined([tensor, tensor])
    del tensor
    assert on_host(stream, joined) == [1, 2, 1, 2]
    del joined
    assert machine.runtimes[0].live == {}


def test_without_pinned_memory(machine: Machine) -> None:
    """Where the configuration does not want it, or the pool has no room, copies are made all the same."""
    off = PinnedMemoryBuffer(enable=False)
    config = ModelConfig("m", optimization=ModelOptimizationPolicy(input_pinned_memory=off, output_pinned_memory=off))
    for stream in (machine.devices.stream(0, config), Machine(pinned_bytes=0).devices.stream(0)):
        tensors = [Tensor.from_numpy("x", floats(1)), Tensor.from_numpy("x", floats(2))]
        assert on_host(stream, stream.joined(tensors)) == [1, 2]
        assert on_host(stream, stream.joined(tensors[:1])) == [1]
    assert machine.pins.made == 0


def test_outputs_are_pinned_memory_until_they_are_sent(machine: Machine) -> None:
    stream = machine.devices.stream(0)
    tensor = machine.on_device(floats(1, 2))
    found = stream.to_host([tensor.buffer, tensor.buffer.part(4, 4), tensor.buffer.part(0, 0)])
    assert [bytes(each) for each in found] == [floats(1, 2).tobytes(), floats(2).tobytes(), b""]
    assert machine.devices.pinned.used_bytes > 0
    found.clear()
    assert machine.devices.pinned.used_bytes == 0


def test_an_array_goes_there_as_it_is(machine: Machine) -> None:
    stream = machine.devices.stream(0)
    assert on_host(stream, stream.to_device(floats(1, 2).reshape(2, 1))) == [1, 2]
    assert stream.to_device(np.zeros((0, 3), np.float32)).byte_size == 0


def test_a_full_device_refuses_and_serves_on(machine: Machine) -> None:
    stream = machine.devices.stream(0)
    machine.runtimes[0].free_bytes = 16
    with pytest.raises(Overloaded, match="no memory left"):
        stream.joined([Tensor.from_numpy("x", np.zeros(5, np.float32))])
    assert on_host(stream, stream.joined([Tensor.from_numpy("x", floats(1))])) == [1]


def test_a_lost_device_holds_nothing_back(machine: Machine) -> None:
    stream = machine.devices.stream(0)
    stream.joined([Tensor.from_numpy("x", floats(1))])
    machine.runtimes[0].is_lost = True
    with pytest.raises(Unavailable, match="lost"):
        stream.synchronize()
    assert machine.runtimes[0].live == {}
    assert machine.devices.pinned.used_bytes == 0


def test_devices_are_prepared_once_and_have_their_limits(machine: Machine) -> None:
    first, second = machine.devices.stream(0), machine.devices.stream(0, priority=-1)
    assert first.number != second.number
    assert machine.devices.runtime(0) is machine.runtimes[0]
    machine.devices.stream(1)
    assert {id: runtime.pool_bytes for id, runtime in machine.runtimes.items()} == {0: DEFAULT_POOL_BYTES, 1: 77}
