"""ONNX models with the accelerator `openvino`, where the installed onnxruntime is that of onnxruntime-openvino."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import trio

from backends.onnxruntime import OnnxRuntimeBackend
from protocol.errors import InvalidArgument
from tests.backends.helpers import answer, infer, loaded, objects, request_of, source_of, spec_of
from tests.examples.loading import load_example

OPENVINO = """
instance_group { kind: KIND_CPU count: 1 }
optimization { execution_accelerators { cpu_execution_accelerator [ { name: "openvino" } ] } }
"""
needs_openvino = pytest.mark.skipif(
    "OpenVINOExecutionProvider" not in onnxruntime.get_available_providers(),
    reason="needs onnxruntime-openvino in the place of onnxruntime",
)


def model(name: str, folder: Path, more: str = "") -> str:
    """One of the example's models; its configuration with the accelerator."""
    getattr(load_example("formats/onnx_format"), name)(folder)
    return (folder / "config.pbtxt").read_text() + OPENVINO + more


@needs_openvino
@pytest.mark.parametrize("more", ["", 'parameters { key: "intra_op_thread_count" value { string_value: "1" } }'])
async def test_batches_are_what_numpy_computes(tmp_path: Path, more: str) -> None:
    three_models = load_example("formats/three_models")
    for name in ("add_sub", "image"):
        config = model(name, tmp_path / name, more)
        async with loaded(OnnxRuntimeBackend, spec_of(source_of(config, tmp_path / name))) as backend:
            for rows in ((1,), (3, 2), (8,)):
                inputs = [three_models.sample(name, count) for count in rows]
                responses = await infer(backend, *(request_of(*each.items()) for each in inputs))
                for given, response in zip(inputs, responses, strict=True):
                    for output, expected in three_models.ANSWERS[name](given).items():
                        np.testing.assert_allclose(answer(response)[output], expected, rtol=1e-5, atol=1e-5)


@needs_openvino
async def test_what_openvino_cannot_compute_the_cpu_does(tmp_path: Path) -> None:
    config = model("text", tmp_path)
    async with loaded(OnnxRuntimeBackend, spec_of(source_of(config, tmp_path))) as backend:
        (found,) = await infer(backend, request_of(("NAME", objects("Ada").reshape(1, 1))))
        assert answer(found)["GREETING"].tolist() == [[b"Hello, Ada!"]]


@needs_openvino
async def test_the_graph_is_openvinos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the library's own profile says, of a session as the backend makes it."""
    make = onnxruntime.InferenceSession
    made = []

    def profiled(path: str, options: onnxruntime.SessionOptions, **more: object) -> object:
        options.enable_profiling = True
        options.profile_file_prefix = str(tmp_path / "profile")
        made.append(make(path, options, **more))
        return made[-1]

    monkeypatch.setattr(onnxruntime, "InferenceSession", profiled)
    config = model("image", tmp_path)
    async with loaded(OnnxRuntimeBackend, spec_of(source_of(config, tmp_path))) as backend:
        await infer(backend, request_of(("IMAGE", np.zeros((1, 3, 32, 32), np.float32))))
        events = json.loads(await trio.Path(made[-1].end_profiling()).read_text())
    used = {event["args"]["provider"] for event in events if "provider" in event.get("args", {})}
    assert used == {"OpenVINOExecutionProvider"}


async def test_a_check_of_the_files_finds_an_accelerator_that_is_not_known(tmp_path: Path) -> None:
    config = model("add_sub", tmp_path).replace('"openvino"', '"magic"')
    with pytest.raises(InvalidArgument, match="unknown Execution Accelerator 'magic' is requested for model 'm'"):
        await OnnxRuntimeBackend.check_model(source_of(config, tmp_path))
