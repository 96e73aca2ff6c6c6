"""Message codec in grpclib's interface: serialised bytes, Google protobuf, or betterproto2, by the handler's types.

A handler says by its types which kind of message it takes and gives. `memoryview` and `bytes`: serialized messages (the
latter also as a list of parts), for the infer path, which has a codec of its own. Google protobuf's classes (upb, from
`protocol.proto`): messages that carry bulk. betterproto2's dataclasses: all others.
"""

from __future__ import annotations

from typing import Any

import betterproto2
from google.protobuf.message import DecodeError, Message
from grpclib.encoding.base import CodecBase

from protocol.errors import InvalidArgument, PayloadTooLarge
from protocol.grpc.generated.message_pool import default_message_pool
from protocol.proto import message_class

# No such request says more than a few names; betterproto2 takes some 40 µs for each field, on the event loop.
MAX_DATACLASS_SIZE = 16384


class Codec(CodecBase):
    """Protobuf, strictly: what is not a whole message of the type is the client's mistake."""

    __content_subtype__ = "proto"

    def encode(self, message: Any, message_type: Any) -> Any:
        """The bytes, or those of an infer message in the parts that it was given in."""
        if isinstance(message, (bytes, list)):
            return message
        if not isinstance(message, message_type):
            raise TypeError(f"expected a message of type {message_type.__name__}, got {type(message).__name__}")
        serialized: bytes = message.SerializeToString()
        return serialized

    def decode(self, data: bytes | memoryview, message_type: Any) -> Any:
        """Read a message of `message_type`.

        Raises:
            InvalidArgument: the data is not such a message.
            PayloadTooLarge: it is, but larger than any that makes sense.
        """
        if message_type is memoryview:
            return memoryview(data)
        if issubclass(message_type, betterproto2.Message):
            return _decode_dataclass(data, message_type)
        return parse(message_type, data)


def parse(message_type: type[Message], data: bytes | memoryview) -> Message:
    """Read a Google protobuf message.

    Raises:
        InvalidArgument: the data is not such a message.
    """
    try:
        return message_type.FromString(data)  # type: ignore[arg-type]  # it takes any buffer, its stub says bytes
    except DecodeError as error:
        name = message_type.DESCRIPTOR.full_name
        raise InvalidArgument(f"the request of {len(data)} bytes is not a valid {name} message: {error}") from None


def _decode_dataclass(data: bytes | memoryview, message_type: type[betterproto2.Message]) -> betterproto2.Message:
    if len(data) > MAX_DATACLASS_SIZE:
        raise PayloadTooLarge(
            f"the {message_type.__name__} of {len(data)} bytes is larger than the limit of {MAX_DATACLASS_SIZE} bytes"
        )
    # betterproto2 takes a message that is cut off for a shorter one; Google's parser knows, and drops what is unknown.
    full_name = default_message_pool.type_to_url[message_type].rpartition("/")[2]
    message = parse(message_class(full_name), data)
    message.DiscardUnknownFields()
    return message_type.parse(message.SerializeToString())
