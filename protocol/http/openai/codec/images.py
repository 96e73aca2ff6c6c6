"""Pictures of a chat: parts of its messages to the tensor that a model sees. Pure; long texts are copied.

A part is what a client of chat completions sends (`image_url`), or a `Picture`, which other routes make of theirs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from protocol.datatypes import DataType
from protocol.http.openai.errors import FieldError
from protocol.messages import Buffer, LaidOutTensor, Tensor
from protocol.sync.joined import join
from protocol.sync.sliced import in_one_go

IMAGE_PART = "image_url"
_DATA_URL = re.compile(r"data:image/[\w.+-]+;base64,", re.IGNORECASE)
# Of a long text: what says of a URL of which kind it is.
_HEAD = 256
_WEB_URL = re.compile(r"https?://", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class LongText:
    """A text of ASCII letters that stays where it is in the body: no string of it has to be made, cut and encoded."""

    data: memoryview

    @property
    def head(self) -> str:
        return str(self.data[:_HEAD], "ascii")

    def __str__(self) -> str:
        return str(self.data, "ascii")


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture among the parts of a message: `base64`, or a URL to fetch it from where that is empty. `path` is the
    client's field."""

    path: str
    base64: str | memoryview = ""
    url: str = ""


def url_picture(url: str | LongText, path: str) -> Picture:
    """Raises FieldError: it is no URL of a picture."""
    if isinstance(url, LongText):
        head = _DATA_URL.match(url.head)
        return url_picture(str(url), path) if head is None else Picture(path, url.data[head.end() :])
    head = _DATA_URL.match(url)
    if head is not None:
        return Picture(path, url[head.end() :])
    if _WEB_URL.match(url):
        return Picture(path, url=url)
    raise FieldError(
        f"'{path}': expected a data URL with a picture in base64 (data:image/png;base64,…), or an http or https URL, "
        f"got '{url:.40}'",
        path,
        "unsupported_parameter",
    )


def is_picture(part: Any) -> bool:
    """Parts of chats also as vLLM takes them: by the type of responses, or without one."""
    if not isinstance(part, dict):
        return isinstance(part, Picture)
    kind = part.get("type")
    return kind == IMAGE_PART or kind == "input_image" or (kind is None and IMAGE_PART in part)


def names_urls(messages: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a picture has to be fetched. Takes no longer for large pictures."""
    return any(
        part.url if isinstance(part, Picture) else _is_web_url(_url_of(part.get(IMAGE_PART)))
        for message in messages
        if isinstance(content := message.get("content"), list)
        for part in content
        if is_picture(part)
    )


def url_places(messages: Sequence[Any]) -> Iterator[tuple[dict[str, Any], str]]:
    """Where a chat's pictures have their URLs."""
    for message in messages:
        content = message.get("content")
        for part in content if isinstance(content, list) else ():
            if isinstance(part, dict) and is_picture(part):
                given = part.get(IMAGE_PART)
                yield (given, "url") if isinstance(given, dict) else (part, IMAGE_PART)


def pictures_of(messages: Sequence[Mapping[str, Any]]) -> Iterator[Picture]:
    """All of a chat, in order.

    Raises:
        FieldError: one is no picture.
    """
    for place, message in enumerate(messages):
        content = message.get("content")
        for number, part in enumerate(content if isinstance(content, list) else ()):
            if isinstance(part, Picture):
                yield part
            elif is_picture(part):
                yield _read(part.get(IMAGE_PART), f"messages[{place}].content[{number}].{IMAGE_PART}")


def count_pictures(messages: Sequence[Mapping[str, Any]]) -> int:
    """How many a chat has."""
    contents = (message.get("content") for message in messages)
    return sum(is_picture(part) for content in contents if isinstance(content, list) for part in content)


def image_tensor(messages: Sequence[Mapping[str, Any]], name: str) -> Tensor | None:
    """The pictures of all messages in order, in base64; None where there are none. Those of URLs have been fetched.

    Raises:
        FieldError: one is no picture.
    """
    images = [each.base64 for each in pictures_of(messages)]
    return LaidOutTensor(name, DataType.BYTES, (len(images),), _laid_out(images)) if images else None


def _laid_out(images: Sequence[str | memoryview]) -> Buffer:
    """A piece at a time: whoever copies all in one go holds the interpreter's lock."""
    parts: list[bytes | bytearray | memoryview] = []
    for image in images:
        data = image.encode() if isinstance(image, str) else image
        parts += (len(data).to_bytes(4, "little"), data)
    return in_one_go(join(parts))


def _url_of(given: Any) -> str | LongText | None:
    url = given.get("url") if isinstance(given, dict) else given
    return url if isinstance(url, (str, LongText)) else None


def _is_web_url(url: str | LongText | None) -> bool:
    return url is not None and _WEB_URL.match(url if isinstance(url, str) else url.head) is not None


def _read(given: Any, path: str) -> Picture:
    url = _url_of(given)
    if url is None:
        raise FieldError(f"'{path}': expected an object with 'url'", path, "invalid_type")
    return url_picture(url, path)
