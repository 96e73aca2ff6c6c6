"""GPU tensors as far as they can be seen without a GPU: host memory stands behind the names of torch and cupy."""

from __future__ import annotations

import gc
import importlib.util
import sys
import weakref
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from backends.python.worker.trioton_worker import api as pb_utils
from backends.python.worker.trioton_worker import device
from backends.python.worker.trioton_worker.tensors import on_device
from protocol.datatypes import DataType
from tests.backends.python import host_gpu
from tests.backends.python.received import received_tensor

HOST_GPU = Path(host_gpu.__file__)
NAMES = ("torch", "cupy")
NUMBERS = [t for t in DataType if t not in (DataType.INVALID, DataType.BYTES, DataType.BF16)]
NO_LIBRARY = "GPU tensors need torch or cupy in the model's environment, built for CUDA"


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> Callable[..., ModuleType]:
    """Puts a library of that name where models find it; the other one is not there."""
    for name in NAMES:
        monkeypatch.setitem(sys.modules, name, None)

    def put(name: str, *, is_available: bool = True) -> ModuleType:
        spec = importlib.util.spec_from_file_location(name, HOST_GPU)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        module.machine.is_available = is_available
        monkeypatch.setitem(sys.modules, name, module)
        return module

    return put


@pytest.fixture(params=NAMES)
def library(request: pytest.FixtureRequest, stand_in: Callable[..., ModuleType]) -> Any:
    return stand_in(request.param)


@pytest.mark.parametrize("datatype", NUMBERS, ids=lambda datatype: datatype.name)
def test_memory_on_a_gpu_stays_there_until_it_leaves(library: Any, datatype: DataType) -> None:
    source = np.arange(6).reshape(2, 3).astype(datatype.dtype)
    tensor = pb_utils.Tensor.from_dlpack("x", library.GpuArray(source, 0))
    assert isinstance(tensor, pb_utils.Tensor)
    assert (tensor.name(), tensor.triton_dtype(), tensor.shape()) == ("x", datatype.number, [2, 3])
    assert not tensor.is_cpu()
    assert tensor.__dlpack_device__() == (2, 0)
    with pytest.raises(
        pb_utils.TritonModelException, match=r"^Tensor is stored in GPU and cannot be converted to NumP"
    ):
        tensor.as_numpy()
    assert ("to_host", 0) not in library.machine.log
    assert bytes(tensor._raw()) == source.tobytes()
    assert library.machine.log[-1] == ("to_host", 0)


def test_it_is_passed_on_without_a_copy_and_more_than_once(library: Any) -> None:
    source = np.zeros(3, np.float32)
    tensor = pb_utils.Tensor.from_dlpack("x", library.GpuArray(source, 0))
    first = library.from_dlpack(tensor.to_dlpack())
    second = pb_utils.Tensor.from_dlpack("y", tensor)
    source[1] = 5
    assert first.memory.tolist() == [0, 5, 0]
    assert np.frombuffer(second._raw(), np.float32).tolist() == [0, 5, 0]


def test_bf16_keeps_its_name_on_the_way(library: Any) -> None:
    source = np.arange(4).astype(ml_dtypes.bfloat16)
    made = library.GpuArray(source.view(np.int16), 0, is_bfloat=True)
    tensor = pb_utils.Tensor.from_dlpack("x", made)
    assert tensor.triton_dtype() == 14
    capsule = tensor.to_dlpack()
    assert library.header(capsule).code == 4
    again = pb_utils.Tensor.from_dlpack("y", capsule)
    assert (again.triton_dtype(), bytes(again._raw())) == (14, source.tobytes())


def test_streams_are_those_that_dlpack_wants(library: Any) -> None:
    """The library's current one, the default one as 1; what fills the memory has ended when it is held."""
    array = np.zeros(1, np.int8)
    for device_id, asked, waited in ((0, 1, 0), (1, 4097, 4097)):
        library.machine.log.clear()
        tensor = pb_utils.Tensor.from_dlpack("x", library.GpuArray(array, device_id))
        assert library.machine.log == [("export", asked), ("synchronize", waited)]
        tensor.__dlpack__(stream=7)
        assert library.machine.log[-1] == ("export", 7)
        assert tensor.__dlpack_device__() == (2, device_id)


def test_its_memory_lives_as_long_as_the_tensor_or_a_capsule(library: Any) -> None:
    source = np.zeros(3, np.float32)
    memory = weakref.ref(source)
    tensor = pb_utils.Tensor.from_dlpack("x", library.GpuArray(source, 0).__dlpack__())
    capsule = tensor.to_dlpack()
    del source, tensor
    gc.collect()
    assert memory() is not None
    del capsule
    gc.collect()
    assert memory() is None


