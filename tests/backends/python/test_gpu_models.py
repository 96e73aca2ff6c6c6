"""Models with GPU tensors in real workers. The library that they import stands on host memory (see `host_gpu`)."""

from __future__ import annotations

import logging
from pathlib import Path

import msgspec
import numpy as np
import pytest

from backends.interface import InstanceSpec, ModelSource
from backends.python import PythonBackend
from backends.services import BackendServices
from protocol.errors import Internal
from repository.model_config import InstanceKind
from tests.backends.python import host_gpu
from tests.backends.python.models import CONFIG, DECOUPLED, infer, output, parameters, request, running, write_model
from tests.backends.python.models import stream as streamed
from tests.backends.python.test_services import Server

STAND_IN = Path(host_gpu.__file__).read_text()
NO_LIBRARY = "GPU tensors need torch or cupy in the model's environment, built for CUDA; here neither of them can use a"
NOT_THERE = {"torch": "raise ImportError", "cupy": "raise ImportError"}

# What lies beside the model is found last; here it stands for what may be installed.
BESIDE_FIRST = "import os, sys\nsys.path.insert(0, os.path.dirname(__file__))\n"
IMPORTS = """
import numpy as np
import triton_python_backend_utils as pb_utils

class Elsewhere:
    def __dlpack_device__(self):
        return (2, 0)
    def __dlpack__(self, **_):
        raise AssertionError("not to be called")

def text(value):
    return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([value], object))])
"""


def gpu_model(
    directory: Path,
    body: str,
    *,
    library: str = "cupy",
    mode: str = "process",
    is_decoupled: bool = False,
    kind: InstanceKind = InstanceKind.CPU,
    force_cpu: str | None = None,
) -> PythonBackend:
    """`library` is what lies beside the model; "" for none."""
    files = {**NOT_THERE, **({library: STAND_IN} if library else {})}
    imports = BESIDE_FIRST + (f"import {library} as gpu\n" if library else "")
    write_model(directory, imports + IMPORTS + body, files=files)
    options = {} if force_cpu is None else {"FORCE_CPU_ONLY_INPUT_TENSORS": force_cpu}
    config = msgspec.structs.replace(
        DECOUPLED if is_decoupled else CONFIG, parameters=parameters(ISOLATION=mode, **options)
    )
    server = Server()
    source = ModelSource("m", 1, directory, config, {"allow-in-process": "true"}, BackendServices(server, server))
    return PythonBackend(InstanceSpec(source, "m_0", kind, 1))


DOUBLE = """
class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request.inputs()[0].as_numpy()) for request in requests]

    def answer(self, array):
        doubled = pb_utils.Tensor.from_dlpack("OUT", gpu.GpuArray(array * 2, 1))
        unasked = pb_utils.Tensor.from_dlpack("MORE", gpu.GpuArray(array, 0))
        assert not doubled.is_cpu()
        return pb_utils.InferenceResponse([doubled, unasked])
"""


@pytest.mark.parametrize("library", ["torch", "cupy"])
@pytest.mark.parametrize("size", [3, 100_000])
async def test_outputs_on_a_gpu_reach_the_client(tmp_path: Path, library: str, size: int) -> None:
    """In the frame and in shared memory."""
    async with running(gpu_model(tmp_path, DOUBLE, library=library)) as instance:
        array = np.arange(size, dtype=np.float32).reshape(1, size)
        for _ in range(2):
            [response] = await infer(instance, request(array, outputs=("OUT",)))
            assert np.array_equal(output(response), array * 2)


async def test_outputs_of_a_response_sender_too(tmp_path: Path) -> None:
    body = """
class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            array = gpu.GpuArray(request.inputs()[0].as_numpy(), 0)
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor.from_dlpack("OUT", array)]), 1)
"""
    async with running(gpu_model(tmp_path, body, is_decoupled=True)) as instance:
        [receiver] = await streamed(instance, request([1.0, 2.0]))
        [response] = receiver.responses
        assert output(response).tolist() == [[1.0, 2.0]]


async def test_an_output_that_cannot_be_copied_fails_its_batch(tmp_path: Path) -> None:
    body = """
class TritonPythonModel:
    def execute(self, requests):
        gpu.machine.out_of_memory = True
        array = gpu.GpuArray(np.zeros(1, np.float32), 0)
        return [pb_utils.InferenceResponse([pb_utils.Tensor.from_dlpack("OUT", array)])]
"""
    async with running(gpu_model(tmp_path, body)) as instance:
        with pytest.raises(
            Internal, match="Tensor 'OUT' cannot be copied from GPU 0 to the host: RuntimeError: CUDA error: out of"
        ):
            await infer(instance, request())


async def test_without_a_library_the_model_is_told(tmp_path: Path) -> None:
    body = """
class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([pb_utils.Tensor.from_dlpack("OUT", Elsewhere())])]
"""
    async with running(gpu_model(tmp_path, body, library="")) as instance:
        with pytest.raises(Internal, match=NO_LIBRARY):
            await infer(instance, request())


WHERE = """
class TritonPythonModel:
    def execute(self, requests):
        return [text(f"{r.inputs()[0].is_cpu()} {tuple(r.inputs()[0].__dlpack_device__())}") for r in requests]
"""


