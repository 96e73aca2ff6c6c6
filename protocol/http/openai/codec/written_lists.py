"""Answers with a long list, written in slices: the floats of 2048 embeddings take a tenth of a second in one go."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from protocol.sync.sliced import Sliced

# Bytes that are sent as one buffer: a system call takes so many buffers.
_PART = 1 << 16


def written_list(
    before: Mapping[str, Any], name: str, items: Iterable[Any], after: Mapping[str, Any]
) -> Sliced[list[bytes]]:
    """The JSON, in parts, of an object with a list under this name, behind at least one member and before others."""
    parts: list[bytes] = []
    pieces, size = [msgspec.json.encode(before)[:-1], b",", msgspec.json.encode(name), b":["], 0
    for number, item in enumerate(items):
        pieces += (b"," if number else b"", msgspec.json.encode(item))
        size += len(pieces[-1])
        if size > _PART:
            parts.append(b"".join(pieces))
            pieces, size = [], 0
        yield
    pieces += (b"],", msgspec.json.encode(after)[1:]) if after else (b"]}",)
    return [*parts, b"".join(pieces)]
