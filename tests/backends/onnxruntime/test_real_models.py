"""Real ONNX models that packages carry: completed without any configuration, loaded, batched, and right."""

from __future__ import annotations

import importlib.util
import inspect
import json
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from numpy.typing import NDArray

from backends.interface import InstanceSpec, ModelSource
from backends.onnxruntime import OnnxRuntimeBackend
from protocol.datatypes import DataType
from repository.model_config import ModelConfig
from tests.backends.helpers import answer, infer, loaded, request_of, spec_of


def file_of(package: str, name: str) -> Path:
    """A file inside an installed package, found without importing the package."""
    spec = importlib.util.find_spec(package)
    assert spec is not None, f"the tests need the package {package}"
    assert spec.submodule_search_locations is not None
    return Path(spec.submodule_search_locations[0]) / name


async def completed(path: Path, directory: Path) -> InstanceSpec:
    """The file as version 1 of a model that has no configuration, as the server would complete it."""
    (directory / "1").mkdir()
    (directory / "1" / "model.onnx").symlink_to(path)
    source = ModelSource("m", 1, directory, ModelConfig(name="m", backend="onnxruntime"))
    config = await OnnxRuntimeBackend.complete_config(source)
    return spec_of(ModelSource("m", 1, directory, config))


def direct(path: Path, feed: dict[str, NDArray[np.float32]]) -> NDArray[np.float32]:
    """The first output of the library itself, without this server."""
    result: NDArray[np.float32] = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"]).run(
        None, feed
    )[0]
    return result


RAPIDOCR = [
    ("ch_ppocr_mobile_v2.0_cls_infer.onnx", (3, 48, 192)),
    ("ch_PP-OCRv4_rec_infer.onnx", (3, 48, 320)),
    ("ch_PP-OCRv4_det_infer.onnx", (3, 64, 96)),
]


@pytest.mark.parametrize(("name", "shape"), RAPIDOCR)
async def test_ocr_models_give_each_request_of_a_batch_what_they_give_it_alone(
    name: str, shape: tuple[int, ...], tmp_path: Path
) -> None:
    path = file_of("rapidocr_onnxruntime", f"models/{name}")
    spec = await completed(path, tmp_path)
    assert spec.config.max_batch_size == 4
    images = np.random.default_rng(7).random((3, *shape), dtype=np.float32)
    expected = [direct(path, {"x": images[row : row + 1]}) for row in range(3)]
    async with loaded(OnnxRuntimeBackend, spec) as backend:
        responses = await infer(backend, request_of(("x", images[:2])), request_of(("x", images[2:])))
    found = np.concatenate([next(iter(answer(response).values())) for response in responses])
    np.testing.assert_allclose(found, np.concatenate(expected), atol=1e-4)


async def test_magika_tells_file_types(tmp_path: Path) -> None:
    settings = json.loads(file_of("magika", "models/standard_v3_3/config.min.json").read_text())
    spec = await completed(file_of("magika", "models/standard_v3_3/model.onnx"), tmp_path)
    assert [(entry.name, entry.data_type, entry.dims) for entry in spec.config.input] == [
        ("bytes", DataType.INT32, (settings["beg_size"] + settings["end_size"],))
    ]

    def features(contents: bytes) -> NDArray[np.int32]:
        """The first and the last bytes, padded between."""
        begin, end = settings["beg_size"], settings["end_size"]
        row = np.full(begin + end, settings["padding_token"], np.int32)
        head, tail = contents.lstrip()[:begin], contents.rstrip()[-end:]
        row[: len(head)] = list(head)
        row[len(row) - len(tail) :] = list(tail)
        return row[np.newaxis]

    files = {
        "python": inspect.getsource(inspect).encode(),
        "json": json.dumps({"name": "value", "list": list(range(400))}, indent=1).encode(),
        "html": b"<!DOCTYPE html><html><head><title>T</title></head><body>" + b"<p>text</p>" * 60 + b"</body></html>",
    }
    async with loaded(OnnxRuntimeBackend, spec) as backend:
        responses = await infer(backend, *(request_of(("bytes", features(contents))) for contents in files.values()))
    labels = [settings["target_labels_space"][int(answer(response)["target_label"].argmax())] for response in responses]
    assert labels == list(files)


async def test_silero_vad_carries_its_state_and_takes_its_rate_as_a_scalar(tmp_path: Path) -> None:
    path = file_of("silero_vad", "data/silero_vad.onnx")
    spec = await completed(path, tmp_path)
    assert spec.config.max_batch_size == 0
    assert {entry.name: entry.dims for entry in spec.config.input} == {
        "input": (-1, -1),
        "state": (2, -1, 128),
        "sr": (1,),
    }
    rate, silence = np.array([16000], np.int64), np.zeros((1, 576), np.float32)
    state = np.zeros((2, 1, 128), np.float32)
    async with loaded(OnnxRuntimeBackend, spec) as backend:
        for _ in range(3):
            request = request_of(("input", silence), ("state", state), ("sr", rate))
            outputs = answer((await infer(backend, request))[0])
            assert outputs["output"].shape == (1, 1)
            assert outputs["output"][0, 0] < 0.1
            assert not np.array_equal(outputs["stateN"], state)
            state = outputs["stateN"]


# The outputs' shapes of the last one are known only once constants are folded.
@pytest.mark.parametrize("name", ["silero_vad_half.onnx", "silero_vad_16k_op15.onnx", "silero_vad_16k_sequence.onnx"])
async def test_other_exports_of_silero_vad_load(name: str, tmp_path: Path) -> None:
    spec = await completed(file_of("silero_vad", f"data/{name}"), tmp_path)
    async with loaded(OnnxRuntimeBackend, spec):
        assert spec.config.input