@pytest.mark.parametrize(
    ("kind", "force", "expected"),
    [
        (InstanceKind.GPU, "no", "False (2, 1)"),
        (InstanceKind.GPU, "yes", "True (1, 0)"),
        (InstanceKind.CPU, "no", "True (1, 0)"),
        (InstanceKind.GPU, None, "True (1, 0)"),
    ],
)
async def test_where_inputs_are(tmp_path: Path, kind: InstanceKind, force: str | None, expected: str) -> None:
    async with running(gpu_model(tmp_path, WHERE, kind=kind, force_cpu=force)) as instance:
        [response] = await infer(instance, request())
        assert output(response).tolist() == [expected.encode()]


@pytest.mark.parametrize("mode", ["process", "threads"])
async def test_inputs_on_a_gpu_are_the_clients(tmp_path: Path, mode: str) -> None:
    """They are copies: what the next batch writes to shared memory does not reach them."""
    body = """
class TritonPythonModel:
    def execute(self, requests):
        self.kept = getattr(self, "kept", []) + [r.inputs()[0] for r in requests]
        arrays = [gpu.from_dlpack(tensor) for tensor in self.kept]
        total = gpu.GpuArray(np.array([[array.memory.sum() for array in arrays]], np.float32), 1)
        return [pb_utils.InferenceResponse([pb_utils.Tensor.from_dlpack("OUT", total)])]
"""
    instance = gpu_model(tmp_path, body, mode=mode, kind=InstanceKind.GPU, force_cpu="no")
    async with running(instance):
        for expected in ([8.0], [8.0, 80_000.0], [8.0, 80_000.0, 160_000.0]):
            size = 8 if len(expected) == 1 else 80_000
            array = np.full((1, size), expected[-1] / size, np.float32)
            [response] = await infer(instance, request(array))
            assert output(response).tolist() == [expected]


async def test_inputs_stay_on_the_host_where_nothing_can_copy_them(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    instance = gpu_model(tmp_path, WHERE, library="", kind=InstanceKind.GPU, force_cpu="no")
    with caplog.at_level(logging.WARNING):
        async with running(instance):
            [response] = await infer(instance, request())
            assert output(response).tolist() == [b"True (1, 0)"]
    assert "m_0: inputs stay on the CPU, although FORCE_CPU_ONLY_INPUT_TENSORS is 'no': GPU tensors need" in caplog.text


async def test_an_input_that_cannot_be_copied_fails_its_batch(tmp_path: Path) -> None:
    """And nothing but its batch."""
    body = (
        WHERE
        + """
    def initialize(self, args):
        self.cuda = gpu.asarray
        def failing(array):
            gpu.asarray = self.cuda
            raise RuntimeError("CUDA error: out of memory")
        gpu.asarray = failing
"""
    )
    instance = gpu_model(tmp_path, body, kind=InstanceKind.GPU, force_cpu="no")
    async with running(instance):
        with pytest.raises(Internal, match="Tensor 'IN' cannot be copied to GPU 1: RuntimeError: CUDA error: out of"):
            await infer(instance, request())
        [response] = await infer(instance, request())
        assert output(response).tolist() == [b"False (2, 1)"]


CALLS = """
import asyncio

def told(response):
    if response.has_error():
        return response.error().message()
    return [(t.is_cpu(), gpu.from_dlpack(t).memory.tolist()) for t in response.output_tensors() if not t.is_cpu()]

class TritonPythonModel:
    async def execute(self, requests):
        [request] = requests
        def calling(model, device):
            return pb_utils.InferenceRequest(
                model_name=model,
                inputs=[pb_utils.Tensor.from_dlpack("IN", gpu.GpuArray(np.float32([[3]]), 0))],
                requested_output_names=["OUT"],
                preferred_memory=pb_utils.PreferredMemory(pb_utils.TRITONSERVER_MEMORY_GPU, device),
            )
        found = [
            told(await calling("double", 1).async_exec()),
            told(await asyncio.to_thread(calling("double", 0).exec)),
            [told(each) async for each in await calling("stream", 1).async_exec(decoupled=True)],
            told(await calling("double", 5).async_exec()),
            told(await calling("absent", 1).async_exec()),
        ]
        return [text(repr(found))]
"""


async def test_calls_take_inputs_from_a_gpu_and_put_outputs_there(tmp_path: Path) -> None:
    """The called model sees and gives what is on the host."""
    async with running(gpu_model(tmp_path, CALLS)) as instance:
        [response] = await infer(instance, request())
        assert output(response).item().decode() == repr(
            [
                [(False, [[6.0]])],
                [(False, [[6.0]])],
                [[(False, [[6.0]])], [(False, [[6.0]])]],
                "Tensor 'OUT' cannot be copied to GPU 5: RuntimeError: CUDA error: invalid device ordinal 5",
                "Model absent - Error when running inference: Failed for execute the inference request. Model 'absent' "
                "is not ready.",
            ]
        )


async def test_outputs_of_calls_stay_on_the_host_where_there_is_no_gpu(tmp_path: Path) -> None:
    body = """
class TritonPythonModel:
    def execute(self, requests):
        [request] = requests
        called = pb_utils.InferenceRequest(
            model_name="double",
            inputs=request.inputs(),
            requested_output_names=["OUT"],
            preferred_memory=pb_utils.PreferredMemory(pb_utils.TRITONSERVER_MEMORY_GPU, 1),
        )
        [tensor] = called.exec().output_tensors()
        return [text(f"{tensor.is_cpu()} {tensor.as_numpy().tolist()}")]
"""
    async with running(gpu_model(tmp_path, body, library="")) as instance:
        [response] = await infer(instance, request([1.0, 2.0]))
        assert output(response).tolist() == [b"True [[2.0, 4.0]]"]
