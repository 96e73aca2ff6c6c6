"""The flags of Triton's OpenAI frontend: what each becomes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from protocol.http.settings import Interface
from trioton.flags.fields import UsageError
from trioton.openai_frontend import frontend_settings
from trioton.settings import Settings

REQUIRED = ("--model-repository", "models")


def read(*words: str, environment: dict[str, str] | None = None) -> Settings:
    settings, ignored = frontend_settings([*REQUIRED, *words], environment or {})
    assert ignored == []
    return settings


def test_openais_routes_alone_are_served_where_the_program_has_them() -> None:
    settings = read()
    assert settings.services() == {"openai": ("0.0.0.0", 9000)}
    assert settings.openai().default_max_tokens == 16
    assert settings.http_interface() is Interface.INFERENCE


def test_the_inference_protocol_beside_them() -> None:
    words = ("--enable-kserve-frontends", "--kserve-http-port", "8100", "--kserve-grpc-port=8101", "--host", "::1")
    assert read(*words).services() == {"grpc": ("::1", 8101), "http": ("::1", 8100), "openai": ("::1", 9000)}
    assert set(read("--enable-kserve-frontends").services()) == {"grpc", "http", "openai"}


@pytest.mark.parametrize(
    ("words", "field", "expected"),
    [
        (("--openai-port", "9100"), "openai_port", 9100),
        (("--lora-separator", "/"), "openai_lora_separator", "/"),
        (("--tool-call-parser", "llama3"), "openai_tool_call_parser", "llama3"),
        (("--chat-template", "{{ messages }}"), "openai_chat_template", "{{ messages }}"),
        (("--default-max-tokens", "99"), "openai_default_max_tokens", 99),
        (("--model-control-mode", "explicit", "--load-model", "a", "--load-model", "b"), "load_model", ("a", "b")),
        (("--http-max-input-size", "1000"), "http_max_input_size", 1000),
        (("--tritonserver-log-verbose-level", "2"), "log_verbose", 2),
        (("--uvicorn-log-level", "debug"), "log_verbose", 1),
        (("--uvicorn-log-level", "warning"), "log_info", False),
        (("--uvicorn-log-level", "error"), "log_warning", False),
        (("--openai-strict",), "openai_strict", True),
    ],
)
def test_each_flag_becomes_a_setting(words: tuple[str, ...], field: str, expected: object) -> None:
    assert getattr(read(*words), field) == expected


def test_a_tokenizer_is_a_folder(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").touch()
    assert read("--tokenizer", str(tmp_path)).openai_tokenizer == tmp_path
    with pytest.raises(UsageError, match="names on a hub are not fetched"):
        read("--tokenizer", "meta-llama/Llama-3.1-8B")


def test_restrictions_are_three_words() -> None:
    words = ("--openai-restricted-api", "inference,metrics", "key", "secret", "--openai-port", "0")
    first, second = read(*words, "--openai-restricted-api", "health", "other", "x=y").openai_restricted_api
    assert (first.header, first.value, len(first.categories)) == ("key", "secret", 2)
    assert (second.header, second.value) == ("other", "x=y")
    (own,) = read("--openai-restricted-api=health:a=b").openai_restricted_api
    assert own.value == "b"


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--openai-restricted-api", "inference", "key"), "needs three values"),
        (("--openai-restricted-api", "inference", "--host", "x"), "needs three values"),
        (("--openai-restricted-api", "logging", "key", "secret"), "Unknown API 'logging'"),
        (("--load-model", "a"), "Use of '--load-model' requires setting '--model-control-mode=explicit'"),
        (("models",), "Unexpected argument: models"),
        (("--backend", "onnx"), "expected auto or vllm or tensorrtllm"),
        (("--tokeniser", "x"), "Did you mean --tokenizer"),
    ],
)
def test_what_is_wrong_is_named(words: tuple[str, ...], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        read(*words)


def test_what_has_no_effect_is_named() -> None:
    words = [*REQUIRED, "--backend", "vllm", "--max-tool-call-parse-bytes", "10"]
    _, ignored = frontend_settings(words, {})
    assert [text.partition(" has no effect: ")[0] for text in ignored] == ["--backend", "--max-tool-call-parse-bytes"]


@pytest.mark.parametrize(
    ("words", "environment", "expected"),
    [((), {"TRIOTON_OPENAI_PORT": "1"}, 1), (("--openai-port=2",), {"TRIOTON_OPENAI_PORT": "1"}, 2)],
)
def test_the_environment_counts_as_for_a_server(words: Any, environment: dict[str, str], expected: int) -> None:
    assert read(*words, environment=environment).openai_port == expected
