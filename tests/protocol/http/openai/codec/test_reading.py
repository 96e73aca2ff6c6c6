"""Bodies of the OpenAI interface: what is read, ignored, refused, and in whose words."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from protocol.errors import InvalidArgument
from protocol.http.openai.codec.reading import BodyReader
from protocol.http.openai.codec.requests import (
    REFUSED,
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    EmbeddingRequest,
    RerankRequest,
    ScoreRequest,
    TokenizeRequest,
)
from protocol.http.openai.errors import FieldError, SchemaError

CHAT = BodyReader(ChatRequest)
MESSAGES = [{"role": "user", "content": "hi"}]


def body(**members: Any) -> bytes:
    return json.dumps({"model": "m", "messages": MESSAGES, **members}).encode()


def test_unknown_fields_are_ignored() -> None:
    request = CHAT.read(body(something=[1], temperature=1))
    assert (request.temperature, request.messages) == (1.0, MESSAGES)


def test_null_is_as_good_as_absent() -> None:
    names = [name for name in ChatRequest.__struct_fields__ if name != "messages"]
    assert CHAT.read(body(**dict.fromkeys(names))) == CHAT.read(body(model=None))


@pytest.mark.parametrize(
    ("members", "param", "message"),
    [
        ({"messages": []}, "messages", "'messages': Expected `array` of length >= 1"),
        ({"messages": "hi"}, "messages", "'messages': Expected `array`, got `str`"),
        ({"temperature": 3}, "temperature", "'temperature': Expected `float` <= 2.0"),
        ({"n": 0}, "n", "'n': Expected `int` >= 1"),
        ({"max_tokens": -1}, "max_tokens", "'max_tokens': Expected `int` >= 0"),
        ({"stream_options": {"include_usage": 3}}, "stream_options.include_usage", None),
        ({"stop": [1]}, "stop[0]", None),
    ],
)
def test_wrong_fields_are_named(members: dict[str, Any], param: str, message: str | None) -> None:
    with pytest.raises(FieldError) as caught:
        CHAT.read(body(**members))
    assert caught.value.param == param
    assert message is None or caught.value.message == message


def test_a_missing_field_is_named() -> None:
    with pytest.raises(FieldError) as caught:
        CHAT.read(b'{"model": "m"}')
    assert (caught.value.param, caught.value.message) == ("messages", "'messages': Field required")


@pytest.mark.parametrize("text", [b"", b"{", b"[1]", b"nul", b'{"model": "\xff"}', b"[" * 100_000])
def test_what_is_no_object_is_refused(text: bytes) -> None:
    with pytest.raises(InvalidArgument):
        CHAT.read(text)


@pytest.mark.parametrize(
    ("members", "detail"),
    [
        (
            {"top": 1},
            {"type": "extra_forbidden", "loc": ["body", "top"], "msg": "Extra inputs are not permitted", "input": 1},
        ),
        (
            {"top_logprobs": 30},
            {
                "type": "less_than_equal",
                "loc": ["body", "top_logprobs"],
                "msg": "Input should be less than or equal to 20",
                "input": 30,
            },
        ),
        (
            {"messages": []},
            {
                "type": "too_short",
                "loc": ["body", "messages"],
                "msg": "List should have at least 1 item after validation, not 0",
                "input": [],
            },
        ),
        (
            {"model": 7},
            {"type": "string_type", "loc": ["body", "model"], "msg": "Input should be a valid string", "input": 7},
        ),
    ],
)
def test_strict_readers_speak_as_tritons_frontend(members: dict[str, Any], detail: dict[str, Any]) -> None:
    with pytest.raises(SchemaError) as caught:
        CHAT.read(body(**members), strict=True)
    assert caught.value.details == [detail]


def test_a_strict_reader_shows_where_a_field_is_missing() -> None:
    with pytest.raises(SchemaError) as caught:
        CHAT.read(b'{"model": "m"}', strict=True)
    (detail,) = caught.value.details
    assert detail == {"type": "missing", "loc": ["body", "messages"], "msg": "Field required", "input": {"model": "m"}}


@pytest.mark.parametrize(
    "text",
    [
        b'{"messages": 3, "top_k": %s}' % (b"9" * 5000),
        b'{"messages": 3, "x": 1e999}',
        b'{"messages": 3, "x": NaN}',
        b'{"messages": 3, "x": %s}' % (b"[" * 5000),
        b'{"messages": 3, "x": "%s"}' % (b"x" * (1 << 17)),
    ],
    ids=["integer", "float", "nan", "deep", "large"],
)
def test_a_strict_reader_shows_nothing_of_what_it_cannot_read(text: bytes) -> None:
    """The first field is wrong, and what stands behind it is no JSON, or too much."""
    with pytest.raises(SchemaError) as caught:
        CHAT.read(text, strict=True)
    [detail] = caught.value.details
    assert detail == {
        "type": "list_type",
        "loc": ["body", "messages"],
        "msg": "Input should be a valid list",
        "input": None,
    }


def test_the_name_of_an_unknown_field_is_cut() -> None:
    with pytest.raises(SchemaError) as caught:
        CHAT.read(body(**{"x" * 10_000: 1}), strict=True)
    assert len(caught.value.message) < 1000


def test_strict_readers_take_every_field_that_is_known() -> None:
    assert CHAT.read(body(top_k=3, metadata={}, store=True, parallel_tool_calls=True), strict=True).top_k == 3


FILLED: dict[type[msgspec.Struct], dict[str, Any]] = {
    ChatRequest: {"messages": MESSAGES},
    CompletionRequest: {"prompt": "x"},
    EmbeddingRequest: {"input": "x"},
    ScoreRequest: {"text_1": "x", "text_2": "y"},
    RerankRequest: {"query": "x", "documents": ["y"]},
    TokenizeRequest: {"prompt": "x"},
    DetokenizeRequest: {"tokens": [1]},
}


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, names in REFUSED.items() for name in names])
def test_what_cannot_be_honoured_is_refused_by_name(kind: type[msgspec.Struct], name: str) -> None:
    reader = BodyReader(kind)
    with pytest.raises(FieldError, match=f"'{name}' cannot be honoured: ") as caught:
        reader.read(json.dumps({**FILLED[kind], name: "something else"}).encode())
    assert (caught.value.param, caught.value.code) == (name, "unsupported_parameter")
    for allowed in (None, *REFUSED[kind][name][0]):
        reader.read(json.dumps({**FILLED[kind], name: allowed}).encode())


def test_every_field_of_the_official_client_is_known() -> None:
    """Honoured, refused by name, or taken without a meaning: none by chance."""
    from openai.types.chat.completion_create_params import CompletionCreateParamsBase as Chat
    from openai.types.completion_create_params import CompletionCreateParamsBase as Completion
    from openai.types.embedding_create_params import EmbeddingCreateParams as Embedding

    pairs = ((Chat, ChatRequest), (Completion, CompletionRequest), (Embedding, EmbeddingRequest))
    for made, kind in pairs:
        assert set(made.__annotations__) - set(kind.__struct_fields__) == set()


@pytest.mark.parametrize("name", ["stop", "stop_token_ids", "bad_words", "logit_bias"])
def test_lists_that_would_hold_the_loop_are_refused(name: str) -> None:
    given: Any = [1] * 1025 if name == "stop_token_ids" else ["a"] * 1025
    if name == "logit_bias":
        given = {str(place): 1 for place in range(1025)}
    with pytest.raises(FieldError, match=f"'{name}': Expected `(array|object)` of length <= 1024"):
        BodyReader(CompletionRequest).read(json.dumps({"prompt": "a", name: given}).encode())


def test_unknown_fields_of_fields_are_refused_where_that_is_asked_for() -> None:
    reader = BodyReader(CompletionRequest)
    body = json.dumps({"prompt": "a", "stream": True, "stream_options": {"include_usage": True, "banana": 1}}).encode()
    assert reader.read(body).stream_options is not None
    with pytest.raises(SchemaError) as caught:
        reader.read(body, strict=True)
    assert caught.value.details == [
        {
            "type": "extra_forbidden",
            "loc": ["body", "stream_options", "banana"],
            "msg": "Extra inputs are not permitted",
            "input": 1,
        }
    ]
    right = reader.read(body.replace(b', "banana": 1', b""), strict=True)
    assert right.stream_options is not None
    assert right.stream_options.include_usage
