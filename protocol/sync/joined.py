"""Parts of a long text joined in slices: to copy 32 MB in one go takes some 20 ms, most of them the system's, which
has to give the memory."""

from __future__ import annotations

import numpy as np

from protocol.sync.sliced import Sliced

# What is worth it: less is joined in one go.
JOINED_AT_ONCE = 1 << 20
_PIECE = 1 << 17


def join(parts: list[bytes] | list[bytes | bytearray | memoryview]) -> Sliced[memoryview]:
    """All parts one behind the other. The list is emptied, so that no part is kept for longer than it must be."""
    whole = np.empty(sum(map(len, parts)), np.uint8).data
    parts.reverse()
    filled = 0
    while parts:
        with memoryview(parts.pop()) as part:
            for start in range(0, len(part), _PIECE):
                piece = part[start : start + _PIECE]
                whole[filled : filled + len(piece)] = piece
                filled += len(piece)
                yield
    return whole
