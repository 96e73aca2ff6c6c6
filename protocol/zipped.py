"""`gzip` and `deflate` for both edges: decompression with a size limit, and compression. No I/O."""

from __future__ import annotations

import zlib
from collections.abc import Generator, Iterable

import numpy as np

from protocol.errors import InvalidArgument
from protocol.messages import Buffer, flat

# zlib's window parameter says which wrapper it expects: gzip's, or (what both protocols call `deflate`) its own.
_WINDOW_BITS = {"gzip": zlib.MAX_WBITS | 16, "deflate": zlib.MAX_WBITS}
ENCODINGS = tuple(_WINDOW_BITS)
# A compressed byte gives so many at most.
MAX_INFLATION = 1032
# Bytes that are compressed at a time where others wait for their turn.
_PIECE = 1 << 15
_INFLATED_PIECE = 1 << 17


def inflate(data: Buffer, encoding: str, limit: int, *, what: str) -> memoryview | None:
    """Decompress the whole of `what`, never to more than `limit` bytes, and one; None where it is longer. For a thread:
    it goes in pieces, and the interpreter's lock is held for none of them for long.

    Raises:
        InvalidArgument: it is damaged, cut off, or followed by other bytes (a second gzip member included).
    """
    decompressor = zlib.decompressobj(_WINDOW_BITS[encoding])
    view = memoryview(data)
    most = min(limit + 1, len(view) * MAX_INFLATION + _INFLATED_PIECE)
    room = np.empty(most, np.uint8)  # of which the system gives no more than what is written to
    size = 0
    unused = 0
    try:
        for start in range(0, max(len(view), 1), _PIECE):
            rest: Buffer = view[start : start + _PIECE]
            while True:
                wanted = min(_INFLATED_PIECE, most - size)
                piece = decompressor.decompress(rest, wanted)
                if size + len(piece) > limit:
                    return None
                # By numpy, which gives the interpreter's lock up: the system may take long to find the memory.
                room[size : size + len(piece)] = np.frombuffer(piece, np.uint8)
                size += len(piece)
                rest = decompressor.unconsumed_tail
                # Without a tail there may be more of what it has taken, if the piece is full.
                if decompressor.eof or not (rest or len(piece) == wanted):
                    break
            if decompressor.eof:
                unused = len(decompressor.unused_data) + max(len(view) - start - _PIECE, 0)
                break
    except zlib.error as error:
        raise InvalidArgument(f"failed to decompress {what} as {encoding}: {error}") from None
    if not decompressor.eof:
        raise InvalidArgument(f"failed to decompress {what} as {encoding}: it ends too early")
    if unused:
        raise InvalidArgument(f"failed to decompress {what} as {encoding}: {unused} bytes follow its end")
    return room[:size].data


def deflate(data: bytes, encoding: str, level: int) -> bytes:
    """`level` is zlib's, 1 to 9."""
    compressor = zlib.compressobj(level, zlib.DEFLATED, _WINDOW_BITS[encoding])
    return compressor.compress(data) + compressor.flush()


def deflate_parts(parts: Iterable[Buffer], encoding: str, level: int) -> Generator[None, None, bytes]:
    """As `deflate`, of a whole in parts; yields after every 32 kB at most, which take a fraction of a millisecond."""
    compressor = zlib.compressobj(level, zlib.DEFLATED, _WINDOW_BITS[encoding])
    compressed: list[bytes] = []
    for part in parts:
        whole = flat(part)
        for start in range(0, len(whole), _PIECE):
            compressed.append(compressor.compress(whole[start : start + _PIECE]))
            yield
    compressed.append(compressor.flush())
    return b"".join(compressed)
