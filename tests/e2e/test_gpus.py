"""A server on a machine with NVIDIA GPUs: ensembles there, CUDA shared memory of another process, metrics, full memory.

The models are TorchScript. Not seen running: there was no GPU.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from prometheus_client.parser import text_string_to_metric_families
from tritonclient.utils import InferenceServerException

from backends.devices.machine import compute_capabilities
from protocol.tensors.cuda import find_cupy
from tests.backends.pytorch.test_served_devices import Double, Expands, write_chain
from tests.backends.pytorch.torch_models import save_script
from tests.e2e.client import Client, status_of
from tests.e2e.server_process import ServerProcess
from tests.e2e.test_metrics import scrape

HAS_GPU = torch.cuda.is_available() and bool(compute_capabilities())
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not HAS_GPU, reason="torch or the driver (nvidia-ml-py) sees no GPU"),
]
VALUES = np.arange(8, dtype=np.float32).reshape(4, 2)
EXPANDS = """
    backend: "pytorch" instance_group { kind: KIND_GPU }
    input { name: "X" data_type: TYPE_FP32 dims: [ 1 ] } output { name: "Y" data_type: TYPE_FP32 dims: [ 1 ] }
"""
GROUPS = """
    backend: "pytorch"
    input {{ name: "X" data_type: TYPE_FP32 dims: [ -1 ] }} output {{ name: "Y" data_type: TYPE_FP32 dims: [ -1 ] }}
    instance_group [ {} ]
"""


@pytest.fixture(scope="module")
def gpu_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    models = tmp_path_factory.mktemp("models")
    write_chain(models, "kind: KIND_GPU")
    save_script(Expands(), models / "expands", EXPANDS)
    for name, groups in {
        "auto": "{ kind: KIND_AUTO }",
        "everywhere": "{ kind: KIND_CPU }, { kind: KIND_GPU }",
        "listed": "{ kind: KIND_GPU gpus: [ 0 ] }",
    }.items():
        save_script(Double(), models / name, GROUPS.format(groups))
    with ServerProcess(repository=models) as process:
        yield process


@pytest.fixture(params=["http", "grpc"])
def gpu_client(gpu_server: ServerProcess, request: pytest.FixtureRequest) -> Iterator[Client]:
    with Client(request.param, gpu_server.addresses[request.param]) as made:
        yield made


@pytest.fixture
def regions() -> Iterator[ModuleType]:
    """The client's own library for CUDA shared memory. cupy is what the server opens it with."""
    try:
        found = importlib.import_module("tritonclient.utils.cuda_shared_memory")
    except (ImportError, RuntimeError) as error:  # it raises RuntimeError without cuda-python
        pytest.skip(f"tritonclient has no CUDA shared memory here: {error}")
    if find_cupy() is None:
        pytest.skip("cupy sees no GPU")
    yield found
    for region in list(found.allocated_shared_memory_regions()):
        found.destroy_shared_memory_region(region)


def register(client: Client, regions: ModuleType, name: str, byte_size: int) -> Any:
    name = f"{name}_{client.protocol}"
    region = regions.create_shared_memory_region(name, byte_size, 0)
    client.raw.register_cuda_shared_memory(name, regions.get_raw_handle(region), 0, byte_size)
    return region


def test_an_ensemble_of_models_on_gpus(gpu_client: Client) -> None:
    for scale in (1, 2, 3):
        found = gpu_client.infer("e", {"IN": scale * VALUES})
        np.testing.assert_array_equal(found["OUT"], 4 * scale * VALUES)


