"""PyTorch models on GPUs behind a server's core: where instances are, and tensors that stay between the steps of an
ensemble. With the host for two GPUs where there is none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import trio

from backends.devices.machine import compute_capabilities
from backends.interface import BatchResult, InstanceSpec
from backends.pytorch import PyTorchBackend
from backends.pytorch import backend as backend_module
from backends.pytorch.device import Device, StreamDevice, device_of
from protocol.errors import InvalidArgument, Overloaded
from protocol.tensors.device_tensor import DeviceTensor
from repository.model_config import InstanceKind
from tests.backends.conformance.serving import Gate, model_of, serving
from tests.backends.pytorch.torch_models import save_script

HAS_GPU = torch.cuda.is_available() and bool(compute_capabilities())
NEEDS_GPU = (pytest.mark.gpu, pytest.mark.skipif(not HAS_GPU, reason="torch or the driver (nvidia-ml-py) sees no GPU"))
MODEL = """
    backend: "pytorch" max_batch_size: 8
    input {{ name: "X" data_type: TYPE_FP32 dims: [ 2 ] }} output {{ name: "Y" data_type: TYPE_FP32 dims: [ 2 ] }}
    {}
"""
CHAIN = """
    platform: "ensemble" max_batch_size: 8
    input { name: "IN" data_type: TYPE_FP32 dims: [ 2 ] } output { name: "OUT" data_type: TYPE_FP32 dims: [ 2 ] }
    ensemble_scheduling { step [
      { model_name: "first" model_version: -1
        input_map { key: "X" value: "IN" } output_map { key: "Y" value: "BETWEEN" } },
      { model_name: "second" model_version: -1
        input_map { key: "X" value: "BETWEEN" } output_map { key: "Y" value: "OUT" } }
    ] }
"""
ROWS = np.array([[1, 2], [3, 4]], np.float32)


class Double(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * x


@pytest.fixture(params=["host", pytest.param("gpu", marks=NEEDS_GPU)])
def gpus(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> tuple[int, ...]:
    """The numbers of the machine's GPUs."""
    if request.param == "gpu":
        return tuple(range(len(compute_capabilities())))

    def stand_in(spec: InstanceSpec) -> Device:
        return StreamDevice(torch.device("cpu"), spec) if spec.kind is InstanceKind.GPU else device_of(spec)

    monkeypatch.setattr(backend_module, "device_of", stand_in)
    monkeypatch.setattr(PyTorchBackend, "prefers_gpu", True)  # as of a torch that is built for CUDA
    monkeypatch.setattr("actors.core.server_core.compute_capabilities", lambda: ("9.0", "9.0"))
    return (0, 1)


class Watched(PyTorchBackend):
    """Says who has run what, and where its inputs lay."""

    seen: list[tuple[InstanceSpec, list[bool]]]

    async def execute(self, requests: Any) -> BatchResult:
        inputs = [isinstance(tensor, DeviceTensor) for each in requests for tensor in each.inputs]
        self.seen.append((self.spec, inputs))
        return await super().execute(requests)


@pytest.fixture
def watched() -> type[Watched]:
    return type("Watched", (Watched,), {"seen": []})


def write_chain(repository: Path, second: str) -> None:
    for name, group in {"first": "kind: KIND_GPU", "second": second}.items():
        save_script(Double(), repository / name, MODEL.format(f"instance_group {{ {group} }}"))
    (repository / "e" / "1").mkdir(parents=True)
    (repository / "e" / "config.pbtxt").write_text(CHAIN)


@pytest.mark.parametrize(("second", "stays"), [("kind: KIND_GPU", True), ("kind: KIND_CPU", False)])
async def test_between_two_models_on_gpus_a_tensor_stays(
    gpus: tuple[int, ...], watched: type[Watched], tmp_path: Path, second: str, stays: bool
) -> None:
    write_chain(tmp_path, second)
    async with serving(tmp_path, backends={"pytorch": watched}, load=["e"]) as core:
        found = await model_of(core, "e").infer({"IN": ROWS})
    np.testing.assert_array_equal(found["OUT"], 4 * ROWS)
    assert [(spec.source.name, inputs) for spec, inputs in watched.seen] == [("first", [False]), ("second", [stays])]


