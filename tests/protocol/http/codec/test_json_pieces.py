"""JSON texts that are written entry by entry."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator

import pytest

from protocol.http.codec.json_pieces import json_list_reply, json_pieces
from tests.sliced import finished


@pytest.mark.parametrize("count", [0, 1, 3])
def test_the_pieces_are_one_text(count: int) -> None:
    entries = [{"name": f"m{index}"} for index in range(count)]
    text = b"".join(json_pieces(entries, before=b'{"entries":[', after=b"]}"))
    assert json.loads(text) == {"entries": entries}


def test_each_entry_is_made_when_its_turn_has_come() -> None:
    made: list[int] = []

    def entries() -> Iterator[int]:
        for index in range(3):
            made.append(index)
            yield index

    work = json_list_reply(entries(), None)
    next(work)
    assert made == [0]
    reply = finished(work)
    assert (reply.body, made) == (b"[0,1,2]", [0, 1, 2])
    assert dict(reply.headers) == {b"content-type": b"application/json", b"vary": b"accept-encoding"}


@pytest.mark.parametrize("entries", [1, 5000])
def test_only_what_is_long_is_compressed(entries: int) -> None:
    reply = finished(json_list_reply(["name"] * entries, b"gzip"))
    is_coded = dict(reply.headers).get(b"content-encoding") == b"gzip"
    body = bytes(reply.body)
    assert is_coded is (entries > 1)
    assert json.loads(gzip.decompress(body) if is_coded else body) == ["name"] * entries
