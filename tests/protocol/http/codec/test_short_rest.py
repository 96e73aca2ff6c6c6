"""What can be read in one go only is not copied before that is known."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

from protocol.core import ModelMetadata
from protocol.http.codec import long_arrays
from protocol.http.codec.long_generate import decode_long_generate
from protocol.http.codec.long_jobs import read_long_listed, split_long_list
from protocol.http.codec.long_json import LONGEST_REST, short_rest
from protocol.http.codec.long_texts import FoundText
from protocol.http.openai.codec.long_bodies import read_long_body
from protocol.http.openai.codec.reading import BodyReader
from protocol.http.openai.codec.requests import ChatRequest
from protocol.sync.sliced import Sliced
from tests.sliced import finished

SIZE = 1 << 24
BODY = b'{"requests": [{"a": "%b"}]}' % (b"\\n" * (SIZE // 2))
METADATA = ModelMetadata("m", ("1",), "fake", (), ())


@pytest.mark.parametrize(
    "read",
    [
        split_long_list,
        lambda body: read_long_listed(body, SIZE),
        lambda body: decode_long_generate(body, METADATA, model_version=1, max_input_size=SIZE),
        lambda body: read_long_body(body, BodyReader(ChatRequest), lambda _: iter(()), strict=False),
    ],
    ids=["job list", "request of a job", "generate", "chat"],
)
def test_it_is_not_copied(read: Callable[[bytes], Sliced[Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_arrays, "_LARGEST_WINDOW", 1 << 16)
    tracemalloc.start()
    try:
        assert finished(read(BODY)) is None
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < SIZE // 2


@pytest.mark.parametrize("more", [0, 1])
def test_how_much_may_be_left(more: int) -> None:
    size = LONGEST_REST + more
    rest = short_rest(memoryview(b" " * (size + 1000)), [FoundText(0, 1000)])
    assert (rest is None) is bool(more)
