"""Pictures of a chat as the tensor that a model sees."""

from __future__ import annotations

from typing import Any

import pytest

from protocol.http.openai.codec.images import Picture, image_tensor, is_picture, names_urls
from protocol.http.openai.errors import FieldError


def chat(*urls: Any) -> list[dict[str, Any]]:
    parts = [{"type": "image_url", "image_url": url} for url in urls]
    return [{"role": "user", "content": "a"}, {"role": "user", "content": [{"type": "text", "text": "b"}, *parts]}]


def test_pictures_keep_their_order() -> None:
    messages = chat({"url": "data:image/png;base64,YQ==", "detail": "low"}) + chat("data:image/jpeg;base64,Yg==")
    tensor = image_tensor(messages, "image")
    assert tensor is not None
    assert (tensor.name, tensor.as_numpy().tolist()) == ("image", [b"YQ==", b"Yg=="])


def test_pictures_of_other_routes_are_taken_as_they_are() -> None:
    tensor = image_tensor(
        [{"role": "user", "content": [Picture("x", "YQ==")]}, *chat("data:image/png;base64,Yg==")], "i"
    )
    assert tensor is not None
    assert tensor.as_numpy().tolist() == [b"YQ==", b"Yg=="]
    assert [is_picture(each) for each in (Picture("x"), {"type": "image_url"}, {"type": "text"}, "image_url")] == [
        *(True, True),
        *(False, False),
    ]


@pytest.mark.parametrize(
    ("url", "names"),
    [
        ({"url": "http://a"}, True),
        ("HTTPS://a", True),
        ({"url": "data:image/png;base64,YQ=="}, False),
        ({"url": "file:///a"}, False),
        ({"url": 3}, False),
        ([], False),
        (None, False),
    ],
)
def test_whether_something_is_to_be_fetched(url: Any, names: bool) -> None:
    assert names_urls(chat(url)) is names
    assert names_urls([{"content": [Picture("x", url="http://a" if names else "", base64="YQ==")]}]) is names
    assert not names_urls([{"content": None}, {}, {"content": ["http://a", {"type": "text", "text": "http://a"}]}])


def test_parts_as_vllm_takes_them_too() -> None:
    url = "data:image/png;base64,YQ=="
    parts: list[Any] = [{"type": "input_image", "image_url": url}, {"image_url": {"url": url}}, {"image_url": url}]
    tensor = image_tensor([{"role": "user", "content": parts}], "i")
    assert tensor is not None
    assert tensor.as_numpy().tolist() == [b"YQ=="] * 3
    assert not is_picture({"type": ["image_url"], "image_url": url})


def test_a_chat_without_pictures() -> None:
    assert image_tensor(chat(), "image") is None


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ({}, r"'messages\[1\].content\[1\].image_url': expected an object with 'url'"),
        (7, "expected an object with 'url'"),
        ({"url": "file:///etc/passwd"}, "expected a data URL .* or an http or https URL, got 'file:///etc/passwd'"),
        ({"url": " http://a/"}, "expected a data URL"),
        ({"url": "data:image/png,abc"}, "expected a data URL with a picture in base64"),
    ],
)
def test_what_is_no_picture(url: Any, message: str) -> None:
    with pytest.raises(FieldError, match=message) as caught:
        image_tensor(chat(url), "image")
    assert caught.value.param == "messages[1].content[1].image_url"
