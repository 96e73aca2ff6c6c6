"""Base64 in slices: 60 MB take a tenth of a second in one go.

Pure. What is refused, and with which words, is as the standard library has it for the whole.
"""

from __future__ import annotations

from base64 import b64decode

import numpy as np

from protocol.messages import Buffer
from protocol.sync.sliced import Sliced

# Letters; four of them are three bytes.
_PIECE = 1 << 15


def decode_base64(text: Buffer) -> Sliced[Buffer]:
    """Raises binascii.Error."""
    view = memoryview(text)
    # Of numpy, which asks the system for large pages. What grows as it is written is copied now and then, 45 MB in
    # 25 ms, and to free so much in small pages takes 10.
    made, filled = np.empty(3 * len(view) // 4, np.uint8).data, 0
    for start in range(0, len(view), _PIECE):
        piece = bytes(view[start : start + _PIECE])
        if b"=" in piece and start + _PIECE < len(view):  # what follows is too much
            return b64decode(view, validate=True)
        try:
            found = b64decode(piece, validate=True)
        except ValueError:
            return b64decode(view, validate=True)  # which says why
        made[filled : filled + len(found)] = found
        filled += len(found)
        yield
    return made[:filled]
