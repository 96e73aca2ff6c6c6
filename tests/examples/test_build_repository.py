"""The repository builder, on the real packages."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import text_format

from protocol.proto import message_class
from tests.examples.loading import load_example
from tests.examples.local_server import LocalServer, read_config

builder = load_example("build_repository")

ONNX_MODELS = [
    "file_type",
    "ocr_detection",
    "ocr_direction",
    "ocr_recognition",
    "voice_activity",
    "voice_activity_stream",
]
PYTHON_MODELS = [
    "add_sub",
    "decoupled_tokens",
    "ocr_page_bls",
    "ocr_page_cut",
    "ocr_page_scale",
    "ocr_page_turn",
    "ocr_text",
    "token_generator",
]
WITHOUT_CONFIG = ["ocr_detection", "ocr_text"]
ONNX_TYPES = {"tensor(float)": "TYPE_FP32", "tensor(int32)": "TYPE_INT32", "tensor(int64)": "TYPE_INT64"}


def contents(directory: Path) -> dict[Path, tuple[bytes, int]]:
    return {
        file.relative_to(directory): (file.read_bytes(), file.stat().st_mtime_ns)
        for file in directory.rglob("*")
        if file.is_file()
    }


def test_every_model_has_its_file(repository: Path) -> None:
    """One folder per model, one version each, and nothing half-written."""
    files = {str(file) for file in contents(repository) if file.suffix in (".onnx", ".py")}
    expected = {f"{name}/1/model.onnx" for name in ONNX_MODELS} | {f"{name}/1/model.py" for name in PYTHON_MODELS}
    assert files == expected | {"ocr_page_cut/1/text_boxes.py"}
    assert (repository / "ocr_page" / "1").is_dir(), "an ensemble has a version, with nothing in it"
    assert not list(repository.rglob("*.part"))


def test_some_models_have_no_config_at_all(repository: Path) -> None:
    """Those are the ones that show auto-completion."""
    names = {path.name for path in repository.iterdir() if not (path / "config.pbtxt").exists()}
    assert names == set(WITHOUT_CONFIG)


@pytest.mark.parametrize("name", sorted({*ONNX_MODELS, *PYTHON_MODELS} - set(WITHOUT_CONFIG)))
def test_configs_are_valid_and_named_after_their_folder(repository: Path, name: str) -> None:
    config = read_config(repository / name)
    assert config.name == name
    assert config.backend == ("python" if name in PYTHON_MODELS else "onnxruntime")


@pytest.mark.parametrize("name", ["ocr_direction", "ocr_recognition"])
def test_the_tensors_of_a_complete_config_are_those_of_the_model(loaded_models: LocalServer, name: str) -> None:
    """Names and types agree, and dims leave out the batch dimension."""
    config = read_config(loaded_models.repository / name)
    session = loaded_models.session(name)
    data_type = config.DESCRIPTOR.fields_by_name["input"].message_type.fields_by_name["data_type"].enum_type
    for given, actual in ((config.input, session.get_inputs()), (config.output, session.get_outputs())):
        assert [tensor.name for tensor in given] == [tensor.name for tensor in actual]
        for tensor, node in zip(given, actual, strict=True):
            assert data_type.values_by_number[tensor.data_type].name == ONNX_TYPES[node.type]
            for ours, theirs in zip(tensor.dims, node.shape[1:], strict=True):
                assert ours == theirs or isinstance(theirs, str)


def test_a_second_build_touches_nothing(repository: Path) -> None:
    before = contents(repository)
    builder.build_repository(repository)
    assert contents(repository) == before


def test_a_second_build_mends_what_differs_and_leaves_other_models_alone(tmp_path: Path) -> None:
    builder.build_repository(tmp_path)
    (tmp_path / "add_sub" / "config.pbtxt").write_text("name: 'other'")
    (tmp_path / "mine" / "1").mkdir(parents=True)
    (tmp_path / "mine" / "1" / "model.py").write_text("# mine")
    builder.build_repository(tmp_path)
    assert read_config(tmp_path / "add_sub").name == "add_sub"
    assert (tmp_path / "mine" / "1" / "model.py").read_text() == "# mine"


def test_the_packages_are_read_and_not_imported(repository: Path) -> None:
    assert not {"rapidocr_onnxruntime", "silero_vad", "magika"} & set(sys.modules)


def test_a_missing_package_is_named_with_what_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 1, one sentence, and nothing is written."""
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "magika" else find_spec(name))
    assert builder.main([str(tmp_path / "models")]) == 1
    assert capsys.readouterr().err == (
        "The package magika is not installed. Get the models with:\n"
        "    pip install --no-deps --ignore-requires-python rapidocr-onnxruntime silero-vad magika\n"
    )
    assert not (tmp_path / "models").exists()


def test_a_package_without_the_file_is_named() -> None:
    with pytest.raises(builder.MissingPackage, match=r"has no models/other\.onnx"):
        builder.find_in_package("magika", "models/other.onnx")


def test_the_command_says_what_it_built(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert builder.main([str(tmp_path)]) == 0
    out = capsys.readouterr().out
    for name in (*ONNX_MODELS, *PYTHON_MODELS):
        assert f"  {name} " in out


def test_a_directory_that_cannot_be_written_is_an_error_not_a_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    assert builder.main([str(tmp_path / "file")]) == 1
    assert "file" in capsys.readouterr().err


@pytest.mark.parametrize("value", [{"a": "Tom's"}, ["back\\slash", 'dou"ble', "new\nline", "é"], {}])
def test_parameters_survive_the_text_format(value: Any) -> None:
    """JSON in single quotes, whatever it holds."""
    config: Any = message_class("inference.ModelConfig")()
    text_format.Parse(builder.text_format_parameter("key", value), config)
    assert json.loads(config.parameters["key"].string_value) == value


def test_the_alphabet_fits_the_recognition_model(loaded_models: LocalServer) -> None:
    """The model's classes are the blank, the characters and the space."""
    characters = (loaded_models.repository / "ocr_text" / "1" / "characters.txt").read_bytes().decode().split("\n")
    classes = loaded_models.session("ocr_recognition").get_outputs()[0].shape[2]
    assert len(characters) + 2 == classes
    assert {len(character) for character in characters} == {1}


def test_the_language_model_needs_its_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it, what an earlier run has written does not stay: the server would not load it."""
    is_there = True
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object() if is_there else None)
    assert builder.add_language_model(tmp_path)
    assert (tmp_path / "tiny_llama" / "openvino_model.xml").is_file()
    assert not (tmp_path / "tiny_llama" / "config.pbtxt").exists()
    is_there = False
    assert not builder.add_language_model(tmp_path)
    assert not (tmp_path / "tiny_llama").exists()
