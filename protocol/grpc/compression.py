"""Compressed messages: `gzip` and `deflate`, both ways. No I/O.

Source: gRPC's compression, and "gRPC over HTTP2", section Message-Encoding.
"""

from __future__ import annotations

import zlib

from protocol.errors import InvalidArgument, PayloadTooLarge, Unsupported

# Window bits for zlib: gRPC's `deflate` is the zlib format, and 16 more asks for gzip's.
_WINDOW_BITS = {"gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}
ACCEPTED_ENCODINGS = ("identity", *_WINDOW_BITS)

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


def decompress(data: memoryview, encoding: str, max_message_size: int) -> bytes:
    """The message in a compressed frame, never inflated beyond the limit.

    Raises:
        InvalidArgument: the data is not in that encoding, is cut off, or goes on after its end.
        PayloadTooLarge: the message is larger than the limit; what was inflated until then is dropped.
    """
    if encoding not in _WINDOW_BITS:
        raise InvalidArgument(f"a message is flagged as compressed, but grpc-encoding is '{encoding}'")
    inflate = zlib.decompressobj(_WINDOW_BITS[encoding])
    try:
        message = inflate.decompress(data, max_message_size + 1)
    except zlib.error as error:
        raise InvalidArgument(f"a message could not be decompressed as {encoding}: {error}") from None
    if len(message) > max_message_size:
        raise PayloadTooLarge(f"the {encoding} message inflates to more than the limit of {max_message_size} bytes")
    if not inflate.eof:
        raise InvalidArgument(f"a message could not be decompressed as {encoding}: its data is cut off")
    if inflate.unused_data:
        raise InvalidArgument(
            f"a message could not be decompressed as {encoding}: {len(inflate.unused_data)} bytes follow its end"
        )
    return message


def choose_encoding(accepted: str | None) -> str | None:
    """What to compress responses with, by a client's `grpc-accept-encoding`; None where it reads nothing of ours."""
    offered = {one.strip() for one in (accepted or "").split(",")}
    return next((encoding for encoding in _WINDOW_BITS if encoding in offered), None)


def compress(message: bytes, encoding: str, level: int) -> bytes | None:
    """The message in one of our encodings; None where that makes it no smaller. `level` is zlib's, 1 to 9."""
    if len(message) < MIN_COMPRESSED_SIZE:
        return None
    deflate = zlib.compressobj(level, zlib.DEFLATED, _WINDOW_BITS[encoding])
    compressed = deflate.compress(message) + deflate.flush()
    return compressed if len(compressed) < len(message) else None
