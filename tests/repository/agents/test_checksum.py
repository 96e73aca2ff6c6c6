"""The agent `checksum`: what it takes, and what it says of what it does not take."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from protocol.errors import InvalidArgument, ServerError, Unsupported
from repository.agents.checksum import ChecksumAgent
from repository.agents.interface import AgentModel
from repository.model_config import ModelConfig

DATA = b"weights"
MD5 = hashlib.md5(DATA, usedforsecurity=False).hexdigest()
SHA256 = hashlib.sha256(DATA).hexdigest()


@pytest.fixture
def model(tmp_path: Path) -> AgentModel:
    (tmp_path / "m" / "1").mkdir(parents=True)
    (tmp_path / "m" / "1" / "model.onnx").write_bytes(DATA)
    (tmp_path / "outside").write_bytes(DATA)
    return AgentModel("m", tmp_path / "m", ModelConfig(name="m"))


@pytest.mark.parametrize(
    "parameters",
    [
        {},
        {"MD5:1/model.onnx": MD5},
        {"md5:./1/model.onnx": MD5.upper()},
        {"SHA256:1/model.onnx": SHA256, "Sha512:1/../1/model.onnx": hashlib.sha512(DATA).hexdigest()},
    ],
)
def test_files_that_are_as_they_should_be(model: AgentModel, parameters: dict[str, str]) -> None:
    before = sorted(model.directory.rglob("*"))
    assert ChecksumAgent(parameters).load(model) is None  # type: ignore[func-returns-value]  # no other folder
    assert sorted(model.directory.rglob("*")) == before


@pytest.mark.parametrize(
    ("key", "value", "kind", "text"),
    [
        (
            "MD5:1/model.onnx",
            "abc",
            InvalidArgument,
            f"Mismatched MD5 hash for file 1/model.onnx, expect: abc, got: {MD5}",
        ),
        (
            "sha256:1/model.onnx",
            MD5,
            InvalidArgument,
            f"Mismatched SHA256 hash for file 1/model.onnx, expect: {MD5}, got: {SHA256}",
        ),
        (
            "CRC:1/model.onnx",
            "1",
            Unsupported,
            "Unsupported checksum algorithm: CRC; those known are MD5, SHA256, SHA512",
        ),
        (
            "1/model.onnx",
            MD5,
            InvalidArgument,
            "failed to parse key: 1/model.onnx",
        ),
        (
            "MD5:",
            MD5,
            InvalidArgument,
            "failed to parse key: MD5:",
        ),
        (
            "MD5:2/model.onnx",
            MD5,
            InvalidArgument,
            "failed to open text file for read 2/model.onnx: No such file or directory",
        ),
        (
            "MD5:1",
            MD5,
            InvalidArgument,
            "failed to open text file for read 1: Is a directory",
        ),
        (
            "MD5:../outside",
            MD5,
            InvalidArgument,
            "checksum of file ../outside: the file must be in the model's folder",
        ),
        (
            "MD5:/etc/hostname",
            MD5,
            InvalidArgument,
            "checksum of file /etc/hostname: the file must be in the model's folder",
        ),
    ],
)
def test_what_is_refused(model: AgentModel, key: str, value: str, kind: type[ServerError], text: str) -> None:
    with pytest.raises(kind) as raised:
        ChecksumAgent({"MD5:1/model.onnx": MD5, key: value}).load(model)
    assert str(raised.value) == text
