"""DLPack capsules: real libraries take ours, and we take theirs."""

from __future__ import annotations

import ctypes
import gc
import math
import weakref
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from torch.utils.dlpack import from_dlpack

from protocol.datatypes import DataType
from protocol.errors import Unavailable
from protocol.messages import Buffer
from protocol.tensors.device_tensor import DeviceBuffer, DeviceTensor, device_tensor
from protocol.tensors.dlpack import DeviceType, layout_of

NUMBERS = [datatype for datatype in DataType if datatype not in (DataType.INVALID, DataType.BYTES)]


class HostMemory:
    """Device memory that is the host's, and counts what is copied out of it."""

    device = (int(DeviceType.CPU), 0)

    def __init__(self) -> None:
        self.reads = 0

    def read(self, address: int, byte_size: int) -> Buffer:
        self.reads += 1
        return memoryview(ctypes.string_at(address, byte_size))

    def write(self, address: int, data: Buffer) -> None:
        raise Unavailable("read only")

    def copy(self, target: int, source: int, byte_size: int) -> None:
        raise Unavailable("read only")


class Owner:
    """Keeps an array; tests ask whether it is still there."""

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self.array = array


def tensor_over(array: np.ndarray[Any, Any], datatype: DataType) -> tuple[DeviceTensor, weakref.ref[Owner]]:
    owner = Owner(array)
    buffer = DeviceBuffer(HostMemory(), array.ctypes.data, array.nbytes, owner)
    return device_tensor("x", datatype, array.shape, buffer), weakref.ref(owner)


@pytest.mark.parametrize("datatype", NUMBERS, ids=lambda each: each.name)
def test_torch_takes_every_datatype_without_a_copy(datatype: DataType) -> None:
    array = np.arange(6).reshape(2, 3).astype(datatype.dtype)
    tensor, _ = tensor_over(array, datatype)
    taken = from_dlpack(tensor)
    assert (tuple(taken.shape), taken.data_ptr()) == ((2, 3), array.ctypes.data)
    back = layout_of(taken)
    assert (back.datatype, back.shape, back.address) == (datatype, (2, 3), array.ctypes.data)
    assert back.byte_size == array.nbytes


def test_numpy_takes_it_too() -> None:
    array = np.arange(6, dtype=np.int32)
    tensor, _ = tensor_over(array, DataType.INT32)
    assert np.from_dlpack(tensor).tolist() == array.tolist()


def test_memory_lives_as_long_as_its_taker() -> None:
    tensor, owner = tensor_over(np.arange(4.0), DataType.FP64)
    taken = from_dlpack(tensor)
    del tensor
    gc.collect()
    assert owner() is not None
    assert taken.tolist() == [0.0, 1.0, 2.0, 3.0]
    del taken
    assert owner() is None


def test_a_capsule_that_nobody_takes_lets_go() -> None:
    tensor, owner = tensor_over(np.arange(4.0), DataType.FP64)
    capsule = tensor.__dlpack__(stream=None, max_version=(1, 0))
    del tensor
    assert owner() is not None
    del capsule
    assert owner() is None


def test_a_layout_keeps_what_it_was_taken_from() -> None:
    source = torch.arange(4, dtype=torch.float32)
    layout = layout_of(source[1:])
    del source
    assert list((ctypes.c_float * 3).from_address(layout.address)) == [1.0, 2.0, 3.0]


@pytest.mark.parametrize(
    ("source", "text"),
    [
        (torch.zeros(3, 4).t(), r"shape \[4, 3\] do not follow each other row by row"),
        (torch.zeros(3, dtype=torch.complex64), "type 5 of 64 bits has no datatype"),
    ],
)
def test_what_no_tensor_can_be(source: torch.Tensor, text: str) -> None:
    with pytest.raises(BufferError, match=text):
        layout_of(source)


@pytest.mark.parametrize("shape", [(0, 3), (1, 1, 2), ()])
def test_odd_shapes(shape: tuple[int, ...]) -> None:
    source = torch.zeros(shape)
    layout = layout_of(source)
    assert (layout.shape, layout.byte_size) == (shape, 4 * math.prod(shape))


def test_strings_have_no_form() -> None:
    memory = HostMemory()
    tensor = device_tensor("x", DataType.BYTES, (1,), DeviceBuffer(memory, 0, 0, None))
    with pytest.raises(BufferError, match="BYTES"):
        tensor.__dlpack__()


def test_a_device_tensor_is_a_tensor() -> None:
    """Its bytes come to the host once, and stay there also for one under another name."""
    array = np.array([1, 2, 3], dtype=ml_dtypes.bfloat16)
    tensor, _ = tensor_over(array, DataType.BF16)
    memory = tensor.buffer.memory
    assert isinstance(memory, HostMemory)
    assert (tensor.byte_size, tensor.element_count, memory.reads) == (6, 3, 0)
    other = tensor.under("y", (1, 3))
    assert (other.name, other.shape, memory.reads) == ("y", (1, 3), 0)
    assert tensor.as_numpy().tolist() == [1.0, 2.0, 3.0]
    assert bytes(tensor.data) == array.tobytes()
    assert bytes(tensor.under("z", (3, 1)).data) == array.tobytes()
    assert memory.reads == 1
    here = tensor.on_host()
    assert type(here) is not DeviceTensor
    assert bytes(here.data) == array.tobytes()
