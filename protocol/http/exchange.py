"""What a handler is given and what it answers with: one HTTP exchange, free of ASGI and of sockets."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import msgspec

from protocol.core import InferenceCore
from protocol.errors import InvalidArgument
from protocol.http.settings import HttpSettings
from protocol.messages import LATEST_VERSION, Buffer

Headers: TypeAlias = tuple[tuple[bytes, bytes], ...]

JSON_CONTENT: Headers = ((b"content-type", b"application/json"),)

_MAX_VERSION = 2**63 - 1


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """A request whose body has arrived whole and decompressed.

    `path_parameters` are the named parts of the route's path, percent-decoded; header names are lower-case.
    """

    core: InferenceCore
    settings: HttpSettings
    path_parameters: Mapping[str, str]
    headers: Mapping[bytes, bytes]
    body: Buffer

    @property
    def model_name(self) -> str:
        return self.path_parameters["model_name"]

    @property
    def model_version(self) -> int:
        """The version in the path, or the latest.

        Raises:
            InvalidArgument: the digits are no 64-bit number.
        """
        text = self.path_parameters.get("model_version")
        if text is None:
            return LATEST_VERSION
        # Digits only, as the route has it; the length check spares a conversion of absurd length.
        if len(text) > 19 or int(text) > _MAX_VERSION:
            raise InvalidArgument(
                f"failed to get model version from specified version string '{text[:64]}' (details: out of the range "
                f"of a 64-bit integer), version should be an integral value > 0"
            )
        return int(text)


@dataclass(frozen=True, slots=True)
class Reply:
    """A whole response; `content-length` is added when it is sent."""

    status: int = 200
    headers: Headers = ()
    body: bytes = b""


Handler: TypeAlias = Callable[[HttpRequest], Awaitable[Reply]]


def json_reply(value: object) -> Reply:
    return Reply(headers=JSON_CONTENT, body=msgspec.json.encode(value))