async def test_from_gpu_to_gpu(gpus: tuple[int, ...], watched: type[Watched], tmp_path: Path) -> None:
    """The second model is on the last GPU, which is another one where there are several."""
    write_chain(tmp_path, f"kind: KIND_GPU gpus: {gpus[-1]}")
    config = tmp_path / "first" / "config.pbtxt"
    config.write_text(config.read_text().replace("kind: KIND_GPU", "kind: KIND_GPU gpus: 0"))
    async with serving(tmp_path, backends={"pytorch": watched}, load=["e"]) as core:
        for _ in range(3):
            found = await model_of(core, "e").infer({"IN": ROWS})
            np.testing.assert_array_equal(found["OUT"], 4 * ROWS)
    assert {(spec.source.name, spec.device_id) for spec, _ in watched.seen} == {("first", 0), ("second", gpus[-1])}


GPU, CPU = InstanceKind.GPU, InstanceKind.CPU


@pytest.mark.parametrize(
    ("groups", "on_each", "on_last", "on_cpu"),
    [
        ("", 1, 0, 0),  # the backend is for GPUs
        ("{ kind: KIND_AUTO }", 1, 0, 0),
        ("{ kind: KIND_GPU count: 2 }", 2, 0, 0),
        ("{ kind: KIND_GPU gpus: LAST }", 0, 1, 0),
        ("{ kind: KIND_CPU count: 2 }, { kind: KIND_GPU }", 1, 0, 2),
    ],
)
async def test_instances_are_where_their_group_says(
    gpus: tuple[int, ...],
    watched: type[Watched],
    tmp_path: Path,
    groups: str,
    on_each: int,
    on_last: int,
    on_cpu: int,
) -> None:
    """All of them compute: as many requests as there are instances are held in them at a time."""
    groups = groups.replace("LAST", str(gpus[-1]))
    save_script(Double(), tmp_path / "m", MODEL.format(f"instance_group [ {groups} ]" if groups else ""))
    expected = [(GPU, gpu) for gpu in gpus for _ in range(on_each)]
    expected += [(GPU, gpus[-1])] * on_last + [(CPU, 0)] * on_cpu
    gate = Gate()
    async with serving(tmp_path, backends={"pytorch": gate.on(watched)}) as core, trio.open_nursery() as nursery:
        model, answers = model_of(core), []

        async def ask(index: int) -> None:
            answers.append((index, await model.infer({"X": index * ROWS})))

        for index in range(len(expected)):
            nursery.start_soon(ask, index)
        await gate.wait_batches(len(expected))
        gate.open()
    assert sorted((spec.kind.name, spec.device_id) for spec, _ in watched.seen) == sorted(
        (kind.name, device_id) for kind, device_id in expected
    )
    for index, found in answers:
        np.testing.assert_array_equal(found["Y"], 2 * index * ROWS)


async def test_a_gpu_that_is_not_there(gpus: tuple[int, ...], tmp_path: Path) -> None:
    save_script(Double(), tmp_path / "m", MODEL.format(f"instance_group {{ kind: KIND_GPU gpus: {len(gpus)} }}"))
    async with serving(tmp_path, load=()) as core:
        with pytest.raises(InvalidArgument, match=f"invalid or unsupported gpu id {len(gpus)}"):
            await core.load_model("m")


class Expands(torch.nn.Module):
    """As many gibibytes as the argument says, on the device; the first element of them."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made = torch.zeros([int(x.sum().item()), 1 << 28], device=x.device)
        return made.reshape(-1)[:1] + x


@pytest.mark.gpu
@pytest.mark.skipif(not HAS_GPU, reason="torch or the driver (nvidia-ml-py) sees no GPU")
async def test_a_full_gpu_fails_the_request_and_not_the_model(tmp_path: Path) -> None:
    config = """
        backend: "pytorch" instance_group { kind: KIND_GPU }
        input [ { name: "X" data_type: TYPE_FP32 dims: [ 1 ] } ]
        output [ { name: "Y" data_type: TYPE_FP32 dims: [ 1 ] } ]
    """
    save_script(Expands(), tmp_path / "m", config)
    async with serving(tmp_path) as core:
        model = model_of(core)
        for gibibytes in (1, 1 << 20, 1):
            asked = {"X": np.array([gibibytes], np.float32)}
            if gibibytes > 1:
                with pytest.raises(Overloaded, match="no memory left"):
                    await model.infer(asked)
            else:
                assert (await model.infer(asked))["Y"].tolist() == [1]
