"""Pictures of a chat: parts of its messages to the tensor that a model sees. Pure; long texts are copied."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from protocol.datatypes import DataType
from protocol.http.openai.errors import FieldError
from protocol.messages import Tensor, encode_bytes_elements

IMAGE_PART = "image_url"
_DATA_URL = re.compile(r"data:image/[\w.+-]+;base64,", re.IGNORECASE)


def image_tensor(messages: Sequence[Mapping[str, Any]], name: str) -> Tensor | None:
    """The pictures of all messages in order, in base64; None where there are none.

    Raises:
        FieldError: one is no data URL. Nothing is fetched: a server would ask whomever its clients want asked.
    """
    images = list(_images(messages))
    return Tensor(name, DataType.BYTES, (len(images),), encode_bytes_elements(images)) if images else None


def _images(messages: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    for place, message in enumerate(messages):
        content = message.get("content")
        for number, part in enumerate(content if isinstance(content, list) else ()):
            if isinstance(part, dict) and part.get("type") == IMAGE_PART:
                yield _base64_of(part.get(IMAGE_PART), f"messages[{place}].content[{number}].{IMAGE_PART}")


def _base64_of(given: Any, path: str) -> str:
    url = given.get("url") if isinstance(given, dict) else given
    if not isinstance(url, str):
        raise FieldError(f"'{path}': expected an object with 'url'", path, "invalid_type")
    head = _DATA_URL.match(url)
    if head is None:
        raise FieldError(
            f"'{path}': expected a data URL with a picture in base64 (data:image/png;base64,…), got '{url:.40}': "
            f"pictures are not fetched",
            path,
            "unsupported_parameter",
        )
    return url[head.end() :]
