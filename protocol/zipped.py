"""`gzip` and `deflate` for both edges: decompression with a size limit, and compression. No I/O."""

from __future__ import annotations

import zlib
from collections.abc import Generator, Iterable

from protocol.errors import InvalidArgument
from protocol.messages import Buffer

# zlib's window parameter says which wrapper it expects: gzip's, or (what both protocols call `deflate`) its own.
_WINDOW_BITS = {"gzip": zlib.MAX_WBITS | 16, "deflate": zlib.MAX_WBITS}
ENCODINGS = tuple(_WINDOW_BITS)
# A compressed byte gives so many at most.
MAX_INFLATION = 1032
# Bytes that are compressed at a time where others wait for their turn.
_PIECE = 1 << 15


def inflate(data: Buffer, encoding: str, limit: int, *, what: str) -> bytes | None:
    """Decompress the whole of `what`, never to more than `limit` bytes, and one; None where it is longer.

    Raises:
        InvalidArgument: it is damaged, cut off, or followed by other bytes (a second gzip member included).
    """
    decompressor = zlib.decompressobj(_WINDOW_BITS[encoding])
    try:
        result = decompressor.decompress(data, limit + 1)
    except zlib.error as error:
        raise InvalidArgument(f"failed to decompress {what} as {encoding}: {error}") from None
    if len(result) > limit:
        return None
    if not decompressor.eof:
        raise InvalidArgument(f"failed to decompress {what} as {encoding}: it ends too early")
    if decompressor.unused_data:
        raise InvalidArgument(
            f"failed to decompress {what} as {encoding}: {len(decompressor.unused_data)} bytes follow its end"
        )
    return result


def deflate(data: bytes, encoding: str, level: int) -> bytes:
    """`level` is zlib's, 1 to 9."""
    compressor = zlib.compressobj(level, zlib.DEFLATED, _WINDOW_BITS[encoding])
    return compressor.compress(data) + compressor.flush()


def deflate_parts(parts: Iterable[bytes], encoding: str, level: int) -> Generator[None, None, bytes]:
    """As `deflate`, of a whole in parts; yields after every 32 kB at most, which take a fraction of a millisecond."""
    compressor = zlib.compressobj(level, zlib.DEFLATED, _WINDOW_BITS[encoding])
    compressed: list[bytes] = []
    for part in parts:
        for start in range(0, len(part), _PIECE):
            compressed.append(compressor.compress(part[start : start + _PIECE]))
            yield
    compressed.append(compressor.flush())
    return b"".join(compressed)
