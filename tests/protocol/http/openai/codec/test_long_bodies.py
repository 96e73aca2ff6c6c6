"""Bodies with long texts, read in slices: the same as in one go, or left to that."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.errors import ServerError
from protocol.http.codec.long_texts import LONG_ABOVE
from protocol.http.openai.codec.images import LongText, image_tensor, url_places
from protocol.http.openai.codec.long_bodies import read_long_body
from protocol.http.openai.codec.reading import BodyReader
from protocol.http.openai.codec.requests import ChatRequest
from tests.sliced import finished

READER = BodyReader(ChatRequest)
LONG, PICTURE = "A" * LONG_ABOVE, "data:image/png;base64," + "B" * LONG_ABOVE


def in_slices(body: bytes, *, strict: bool = False) -> ChatRequest | None:
    return finished(read_long_body(body, READER, lambda request: url_places(request.messages), strict=strict))


def plain(value: Any) -> Any:
    """With strings in place of what stays in the body."""
    if isinstance(value, LongText):
        return str(value)
    if isinstance(value, dict):
        return {key: plain(each) for key, each in value.items()}
    return [plain(each) for each in value] if isinstance(value, list) else value


def check(body: bytes, *, strict: bool = False) -> ChatRequest | None:
    """Returns what was read in slices, if it was."""
    found = in_slices(body, strict=strict)
    if found is not None:
        shown = {name: plain(getattr(found, name)) for name in found.__struct_fields__}
        assert shown == msgspec.structs.asdict(READER.read(body, strict=strict))
    return found


TEXTS = st.sampled_from(["short", LONG, PICTURE, LONG + "\u00e4", LONG + "\n"])
PARTS = st.one_of(
    TEXTS,
    st.fixed_dictionaries({"type": st.just("text"), "text": TEXTS}),
    st.fixed_dictionaries({"type": st.just("image_url"), "image_url": TEXTS | st.fixed_dictionaries({"url": TEXTS})}),
    st.fixed_dictionaries({"url": TEXTS, "image_url": st.none() | st.integers()}),
)
MESSAGES = st.fixed_dictionaries(
    {"role": st.just("user"), "content": TEXTS | st.lists(PARTS, max_size=3)},
    optional={"tool_calls": st.lists(st.fixed_dictionaries({"function": st.dictionaries(TEXTS, TEXTS, max_size=1)}))},
)
CHATS = st.fixed_dictionaries(
    {"messages": st.lists(MESSAGES, max_size=2), "model": st.just("m")},
    optional={"user": TEXTS, "metadata": TEXTS | st.lists(TEXTS, max_size=1), "n": st.integers(0, 2), "x": TEXTS},
)


@given(CHATS, st.booleans())
@settings(max_examples=60)
def test_it_is_read_as_in_one_go(chat: Any, strict: bool) -> None:
    body = json.dumps(chat, ensure_ascii=False).encode()
    try:
        READER.read(body, strict=strict)
    except ServerError:
        assert in_slices(body, strict=strict) is None, "who reads it in one go says what is wrong"
    else:
        check(body, strict=strict)


def chat_of(*parts: Any, **members: Any) -> bytes:
    messages = [{"role": "user", "content": [*parts]}]
    return json.dumps({"model": "m", "messages": messages, **members}).encode()


def test_pictures_stay_in_the_body() -> None:
    body = chat_of(
        {"type": "image_url", "image_url": {"url": PICTURE}},
        {"type": "text", "text": LONG},
        {"type": "input_image", "image_url": PICTURE},
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,YQ=="}},
        prompt_cache_options=LONG,
    )
    found = check(body)
    assert found is not None
    tensor = image_tensor(found.messages, "image")
    assert tensor is not None
    assert tensor.as_numpy().tolist() == [b"B" * LONG_ABOVE] * 2 + [b"YQ=="]
    text = found.messages[0]["content"][0]["image_url"]["url"]
    assert isinstance(text, LongText)
    assert text.data.obj is body


@pytest.mark.parametrize(
    "body",
    [
        chat_of("short"),
        chat_of(LONG, user=LONG),  # which a typed field has
        chat_of(LONG, unknown=LONG),
        chat_of(LONG) + b"x",
        chat_of({LONG: 1}),
        chat_of(LONG, "x" * (1 << 20) + "\n"),
        chat_of(LONG)[:-3],
    ],
)
def test_what_is_left_to_who_reads_it_in_one_go(body: bytes) -> None:
    assert in_slices(body) is None
