"""Tensors between models and torch itself: on the CPU wherever torch is, on a GPU where there is one."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import msgspec
import numpy as np
import pytest

from backends.python.workers.process import MAIN
from repository.model_config import InstanceKind
from tests.backends.python.models import CONFIG, backend, infer, output, parameters, request, running

# In a process of their own: what torch warns of and starts stays out of the others.
PRELUDE = """
import sys
import numpy as np
import torch
import triton_python_backend_utils as pb_utils
"""


@pytest.fixture(scope="module")
def device() -> str:
    """Where this torch can compute: cpu or gpu. It is asked in another process."""
    code = "import torch; print('gpu' if torch.version.cuda and torch.cuda.is_available() else 'cpu')"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    if found.returncode:
        pytest.skip("torch is not installed: pip install '.[torch]'")
    return found.stdout.strip()


@pytest.fixture
def gpu(device: str) -> None:
    if device != "gpu":
        pytest.skip("torch sees no GPU")


def run(code: str) -> None:
    """As a model sees things. The code asserts."""
    path = os.pathsep.join([str(MAIN.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + textwrap.dedent(code)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert done.returncode == 0, done.stderr


def test_every_datatype_crosses_both_ways_on_the_cpu(device: str) -> None:
    run("""
        for number, dtype in enumerate(
            (torch.bool, torch.uint8, torch.uint16, torch.uint32, torch.uint64, torch.int8, torch.int16, torch.int32,
             torch.int64, torch.float16, torch.float32, torch.float64), 1,
        ):
            source = torch.arange(6).to(dtype).reshape(2, 3)
            tensor = pb_utils.Tensor.from_dlpack("x", source)
            assert (tensor.triton_dtype(), tensor.shape(), tensor.is_cpu()) == (number, [2, 3], True)
            assert tensor.as_numpy().tolist() == source.tolist()
            for back in (torch.from_dlpack(tensor), torch.utils.dlpack.from_dlpack(tensor.to_dlpack())):
                assert back.dtype == dtype and back.data_ptr() == source.data_ptr() and torch.equal(back, source)
    """)


def test_bf16_crosses_both_ways_on_the_cpu(device: str) -> None:
    run("""
        source = torch.arange(6).to(torch.bfloat16).reshape(2, 3)
        for given in (source, torch.utils.dlpack.to_dlpack(source)):
            tensor = pb_utils.Tensor.from_dlpack("x", given)
            assert (tensor.triton_dtype(), bytes(tensor._raw())) == (14, source.view(torch.uint8).numpy().tobytes())
            back = torch.from_dlpack(tensor)
            assert back.dtype == torch.bfloat16 and torch.equal(back, source)
    """)


def test_what_torch_has_not_in_order_is_refused(device: str) -> None:
    run("""
        try:
            pb_utils.Tensor.from_dlpack("x", torch.zeros(3, 4).T)
        except pb_utils.TritonModelException as error:
            assert str(error).startswith("DLPack tensor is not contiguous."), error
        else:
            raise AssertionError("taken")
    """)


def test_a_torch_without_a_gpu_copies_nothing(device: str) -> None:
    """It says so in a sentence of its own, not in CUDA's."""
    if device == "gpu":
        pytest.skip("torch sees a GPU")
    run("""
        from trioton_worker.device import find_library
        sys.modules["cupy"] = None
        assert find_library() is None
    """)


@pytest.mark.gpu
def test_memory_on_a_gpu_stays_there_until_it_leaves(gpu: None) -> None:
    run("""
        for dtype in (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16,
                      torch.bfloat16, torch.float32, torch.float64):
            source = torch.arange(6, device="cuda").to(dtype).reshape(2, 3)
            for given in (source, torch.utils.dlpack.to_dlpack(source)):
                tensor = pb_utils.Tensor.from_dlpack("x", given)
                assert not tensor.is_cpu() and tensor.__dlpack_device__() == (2, 0) and tensor.shape() == [2, 3]
                for back in (torch.from_dlpack(tensor), torch.utils.dlpack.from_dlpack(tensor.to_dlpack())):
                    assert back.dtype == dtype and back.data_ptr() == source.data_ptr() and torch.equal(back, source)
                assert bytes(tensor._raw()) == source.cpu().view(torch.uint8).numpy().tobytes()
                try:
                    tensor.as_numpy()
                except pb_utils.TritonModelException as error:
                    assert str(error) == "Tensor is stored in GPU and cannot be converted to NumPy."
                else:
                    raise AssertionError("converted")
        assert pb_utils.Tensor.from_dlpack("x", torch.zeros(0, 3, device="cuda"))._raw() == b""
    """)


@pytest.mark.gpu
def test_work_that_is_under_way_on_another_stream_is_waited_for(gpu: None) -> None:
    run("""
        with torch.cuda.stream(torch.cuda.Stream()):
            source = torch.ones(4096, 4096, device="cuda")
            for _ in range(50):
                source = source @ source / 4096
            tensor = pb_utils.Tensor.from_dlpack("x", source)
        assert np.frombuffer(tensor._raw(), np.float32).min() == 1.0
    """)


@pytest.mark.gpu
def test_a_received_tensor_is_copied_to_a_gpu(gpu: None) -> None:
    run("""
        from trioton_worker.tensors import on_device, received_tensor
        numbers = np.arange(6, dtype=np.int16)
        for number, dtype in ((8, torch.int32), (7, torch.int16), (14, torch.bfloat16)):
            array = numbers.astype(np.int32) if number == 8 else numbers
            memory = np.frombuffer(bytearray(array.tobytes()), np.uint8)
            moved = on_device(received_tensor("x", number, [2, 3], memory, 0, memory.nbytes), 0)
            back = torch.from_dlpack(moved)
            assert back.dtype == dtype and back.is_cuda and back.shape == (2, 3)
            assert bytes(moved._raw()) == array.tobytes()
    """)


@pytest.mark.parametrize("kind", [InstanceKind.CPU, pytest.param(InstanceKind.GPU, marks=pytest.mark.gpu)])
async def test_a_model_computes_where_its_instance_is(device: str, tmp_path: Path, kind: InstanceKind) -> None:
    if kind is InstanceKind.GPU and device != "gpu":
        pytest.skip("torch sees no GPU")
    text = """
        import torch
        import triton_python_backend_utils as pb_utils


        class TritonPythonModel:
            def initialize(self, args):
                self.is_gpu = args["model_instance_kind"] == "GPU"

            def execute(self, requests):
                return [self.answer(torch.from_dlpack(request.inputs()[0])) for request in requests]

            def answer(self, tensor):
                assert tensor.is_cuda == self.is_gpu
                return pb_utils.InferenceResponse([pb_utils.Tensor.from_dlpack("OUT", tensor * 2)])
    """
    config = msgspec.structs.replace(CONFIG, parameters=parameters(FORCE_CPU_ONLY_INPUT_TENSORS="no"))
    async with running(backend(tmp_path, text, config=config, kind=kind)) as instance:
        for size in (3, 100_000):
            array = np.arange(size, dtype=np.float32).reshape(1, size)
            [response] = await infer(instance, request(array))
            assert np.array_equal(output(response), array * 2)
