"""Stage 1 of auto-completion, on real directories."""

from __future__ import annotations

from pathlib import Path

import pytest

from protocol.errors import InvalidArgument
from repository.backend_fields import fill_backend_fields, is_known_pair
from repository.layout import ModelDirectory
from repository.model_config import ModelConfig, ModelEnsembling


def directory_with(root: Path, *files: str, name: str = "m") -> ModelDirectory:
    """A model with these paths in it; a path that ends in a slash is a directory."""
    path = root / name
    path.mkdir()
    for file in files:
        target = path / file
        target.parent.mkdir(parents=True, exist_ok=True)
        if file.endswith("/"):
            target.mkdir(exist_ok=True)
        else:
            target.touch()
    return ModelDirectory(name, path, root)


@pytest.mark.parametrize(
    ("file", "backend", "platform"),
    [
        ("model.savedmodel/", "tensorflow", "tensorflow_savedmodel"),
        ("model.graphdef", "tensorflow", "tensorflow_graphdef"),
        ("model.plan", "tensorrt", "tensorrt_plan"),
        ("model.onnx", "onnxruntime", "onnxruntime_onnx"),
        ("model.onnx/", "onnxruntime", "onnxruntime_onnx"),
        ("model.xml", "openvino", ""),
        ("model.pt", "pytorch", "pytorch_libtorch"),
        ("model.pt2", "pytorch", "torch_aoti"),
        ("model.jax", "jax", ""),
        ("model.py", "python", ""),
    ],
)
def test_a_known_file_tells_the_backend(file: str, backend: str, platform: str, tmp_path: Path) -> None:
    filled = fill_backend_fields(ModelConfig(), directory_with(tmp_path, f"1/{file}"))
    assert filled == ModelConfig(name="m", backend=backend, platform=platform, default_model_filename=file.rstrip("/"))


@pytest.mark.parametrize(
    ("given", "filled"),
    [
        (
            ModelConfig(backend="onnxruntime"),
            ModelConfig(platform="onnxruntime_onnx", default_model_filename="model.onnx"),
        ),
        (ModelConfig(backend="python"), ModelConfig(default_model_filename="model.py")),
        (ModelConfig(backend="openvino"), ModelConfig(default_model_filename="model.xml")),
        (ModelConfig(backend="pytorch"), ModelConfig(platform="pytorch_libtorch", default_model_filename="model.pt")),
        (ModelConfig(backend="pytorch", platform="torch_aoti"), ModelConfig(default_model_filename="model.pt2")),
        (ModelConfig(backend="pytorch", platform="torch_export"), ModelConfig(default_model_filename="model.pt2")),
        (ModelConfig(backend="pytorch", default_model_filename="model.pt2"), ModelConfig(platform="torch_aoti")),
        (ModelConfig(backend="pytorch", runtime="model.py"), ModelConfig()),
        (ModelConfig(backend="onnxruntime", default_model_filename="a.onnx"), ModelConfig(platform="onnxruntime_onnx")),
        (ModelConfig(backend="onnxruntime", platform="x"), ModelConfig(default_model_filename="model.onnx")),
        (ModelConfig(backend="mine"), ModelConfig()),
        (
            ModelConfig(platform="onnxruntime_onnx"),
            ModelConfig(backend="onnxruntime", default_model_filename="model.onnx"),
        ),
        (ModelConfig(platform="libtorch"), ModelConfig(backend="pytorch", default_model_filename="model.pt")),
        (ModelConfig(platform="torch_aoti"), ModelConfig(backend="pytorch", default_model_filename="model.pt2")),
        (
            ModelConfig(platform="tensorflow_graphdef"),
            ModelConfig(backend="tensorflow", default_model_filename="model.graphdef"),
        ),
        (ModelConfig(platform="mine"), ModelConfig()),
        (ModelConfig(default_model_filename="model.py"), ModelConfig(backend="python")),
        (
            ModelConfig(default_model_filename="model.onnx"),
            ModelConfig(backend="onnxruntime", platform="onnxruntime_onnx"),
        ),
        (ModelConfig(default_model_filename="weights.bin"), ModelConfig()),
        (ModelConfig(platform="ensemble"), ModelConfig()),
        (ModelConfig(ensemble_scheduling=ModelEnsembling()), ModelConfig()),
    ],
)
def test_what_is_given_decides_and_stays(given: ModelConfig, filled: ModelConfig, tmp_path: Path) -> None:
    """`filled` holds the fields that must be added; all others must be as given. The model has no files."""
    result = fill_backend_fields(given, directory_with(tmp_path))
    for field in ("backend", "platform", "default_model_filename", "runtime"):
        assert getattr(result, field) == (getattr(given, field) or getattr(filled, field)), field
    assert result.name == "m"


@pytest.mark.parametrize(
    ("given", "file", "expected"),
    [
        (ModelConfig(backend="tensorflow"), "model.graphdef", "tensorflow_graphdef"),
        (ModelConfig(backend="pytorch"), "model.pt2", "torch_aoti"),
    ],
)
def test_a_backend_with_two_forms_looks_at_the_files(
    given: ModelConfig, file: str, expected: str, tmp_path: Path
) -> None:
    filled = fill_backend_fields(given, directory_with(tmp_path, f"1/{file}"))
    assert (filled.platform, filled.default_model_filename) == (expected, file)


def test_a_file_of_the_wrong_kind_tells_nothing(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument):
        fill_backend_fields(ModelConfig(), directory_with(tmp_path, "1/model.savedmodel", "1/model.plan/"))


def test_only_the_first_version_directory_is_looked_at(tmp_path: Path) -> None:
    directory = directory_with(tmp_path, "9/model.onnx", "10/model.py", "1x/model.plan")
    assert fill_backend_fields(ModelConfig(), directory).backend == "python"


def test_the_earlier_row_wins_where_several_known_files_lie(tmp_path: Path) -> None:
    directory = directory_with(tmp_path, "1/model.py", "1/model.onnx")
    assert fill_backend_fields(ModelConfig(), directory).backend == "onnxruntime"


def test_the_name_of_the_model_can_tell_the_backend(tmp_path: Path) -> None:
    filled = fill_backend_fields(ModelConfig(), directory_with(tmp_path, "1/", name="m.identity.x"))
    assert (filled.backend, filled.default_model_filename) == ("identity.x", "model.identity.x")


def test_nothing_that_tells_the_backend_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument) as caught:
        fill_backend_fields(ModelConfig(), directory_with(tmp_path, "1/weights.bin"))
    assert caught.value.message == (
        "Invalid model name: Could not determine backend for model 'm' with no backend in model configuration. "
        "Expected model name of the form 'model.<backend_name>'."
    )


@pytest.mark.parametrize(
    ("platform", "backend", "known"),
    [
        ("onnxruntime_onnx", "onnxruntime", True),
        ("libtorch", "pytorch", True),
        ("", "python", True),
        ("", "onnxruntime", True),
        ("anything", "python", True),
        ("anything", "onnxruntime", False),
        ("pytorch_libtorch", "onnxruntime", False),
        ("onnxruntime_onnx", "python", False),
    ],
)
def test_platform_and_backend_agree(platform: str, backend: str, known: bool) -> None:
    assert is_known_pair(platform, backend) is known
