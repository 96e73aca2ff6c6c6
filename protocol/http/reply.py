"""Reply: status, headers and body that a handler returns, independent of the version of HTTP."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import msgspec

from protocol.messages import Buffer

Headers: TypeAlias = tuple[tuple[bytes, bytes], ...]

JSON_CONTENT: Headers = ((b"content-type", b"application/json"),)
TEXT_CONTENT: Headers = ((b"content-type", b"text/plain; charset=utf-8"),)


class Reply(msgspec.Struct):
    """A whole response; `content-length` is added when it is sent. `tail` follows the body, from where it is: it must
    not change any more. `request_id` is sent as a header of its own, since it is another one each time."""

    status: int = 200
    headers: Headers = ()
    body: Buffer = b""
    tail: Sequence[Buffer] = ()
    request_id: bytes = b""

    @property
    def length(self) -> int:
        """The size of the whole content in bytes."""
        return len(self.body) + sum(map(len, self.tail))

    @property
    def content(self) -> bytes:
        """The whole, in one piece."""
        return b"".join((self.body, *self.tail))


def json_reply(value: object, status: int = 200) -> Reply:
    return Reply(status, JSON_CONTENT, msgspec.json.encode(value))
