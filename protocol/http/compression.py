"""Content codings of bodies: bounded inflation of requests, compression of responses by `Accept-Encoding`.

Source: reference section "Infer request"; RFC 9110 sections 8.4 and 12.5.3.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping

from protocol.errors import InvalidArgument
from protocol.http.errors import BodyTooLarge, UnsupportedCompression
from protocol.messages import Buffer

IDENTITY = "identity"
# zlib's window parameter says which wrapper it expects: gzip's, or (HTTP's `deflate`) its own.
_WINDOW_BITS = {"gzip": zlib.MAX_WBITS | 16, "deflate": zlib.MAX_WBITS}

# Below this a response travels in one packet either way.
MIN_COMPRESSED_SIZE = 1024
_LEVEL = 1  # tensors compress little more at higher levels, and take far longer


def content_encoding(headers: Mapping[bytes, bytes], *, allowed: bool = True) -> str:
    """The coding of a request body; `allowed` is whether it may have any.

    Raises:
        UnsupportedCompression: neither gzip, deflate nor identity.
        InvalidArgument: not identity, which alone is allowed.
    """
    value = headers.get(b"content-encoding", b"").decode("latin-1").strip().lower()
    if value in ("", IDENTITY):
        return IDENTITY
    if not allowed:
        raise InvalidArgument("Unsupported content-encoding, only 'identity' is supported.")
    if value not in _WINDOW_BITS:
        raise UnsupportedCompression
    return value


def inflate(body: Buffer, encoding: str, limit: int) -> bytes:
    """Decompress a whole body; never holds more than `limit` bytes of result, and one.

    Raises:
        BodyTooLarge: the result is longer than `limit`.
        InvalidArgument: the body is damaged, cut off, or followed by other bytes (a second gzip member included).
    """
    decompressor = zlib.decompressobj(_WINDOW_BITS[encoding])
    try:
        result = decompressor.decompress(body, limit + 1)
    except zlib.error as exc:
        raise InvalidArgument(f"failed to decompress the request body as {encoding}: {exc}") from None
    if len(result) > limit:
        raise BodyTooLarge(
            f"Decompressed data size exceeds the maximum allowed value of {limit} bytes. "
            f"Use --http-max-input-size to increase the limit.",
            "max_input_size",
        )
    if not decompressor.eof:
        raise InvalidArgument(f"failed to decompress the request body as {encoding}: it ends too early")
    if decompressor.unused_data:
        raise InvalidArgument(
            f"failed to decompress the request body as {encoding}: {len(decompressor.unused_data)} bytes follow its end"
        )
    return result


def choose_encoding(accept: bytes | None) -> str:
    """The coding with the strictly highest weight among identity, gzip and deflate; the first listed wins a tie."""
    best, best_weight = IDENTITY, 0.0
    if accept is None:
        return best
    for entry in accept.decode("latin-1").lower().split(","):
        name, *options = (part.strip() for part in entry.split(";"))
        if name != IDENTITY and name not in _WINDOW_BITS:
            continue
        weight = 1.0
        try:
            for option in options:
                if option.startswith("q="):
                    weight = float(option[2:])
        except ValueError:
            continue
        if weight > best_weight:
            best, best_weight = name, weight
    return best


def compress(body: bytes, encoding: str) -> bytes:
    compressor = zlib.compressobj(_LEVEL, zlib.DEFLATED, _WINDOW_BITS[encoding])
    return compressor.compress(body) + compressor.flush()
