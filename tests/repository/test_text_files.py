"""Text files of a language model, read from folders as Hugging Face has them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from protocol.errors import InvalidArgument, NotFound
from repository import text_files
from repository.text_files import TextFiles, read_text_files
from tests.protocol.text.tokenizers_of_tests import tokenizer_json

MESSAGES = [{"role": "user", "content": "a"}]
TEMPLATE = "{{ bos_token }}{{ messages[0].content }}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """One that has all files."""
    write(tmp_path, "tokenizer.json", tokenizer_json("byte level"))
    write(
        tmp_path,
        "tokenizer_config.json",
        {
            "bos_token": "<s>",
            "eos_token": {"content": "<|im_end|>", "special": True, "__type": "AddedToken"},
            "pad_token": None,
            "add_bos_token": True,
            "model_max_length": 10**30,
            "chat_template": TEMPLATE,
        },
    )
    write(tmp_path, "special_tokens_map.json", {"bos_token": "old", "unk_token": "<unk>"})
    write(tmp_path, "config.json", {"eos_token_id": 7, "max_position_embeddings": 4096})
    write(tmp_path, "generation_config.json", {"eos_token_id": [2, 3]})
    return tmp_path


def write(folder: Path, name: str, content: Any) -> None:
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content), "utf-8")


def test_a_folder_with_all_files(folder: Path) -> None:
    files = read_text_files(folder)
    assert files.tokenizer is not None
    assert files.tokenizer.decode(files.tokenizer.encode("a text")) == "a text"
    assert files.tokenizer.special is files.special_tokens
    assert files.special_tokens.texts == {"bos_token": "<s>", "eos_token": "<|im_end|>", "unk_token": "<unk>"}
    assert files.special_tokens.eos_token_ids == (2, 3)  # <|im_end|> is token 3
    assert files.context_length == 4096
    assert files.chat_template is not None
    assert files.chat_template.render(MESSAGES) == "<s>a"


def test_an_empty_folder(tmp_path: Path) -> None:
    files = read_text_files(tmp_path)
    assert (files.tokenizer, files.chat_template, files.context_length) == (None, None, None)
    assert (files.special_tokens.texts, files.special_tokens.eos_token_ids) == ({}, ())


def test_no_folder(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="absent': expected the folder of a model, there is none"):
        read_text_files(tmp_path / "absent")


def template_of(folder: Path, *, tools: bool = False) -> str:
    template = read_text_files(folder).chat_template
    assert template is not None
    return template.render(MESSAGES, [{}] if tools else None)


def test_where_chat_templates_are(folder: Path) -> None:
    """The newest form counts."""
    named = [{"name": "default", "template": "named"}, {"name": "tool_use", "template": "with tools"}]
    write(folder, "tokenizer_config.json", {"chat_template": named})
    assert (template_of(folder), template_of(folder, tools=True)) == ("named", "with tools")
    write(folder, "chat_template.json", {"chat_template": "json"})
    assert (template_of(folder), template_of(folder, tools=True)) == ("json", "json")
    write(folder, "chat_template.jinja", "jinja é")
    assert (template_of(folder), template_of(folder, tools=True)) == ("jinja é", "jinja é")
    write(folder, "chat_templates/tool_use.jinja", "jinja with tools")
    assert (template_of(folder), template_of(folder, tools=True)) == ("jinja é", "jinja with tools")


def test_a_template_that_is_given_counts_before_the_folder_s(folder: Path) -> None:
    template = read_text_files(folder, chat_template="{{ bos_token }} given").chat_template
    assert template is not None
    assert template.render(MESSAGES) == "<s> given"


@pytest.mark.parametrize(
    ("config", "tokenizer_config", "expected"),
    [
        ({"max_position_embeddings": 4096}, {"model_max_length": 2048}, 2048),
        ({"max_position_embeddings": 4096}, {"model_max_length": 8192}, 4096),
        ({"n_positions": 1024, "n_ctx": 512}, {}, 512),
        ({"text_config": {"max_position_embeddings": 77}}, {}, 77),
        ({}, {"model_max_length": 512}, 512),
        ({}, {"model_max_length": 10**30}, None),
        ({"max_position_embeddings": "4096"}, {"model_max_length": -1}, None),
        ({"max_position_embeddings": True}, {"model_max_length": None}, None),
    ],
)
def test_context_lengths(
    tmp_path: Path, config: dict[str, Any], tokenizer_config: dict[str, Any], expected: int | None
) -> None:
    write(tmp_path, "config.json", config)
    write(tmp_path, "tokenizer_config.json", tokenizer_config)
    assert read_text_files(tmp_path).context_length == expected


@pytest.mark.parametrize(
    ("config", "generation", "expected"),
    [
        ({"eos_token_id": 7}, {}, (7, 3)),
        ({"eos_token_id": [7, 8]}, {"eos_token_id": None}, (7, 8, 3)),
        ({"text_config": {"eos_token_id": 9}}, {}, (9, 3)),
        ({"eos_token_id": 7}, {"eos_token_id": 3}, (3,)),
        ({}, {}, (3,)),
    ],
)
def test_eos_token_ids(
    folder: Path, config: dict[str, Any], generation: dict[str, Any], expected: tuple[int, ...]
) -> None:
    write(folder, "config.json", config)
    write(folder, "generation_config.json", generation)
    files = read_text_files(folder)
    assert files.special_tokens.eos_token_ids == expected
    assert files.tokenizer is not None
    assert files.tokenizer.eos_token_ids == expected


@pytest.mark.parametrize(
    ("name", "content", "text"),
    [
        ("config.json", "{", "not JSON: "),
        ("config.json", "[1]", "expected a JSON object, got list"),
        ("config.json", "[" * 100000, "not JSON: "),
        ("config.json", {"eos_token_id": "2"}, "eos_token_id: expected a token id or a list of them, got '2'"),
        ("generation_config.json", {"eos_token_id": [1, -1]}, "eos_token_id: expected a token id or a list of them"),
        ("generation_config.json", {"eos_token_id": True}, "eos_token_id: expected a token id or a list of them"),
        ("tokenizer.json", "{}", r"not a tokenizer\.json: "),
        ("tokenizer_config.json", {"chat_template": 3}, "chat_template: expected a text, or a list of objects"),
        ("tokenizer_config.json", {"chat_template": []}, "chat_template: expected a text, or a list of objects"),
        (
            "tokenizer_config.json",
            {"chat_template": [{"name": "default"}]},
            "chat_template: expected a text, or a list",
        ),
        (
            "tokenizer_config.json",
            {"chat_template": [{"name": "rag", "template": "a"}]},
            "chat_template: expected one that is named 'default', got rag",
        ),
        ("tokenizer_config.json", {"chat_template": "{{"}, "chat template: line 1: "),
        ("chat_template.jinja", "{% for %}", "chat template: line 1: "),
    ],
)
def test_files_that_are_wrong_are_named(folder: Path, name: str, content: Any, text: str) -> None:
    (folder / "generation_config.json").unlink()  # it counts before config.json
    write(folder, name, content)
    with pytest.raises(InvalidArgument, match=f"'{folder}/{name}': {text}"):
        read_text_files(folder)


def test_a_file_that_is_too_large(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_files, "MAX_FILE_BYTES", 1000)
    write(folder, "config.json", " " * 1001)
    with pytest.raises(InvalidArgument, match=r"config\.json': expected at most 1000 bytes, got 1001"):
        read_text_files(folder)


def test_a_file_that_is_no_file(folder: Path) -> None:
    """To read from a pipe would wait for ever."""
    (folder / "config.json").unlink()
    os.mkfifo(folder / "config.json")
    with pytest.raises(InvalidArgument, match=r"config\.json': expected a regular file"):
        read_text_files(folder)


def test_a_file_that_is_not_utf_8(folder: Path) -> None:
    (folder / "config.json").write_bytes(b'{"a": "\xff"}')
    with pytest.raises(InvalidArgument, match=r"config\.json': not UTF-8: byte 7"):
        read_text_files(folder)


def test_what_is_read_does_not_hang_on_the_folder(folder: Path) -> None:
    files: TextFiles = read_text_files(folder)
    (folder / "tokenizer.json").unlink()
    assert files.tokenizer is not None
    assert files.tokenizer.encode("a")