def test_what_cannot_be_held_is_refused(library: Any) -> None:
    def refused(source: object) -> str:
        with pytest.raises(pb_utils.TritonModelException) as failure:
            pb_utils.Tensor.from_dlpack("x", source)
        return str(failure.value)

    assert refused(library.GpuArray(np.zeros((4, 4))[:, :2], 0)).startswith("DLPack tensor is not contiguous.")
    assert refused(library.GpuArray(np.zeros(2, np.complex64), 0)).startswith("DLPack data type with code 5, 64 bits")
    capsule = library.GpuArray(np.zeros(2), 0).__dlpack__()
    library.header(capsule).lanes = 4
    assert refused(capsule).endswith("64 bits and 4 lanes is not supported.")
    capsule = library.GpuArray(np.zeros(2), 0).__dlpack__()
    pb_utils.Tensor.from_dlpack("x", capsule)
    assert refused(capsule).startswith("The DLPack capsule was used before")


def test_pinned_memory_is_the_hosts() -> None:
    capsule = np.arange(3, dtype=np.int32).__dlpack__()
    host_gpu.header(capsule).device_type = 3
    tensor = pb_utils.Tensor.from_dlpack("x", capsule)
    assert tensor.is_cpu()
    assert tensor.as_numpy().tolist() == [0, 1, 2]


def test_a_failed_copy_says_which(library: Any) -> None:
    tensor = pb_utils.Tensor.from_dlpack("x", library.GpuArray(np.zeros(1), 1))
    library.machine.out_of_memory = True
    with pytest.raises(
        pb_utils.TritonModelException,
        match=r"^Tensor 'x' cannot be copied from GPU 1 to the host: RuntimeError: CUDA error: out of memory$",
    ):
        tensor._raw()


def received(number: int, array: Any) -> pb_utils.Tensor:
    memory = np.frombuffer(bytearray(array.tobytes()), np.uint8)
    return received_tensor("x", number, list(array.shape), memory)


def test_a_received_tensor_is_copied_to_a_gpu(library: Any) -> None:
    for number, array in ((11, np.arange(6, dtype=np.float32).reshape(2, 3)), (14, np.arange(2, dtype=np.uint16))):
        moved = on_device(received(number, array), 1)
        assert (moved.name(), moved.triton_dtype(), moved.shape()) == ("x", number, list(array.shape))
        assert moved.__dlpack_device__() == (2, 1)
        assert bytes(moved._raw()) == array.tobytes()
        assert library.machine.log[-2:] == [("synchronize", 4097), ("to_host", 1)]
    scalar = pb_utils.Tensor.from_dlpack("x", library.GpuArray(np.array(2.5), 0))
    assert (scalar.shape(), bytes(scalar._raw())) == ([], np.array(2.5).tobytes())
    empty = on_device(received_tensor("x", 11, [0, 3], np.empty(0, np.uint8)), 0)
    assert (empty.shape(), empty.is_cpu(), bytes(empty._raw())) == ([0, 3], False, b"")


def test_strings_stay_on_the_host_and_a_gpu_that_is_not_there_is_named(library: Any) -> None:
    strings = received_tensor("x", 13, [0], np.empty(0, np.uint8))
    assert on_device(strings, 0) is strings
    with pytest.raises(
        pb_utils.TritonModelException,
        match=r"^Tensor 'x' cannot be copied to GPU 7: RuntimeError: CUDA error: invalid device ordinal 7$",
    ):
        on_device(received(11, np.zeros(1, np.float32)), 7)


def test_the_library_that_can_use_a_gpu_is_taken(stand_in: Callable[..., ModuleType]) -> None:
    cupy = stand_in("cupy")
    assert isinstance(device.find_library(), device.Cupy)
    torch = stand_in("torch")
    assert isinstance(device.find_library(), device.Torch)
    torch.version.cuda = None  # as one for the CPU, or for ROCm, says
    assert isinstance(device.find_library(), device.Cupy)
    cupy.machine.is_available = False
    assert device.find_library() is None
    torch.version.cuda = "12.9"
    assert isinstance(device.find_library(), device.Torch)
    torch.machine.is_available = False
    assert device.find_library() is None


def test_what_the_model_has_imported_comes_first(
    stand_in: Callable[..., ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one is imported only where that is of no use, and one that breaks at its import is none."""
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "torch")
    (tmp_path / "torch.py").write_text(HOST_GPU.read_text())
    cupy = stand_in("cupy")
    assert isinstance(device.find_library(), device.Cupy)
    assert "torch" not in sys.modules
    cupy.machine.is_available = False
    assert isinstance(device.find_library(), device.Torch)
    monkeypatch.delitem(sys.modules, "torch")
    (tmp_path / "torch.py").write_text("raise OSError('libcudart.so: cannot open shared object file')")
    importlib.invalidate_caches()
    sys.path_importer_cache.clear()
    assert device.find_library() is None


def test_without_a_library_it_is_said(stand_in: Callable[..., ModuleType]) -> None:
    class Elsewhere:
        def __dlpack__(self, **_: object) -> object:
            raise AssertionError("not to be called")

        def __dlpack_device__(self) -> tuple[int, int]:
            return (2, 0)

    with pytest.raises(pb_utils.TritonModelException, match=NO_LIBRARY):
        pb_utils.Tensor.from_dlpack("x", Elsewhere())
    with pytest.raises(pb_utils.TritonModelException, match=NO_LIBRARY):
        on_device(received(11, np.zeros(1, np.float32)), 0)
