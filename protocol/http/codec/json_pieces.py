"""JSON texts of many entries, written one entry at a time, and compressed a little at a time.

Pure; for answers that grow with the number of models.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from protocol.http.codec.compression import IDENTITY, MIN_COMPRESSED_SIZE, choose_encoding
from protocol.http.reply import JSON_CONTENT, Headers, Reply
from protocol.sync.sliced import Sliced
from protocol.zipped import deflate_parts

_LEVEL = 1
_VARY: Headers = ((b"vary", b"accept-encoding"),)


def json_pieces(entries: Iterable[object], *, before: bytes = b"[", after: bytes = b"]") -> Iterator[bytes]:
    """The entries with commas between them."""
    encode = msgspec.json.Encoder().encode
    start = before
    for entry in entries:
        yield start + encode(entry)
        start = b","
    yield before + after if start is before else after


def compressed(parts: Sequence[bytes], accept_encoding: bytes | None) -> Sliced[tuple[bytes, Headers]]:
    """The whole in the coding that is accepted, and the headers that tell of it. What is short stays as it is."""
    coding = choose_encoding(accept_encoding)
    if coding == IDENTITY or sum(map(len, parts)) < MIN_COMPRESSED_SIZE:
        return b"".join(parts), _VARY
    body = yield from deflate_parts(parts, coding, _LEVEL)
    return body, (*_VARY, (b"content-encoding", coding.encode()))


def json_list_reply(
    entries: Iterable[object], accept_encoding: bytes | None, *, before: bytes = b"[", after: bytes = b"]"
) -> Sliced[Reply]:
    """The answer with these entries, each of which is made when its turn has come."""
    parts: list[bytes] = []
    for part in json_pieces(entries, before=before, after=after):
        parts.append(part)
        yield
    body, headers = yield from compressed(parts, accept_encoding)
    return Reply(headers=(*JSON_CONTENT, *headers), body=body)
