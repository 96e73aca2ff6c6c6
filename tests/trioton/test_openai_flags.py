"""The flags of the OpenAI interface: that each reaches the edge."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from protocol.http.settings import OpenAISettings
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
        ("openai_keep_alive", 1500, "keep_alive", 1.5),
    ],
)
def test_each_reaches_the_edge(flag: str, value: object, name: str, expected: object) -> None:
    assert getattr(make(**{flag: value}).openai(), name) == expected


def test_what_is_kept_of_responses() -> None:
    assert (make().openai_store_bytes, make().openai_store_secs) == (64 << 20, 86_400)
    made = make(openai_store_bytes=0, openai_store_secs=60)
    assert (made.openai_store_bytes, made.openai_store_secs) == (0, 60)
