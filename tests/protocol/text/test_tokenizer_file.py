"""Files of tokenizers: the same bytes again, or none."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from protocol.text.tokenizer_file import FileChanged, TokenizerFile


@pytest.fixture
def file(tmp_path: Path) -> TokenizerFile:
    path = tmp_path / "tokenizer.json"
    path.write_bytes(b"{1234}")
    return TokenizerFile.of(path, path.read_bytes())


def test_the_same_bytes(file: TokenizerFile) -> None:
    assert file.read() == b"{1234}"


def test_a_relative_path_is_told_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_bytes(b"x")
    monkeypatch.chdir(tmp_path)
    file = TokenizerFile.of(Path("a"), b"x")
    monkeypatch.chdir("/")
    assert file.read() == b"x"


@pytest.mark.parametrize("data", [b"{1235}", b"{12345}", b""])
def test_other_bytes(file: TokenizerFile, data: bytes) -> None:
    Path(file.path).write_bytes(data)
    with pytest.raises(FileChanged, match="has changed"):
        file.read()


def test_a_file_that_is_gone(file: TokenizerFile) -> None:
    os.unlink(file.path)
    with pytest.raises(FileChanged, match="cannot be read"):
        file.read()


def test_a_pipe_in_its_place_is_not_waited_for(file: TokenizerFile) -> None:
    os.unlink(file.path)
    os.mkfifo(file.path)
    with pytest.raises(FileChanged, match="has changed"):
        file.read()
