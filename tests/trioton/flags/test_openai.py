"""The flags of the OpenAI interface: that each reaches the edge."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from protocol.access.categories import Category
from protocol.http.settings import Interface, OpenAISettings
from repository.text_models import TextDefaults
from trioton.flags.fields import UsageError
from trioton.settings import Settings


def make(**flags: Any) -> Settings:
    return Settings(model_repository=(Path("models"),), **flags)


def test_the_defaults_are_those_of_the_edge() -> None:
    assert make().openai() == OpenAISettings()


@pytest.mark.parametrize(
    ("flag", "value", "name", "expected"),
    [
        ("openai_strict", True, "strict", True),
        ("openai_default_max_tokens", 16, "default_max_tokens", 16),
        ("openai_default_max_tokens", 0, "default_max_tokens", None),
        ("openai_lora_separator", ":", "lora_separator", ":"),
        ("openai_sleep_mode", True, "sleep_mode", True),
        ("openai_keep_alive", 1500, "keep_alive", 1.5),
        ("openai_max_json_values", 5000, "max_json_values", 5000),
    ],
)
def test_each_reaches_the_edge(flag: str, value: object, name: str, expected: object) -> None:
    assert getattr(make(**{flag: value}).openai(), name) == expected


def test_what_is_kept_of_responses() -> None:
    assert (make().openai_store_bytes, make().openai_store_secs) == (64 << 20, 86_400)
    made = make(openai_store_bytes=0, openai_store_secs=60)
    assert (made.openai_store_bytes, made.openai_store_secs) == (0, 60)


def test_without_a_port_the_routes_are_on_that_of_http() -> None:
    settings = make()
    assert "openai" not in settings.services()
    assert settings.http_interface() is Interface.ALL


def test_a_port_of_its_own() -> None:
    settings = make(openai_port=9000, http_address="127.0.0.1", openai_on_http_port=False)
    assert settings.services()["openai"] == ("127.0.0.1", 9000)
    assert make(openai_port=0, openai_address="::1").services()["openai"] == ("::1", 0)
    assert settings.http_interface() is Interface.INFERENCE


def test_the_port_is_not_another_ones() -> None:
    with pytest.raises(UsageError, match="--http-port and --openai-port are both 8000"):
        make(openai_port=8000)


RESTRICTED = ("--model-repository=m", "--openai-restricted-api=inference,model-repository:key=secret")


def test_restrictions_hold_wherever_the_routes_are() -> None:
    with pytest.raises(UsageError, match="needs --openai-port"):
        Settings.from_flags([*RESTRICTED])
    with pytest.raises(UsageError, match="set --openai-on-http-port=false"):
        Settings.from_flags([*RESTRICTED, "--openai-port=0"])
    settings = Settings.from_flags([*RESTRICTED, "--openai-port=0", "--openai-on-http-port=false"])
    (restriction,) = settings.openai_restricted_api
    assert restriction.categories == (Category.INFERENCE, Category.MODEL_REPOSITORY, Category.METADATA)


@pytest.mark.parametrize(
    ("more", "text"),
    [
        (
            ("--openai-restricted-api=logging:a=b",),
            "Unknown API 'logging', expected one of inference, model-",
        ),
        (
            ("--openai-restricted-api=model-repository:a=b",),
            "restricted api 'model-repository' can not be specified in multiple config groups",
        ),
        (("--openai-tokenizer=/nowhere",), "expected a folder with tokenizer.json"),
        (("--openai-chat-template=nothing.jinja",), "expected a file with a chat template, or the template itself"),
        (("--openai-tool-call-parser=none",), "expected deepseek or harmony"),
    ],
)
def test_what_is_wrong_is_named(more: tuple[str, ...], text: str) -> None:
    with pytest.raises(UsageError, match=re.escape(text)):
        Settings.from_flags([*RESTRICTED, "--openai-port=0", "--openai-on-http-port=false", *more])


def test_what_models_have_that_say_nothing(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").touch()
    (tmp_path / "chat.jinja").touch()
    flags = (f"--openai-tokenizer={tmp_path}", f"--openai-chat-template={tmp_path}/chat.jinja")
    settings = Settings.from_flags(["--model-repository=m", *flags, "--openai-tool-call-parser=llama3"])
    assert settings.text_defaults() == TextDefaults(tmp_path, f"{tmp_path}/chat.jinja", "llama3")
    template = Settings.from_flags(["--model-repository=m", "--openai-chat-template={{ messages }}"])
    assert template.text_defaults() == TextDefaults(None, "{{ messages }}")


def test_folders_of_adapters() -> None:
    words = ["--model-repository=models", "--openai-lora-path=/a", "--openai-lora-path=/b"]
    assert Settings.from_flags(words).openai_lora_path == (Path("/a"), Path("/b"))