@pytest.mark.parametrize("model", [("e", "IN", "OUT"), ("first", "X", "Y")], ids=["ensemble", "model"])
def test_cuda_shared_memory_of_this_process(
    gpu_client: Client, regions: ModuleType, model: tuple[str, str, str]
) -> None:
    """Inputs from there, outputs to there, one of the two, and both in one region."""
    name, source, target = model
    factor = 4 if name == "e" else 2
    size = VALUES.nbytes
    given = register(gpu_client, regions, "given", size)
    made = register(gpu_client, regions, "made", 2 * size)
    api = gpu_client.api
    try:
        for scale in (1, 2):
            regions.set_shared_memory_region(given, [scale * VALUES])
            expected = factor * scale * VALUES

            tensor = api.InferInput(source, list(VALUES.shape), "FP32")
            tensor.set_shared_memory(f"given_{gpu_client.protocol}", size)
            wanted = api.InferRequestedOutput(target)
            wanted.set_shared_memory(f"made_{gpu_client.protocol}", size, size)
            gpu_client.raw.infer(name, [tensor], outputs=[wanted])
            both = regions.get_contents_as_numpy(made, np.float32, [2, *VALUES.shape])
            np.testing.assert_array_equal(both[1], expected)

            answer = gpu_client.raw.infer(name, [tensor])
            np.testing.assert_array_equal(answer.as_numpy(target), expected)

            gpu_client.raw.infer(name, gpu_client.tensors({source: -scale * VALUES}), outputs=[wanted])
            both = regions.get_contents_as_numpy(made, np.float32, [2, *VALUES.shape])
            np.testing.assert_array_equal(both[1], -expected)

            # The answer of one request is the next one's input.
            tensor.set_shared_memory(f"made_{gpu_client.protocol}", size, size)
            wanted.set_shared_memory(f"made_{gpu_client.protocol}", size)
            gpu_client.raw.infer(name, [tensor], outputs=[wanted])
            both = regions.get_contents_as_numpy(made, np.float32, [2, *VALUES.shape])
            np.testing.assert_array_equal(both[0], -factor * expected)
    finally:
        gpu_client.raw.unregister_cuda_shared_memory()


def test_a_region_that_is_too_small(gpu_client: Client, regions: ModuleType) -> None:
    register(gpu_client, regions, "small", VALUES.nbytes)
    tensor = gpu_client.api.InferInput("X", [8, 2], "FP32")
    tensor.set_shared_memory(f"small_{gpu_client.protocol}", 2 * VALUES.nbytes)
    try:
        with pytest.raises(InferenceServerException) as caught:
            gpu_client.raw.infer("first", [tensor])
        assert status_of(caught.value) == "INVALID_ARGUMENT"
    finally:
        gpu_client.raw.unregister_cuda_shared_memory()


def test_full_memory_fails_the_request_and_not_the_server(gpu_client: Client) -> None:
    one, too_many = (np.array([gibibytes], np.float32) for gibibytes in (1, 1 << 20))
    for _ in range(2):
        assert gpu_client.infer("expands", {"X": one})["Y"].tolist() == [1]
        with pytest.raises(InferenceServerException, match="no memory left") as caught:
            gpu_client.infer("expands", {"X": too_many})
        assert status_of(caught.value) == ("UNAVAILABLE" if gpu_client.protocol == "http" else "RESOURCE_EXHAUSTED")
    assert gpu_client.is_ready("expands")
    np.testing.assert_array_equal(gpu_client.infer("e", {"IN": VALUES})["OUT"], 4 * VALUES)


def test_groups_get_the_gpus_of_the_machine(gpu_client: Client) -> None:
    everywhere = list(range(len(compute_capabilities())))
    expected = {
        "auto": [("KIND_GPU", everywhere)],
        "everywhere": [("KIND_CPU", []), ("KIND_GPU", everywhere)],
        "listed": [("KIND_GPU", [0])],
    }
    for model, groups in expected.items():
        config = gpu_client.json("get_model_config", model)
        found = config.get("config", config)["instance_group"]
        assert [(group["kind"], list(map(int, group.get("gpus", [])))) for group in found] == groups
        for scale in range(2 * len(everywhere) + 1):
            answer = gpu_client.infer(model, {"X": scale * VALUES.reshape(-1)})
            np.testing.assert_array_equal(answer["Y"], 2 * scale * VALUES.reshape(-1))


def test_metrics_of_the_gpus_are_the_drivers(gpu_server: ServerProcess) -> None:
    import pynvml

    pynvml.nvmlInit()
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        totals = {pynvml.nvmlDeviceGetUUID(each): pynvml.nvmlDeviceGetMemoryInfo(each).total for each in handles}
    finally:
        pynvml.nvmlShutdown()
    found: dict[str, dict[str, float]] = {}
    for family in text_string_to_metric_families(scrape(gpu_server)):
        for sample in family.samples:
            if sample.name.startswith("nv_gpu_"):
                found.setdefault(sample.name, {})[sample.labels["gpu_uuid"]] = sample.value
    shown = found["nv_gpu_memory_total_bytes"]
    assert len(shown) == len(compute_capabilities())
    assert all(totals[uuid] == value for uuid, value in shown.items())
    assert found.keys() >= {"nv_gpu_utilization", "nv_gpu_memory_used_bytes", "nv_gpu_power_usage"}
    for uuid, used in found["nv_gpu_memory_used_bytes"].items():
        assert 0 < used <= shown[uuid]
        assert 0 <= found["nv_gpu_utilization"][uuid] <= 1
        assert found["nv_gpu_power_usage"][uuid] > 0
