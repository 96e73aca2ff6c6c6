"""Reading a model's configuration from its directory."""

from __future__ import annotations

from pathlib import Path

import pytest

from protocol.errors import Internal, InvalidArgument, NotFound
from repository.layout import ModelDirectory
from repository.loader import read_config
from repository.model_config import ModelConfig


@pytest.fixture
def directory(tmp_path: Path) -> ModelDirectory:
    """An ONNX model `m` without a configuration."""
    (tmp_path / "m" / "1").mkdir(parents=True)
    (tmp_path / "m" / "1" / "model.onnx").touch()
    return ModelDirectory("m", tmp_path / "m", tmp_path)


COMPLETED = ModelConfig(
    name="m", backend="onnxruntime", platform="onnxruntime_onnx", default_model_filename="model.onnx"
)


def test_a_model_may_come_without_a_configuration(directory: ModelDirectory) -> None:
    assert read_config(directory) == COMPLETED


def test_without_completion_a_configuration_is_needed(directory: ModelDirectory) -> None:
    with pytest.raises(NotFound, match=r"^model configuration is not provided for model 'm'$"):
        read_config(directory, auto_complete=False)


def test_a_partial_file_is_completed(directory: ModelDirectory) -> None:
    directory.config_file.write_text("max_batch_size: 8")
    config = read_config(directory, auto_complete=False)
    assert (config.max_batch_size, config.name, config.backend) == (8, "m", "onnxruntime")


def test_a_server_may_choose_one_of_several_configurations(directory: ModelDirectory) -> None:
    """`configs/<name>.pbtxt` where it is there, else the ordinary file, else none."""
    assert read_config(directory, config_name="h100").max_batch_size == 0
    directory.config_file.write_text("max_batch_size: 8")
    (directory.path / "configs").mkdir()
    (directory.path / "configs" / "h100.pbtxt").write_text("max_batch_size: 64")
    assert read_config(directory, config_name="h100").max_batch_size == 64
    assert read_config(directory, config_name="a10").max_batch_size == 8
    assert read_config(directory).max_batch_size == 8
    (directory.path / "configs" / "h100.pbtxt").write_text("max_batch: 64")
    with pytest.raises(InvalidArgument, match=r"configs/h100\.pbtxt:1:1: .*no field named"):
        read_config(directory, config_name="h100")


def test_an_override_replaces_the_file(directory: ModelDirectory) -> None:
    directory.config_file.write_text("this is no configuration")
    assert read_config(directory, override='{"max_batch_size": 2}').max_batch_size == 2


def test_a_wrong_override_is_refused(directory: ModelDirectory) -> None:
    with pytest.raises(InvalidArgument, match=r"^Invalid config override: unknown field 'foo'$"):
        read_config(directory, override='{"foo": 2}')


def test_the_file_must_name_its_directory(directory: ModelDirectory) -> None:
    directory.config_file.write_text('name: "other"')
    with pytest.raises(InvalidArgument) as caught:
        read_config(directory)
    assert caught.value.message == (
        "unexpected directory name 'm' for model 'other', directory name must equal model name"
    )


def test_a_parse_error_names_the_file(directory: ModelDirectory) -> None:
    directory.config_file.write_text("max_batch_size: 8\nfoo: 1")
    with pytest.raises(InvalidArgument) as caught:
        read_config(directory)
    assert caught.value.message.startswith(f"{directory.config_file}:2:1: ")


def test_a_file_that_is_no_text_is_refused(directory: ModelDirectory) -> None:
    directory.config_file.write_bytes(b'name: "\xff"')
    with pytest.raises(InvalidArgument, match=r"config.pbtxt: byte 7 is not UTF-8 text"):
        read_config(directory)


def test_a_file_that_cannot_be_read_is_the_servers_trouble(directory: ModelDirectory) -> None:
    directory.config_file.mkdir()
    with pytest.raises(Internal, match=r"failed to read model configuration '.*config.pbtxt': Is a directory"):
        read_config(directory)


def test_a_directory_that_is_gone_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        read_config(ModelDirectory("m", tmp_path / "m", tmp_path))
