"""gRPC message compression: `gzip` and `deflate`, with a limit on decompressed size. No I/O.

Source: gRPC's compression, and "gRPC over HTTP2", section Message-Encoding.
"""

from __future__ import annotations

from protocol.errors import InvalidArgument, PayloadTooLarge, Unsupported
from protocol.zipped import ENCODINGS, deflate, inflate

ACCEPTED_ENCODINGS = ("identity", *ENCODINGS)

# Compressing less saves nothing that a client would notice.
MIN_COMPRESSED_SIZE = 256


def check_encoding(encoding: str) -> None:
    """Refuse a `grpc-encoding` that cannot be read.

    Raises:
        Unsupported: the encoding is none of ours.
    """
    if encoding not in ACCEPTED_ENCODINGS:
        accepted = ", ".join(ACCEPTED_ENCODINGS)
        raise Unsupported(f"grpc-encoding '{encoding}' is not supported, expected one of: {accepted}")


def decompress(data: memoryview, encoding: str, max_message_size: int) -> memoryview:
    """The message in a compressed frame, never inflated beyond the limit.

    Raises:
        InvalidArgument: the data is not in that encoding, is cut off, or goes on after its end.
        PayloadTooLarge: the message is larger than the limit; what was inflated until then is dropped.
    """
    if encoding not in ENCODINGS:
        raise InvalidArgument(f"a message is flagged as compressed, but grpc-encoding is '{encoding}'")
    message = inflate(data, encoding, max_message_size, what="the message")
    if message is None:
        raise PayloadTooLarge(f"the {encoding} message inflates to more than the limit of {max_message_size} bytes")
    return message


def choose_encoding(accepted: str | None) -> str | None:
    """What to compress responses with, by a client's `grpc-accept-encoding`; None where it reads nothing of ours."""
    offered = {one.strip() for one in (accepted or "").split(",")}
    return next((encoding for encoding in ENCODINGS if encoding in offered), None)


def compress(message: bytes, encoding: str, level: int) -> bytes | None:
    """The message in one of our encodings; None where that makes it no smaller. `level` is zlib's, 1 to 9."""
    if len(message) < MIN_COMPRESSED_SIZE:
        return None
    compressed = deflate(message, encoding, level)
    return compressed if len(compressed) < len(message) else None
