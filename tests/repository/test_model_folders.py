"""Folders of language models in a repository: which are models by themselves, and which engine gets them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from protocol.errors import InvalidArgument, NotFound
from repository.layout import find_model, find_models, version_directories
from repository.loader import read_config
from repository.model_folders import EngineChoice, FolderKind, folder_kind, gguf_file, model_files

ON_GPU = EngineChoice(on_gpu="vllm")


def write(folder: Path, *names: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        (folder / name).write_text("{}")
    return folder


@pytest.mark.parametrize(
    ("names", "kind"),
    [
        (("config.json", "model-00001-of-00002.safetensors"), FolderKind.HUGGING_FACE),
        (("config.json", "model.safetensors", "openvino_model.xml"), FolderKind.OPENVINO),
        (("openvino_model.xml",), FolderKind.OPENVINO),
        (("config.json",), None),
        (("model.safetensors",), None),
        (("model.json",), None),  # it names no model
        ((), None),
    ],
)
def test_kinds(tmp_path: Path, names: tuple[str, ...], kind: FolderKind | None) -> None:
    assert folder_kind(write(tmp_path / "m", *names)) is kind


def test_what_is_no_folder_is_no_model(tmp_path: Path) -> None:
    assert folder_kind(tmp_path / "absent") is None
    (tmp_path / "file").write_text("")
    assert folder_kind(tmp_path / "file") is None
    assert gguf_file(tmp_path / "absent") == ""


def test_a_bare_folder_is_version_1_of_a_model(tmp_path: Path) -> None:
    write(tmp_path / "tiny", "config.json", "model.safetensors")
    found = find_models([tmp_path]).models["tiny"]
    assert find_model([tmp_path], "tiny").models["tiny"] == found
    assert version_directories(found) == (1,)
    assert read_config(found).backend == "openvino_genai"
    assert read_config(found, engines=ON_GPU).backend == "vllm"
    assert read_config(found, engines=EngineChoice("scripted", on_gpu="vllm")).backend == "scripted"
    with pytest.raises(NotFound, match="configuration is not provided"):
        read_config(found, auto_complete=False)


def test_its_configuration_comes_first(tmp_path: Path) -> None:
    write(tmp_path / "tiny", "config.json", "model.safetensors")
    (tmp_path / "tiny" / "config.pbtxt").write_text('backend: "mine"')
    assert read_config(find_models([tmp_path]).models["tiny"], engines=ON_GPU).backend == "mine"


def test_with_a_version_folder_it_is_a_model_like_others(tmp_path: Path) -> None:
    write(tmp_path / "tiny", "config.json", "model.safetensors")
    write(tmp_path / "tiny" / "3", "openvino_model.xml")
    found = find_models([tmp_path]).models["tiny"]
    assert version_directories(found) == (3,)
    assert read_config(found, engines=ON_GPU).backend == "openvino_genai"


def test_the_arguments_of_an_engine_tell_a_model(tmp_path: Path) -> None:
    write(tmp_path / "tiny" / "1")
    (tmp_path / "tiny" / "1" / "model.json").write_text(json.dumps({"model": "/models/tiny"}))
    found = find_models([tmp_path]).models["tiny"]
    assert not found.is_flat
    assert read_config(found, engines=ON_GPU).backend == "vllm"
    (tmp_path / "tiny" / "1" / "model.json").write_text(json.dumps({"learner": {}}))
    with pytest.raises(InvalidArgument, match="Could not determine backend"):
        read_config(found)


def test_files_of_other_frameworks_come_first(tmp_path: Path) -> None:
    """As before there were such folders."""
    write(tmp_path / "m" / "1", "config.json", "model.safetensors", "model.onnx")
    assert read_config(find_models([tmp_path]).models["m"]).backend == "onnxruntime"


def test_files_that_nobody_reads_are_left_out(tmp_path: Path) -> None:
    names = ("config.json", "model.safetensors", "pytorch_model.bin", "README.md", ".gitattributes")
    assert [path.name for path in model_files(write(tmp_path / "m", *names))] == ["config.json", "model.safetensors"]
    both = ("openvino_model.bin", "openvino_model.xml")
    assert [path.name for path in model_files(write(tmp_path / "o", *both))] == list(both)
