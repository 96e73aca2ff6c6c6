"""Content codings: decompression of requests with a size limit, compression of responses by `Accept-Encoding`.

Source: reference section "Infer request"; RFC 9110 sections 8.4 and 12.5.3.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from protocol import zipped
from protocol.errors import InvalidArgument
from protocol.http.errors import BodyTooLarge, UnsupportedCompression
from protocol.messages import Buffer

IDENTITY = "identity"

# Below this a response travels in one packet either way.
MIN_COMPRESSED_SIZE = 1024
_LEVEL = 1  # tensors compress little more at higher levels, and take far longer


def content_encoding(headers: Mapping[bytes, bytes], *, allowed: bool = True) -> str:
    """The coding of a request body; `allowed` is whether it may have any.

    Raises:
        UnsupportedCompression: neither gzip, deflate nor identity.
        InvalidArgument: not identity, which alone is allowed.
    """
    given = headers.get(b"content-encoding")
    if given is None:
        return IDENTITY
    value = given.decode("latin-1").strip().lower()
    if value in ("", IDENTITY):
        return IDENTITY
    if not allowed:
        raise InvalidArgument("Unsupported content-encoding, only 'identity' is supported.")
    if value not in zipped.ENCODINGS:
        raise UnsupportedCompression
    return value


def inflate(body: Buffer, encoding: str, limit: int) -> memoryview:
    """Decompress a whole body; never holds more than `limit` bytes of result, and one.

    Raises:
        BodyTooLarge: the result is longer than `limit`.
        InvalidArgument: the body is damaged, cut off, or followed by other bytes (a second gzip member included).
    """
    result = zipped.inflate(body, encoding, limit, what="the request body")
    if result is None:
        raise BodyTooLarge(
            f"Decompressed data size exceeds the maximum allowed value of {limit} bytes. "
            f"Use --http-max-input-size to increase the limit.",
            "max_input_size",
        )
    return result


def choose_encoding(accept: bytes | None) -> str:
    """The coding with the strictly highest weight among identity, gzip and deflate; the first listed wins a tie."""
    best, best_weight = IDENTITY, 0.0
    if accept is None:
        return best
    for entry in accept.decode("latin-1").lower().split(","):
        name, *options = (part.strip() for part in entry.split(";"))
        if name != IDENTITY and name not in zipped.ENCODINGS:
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


def compress(parts: Iterable[Buffer], encoding: str) -> bytes:
    """The whole of the parts. For a thread, which holds the interpreter's lock for none of them for long."""
    work = zipped.deflate_parts(parts, encoding, _LEVEL)
    while True:
        try:
            next(work)
        except StopIteration as done:
            compressed: bytes = done.value
            return compressed
