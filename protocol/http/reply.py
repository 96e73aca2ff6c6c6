"""What a handler answers with, whatever the version of HTTP."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import msgspec

Headers: TypeAlias = tuple[tuple[bytes, bytes], ...]

JSON_CONTENT: Headers = ((b"content-type", b"application/json"),)


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole response; `content-length` is added when it is sent."""

    status: int = 200
    headers: Headers = ()
    body: bytes = b""


def json_reply(value: object) -> Reply:
    return Reply(headers=JSON_CONTENT, body=msgspec.json.encode(value))
