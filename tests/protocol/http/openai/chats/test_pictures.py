"""Pictures by URLs in a chat: fetched all at once, or refused by the place where they stand."""

from __future__ import annotations

import base64
from typing import Any

import pytest
import trio

from protocol.errors import PayloadTooLarge
from protocol.http.exchange import HttpRequest
from protocol.http.openai.chats.pictures import MAX_FETCHED, with_pictures
from protocol.http.openai.codec.images import Picture
from protocol.http.openai.errors import FieldError
from protocol.media.fetcher import MediaFetcher, MediaSettings
from protocol.outgoing.hosts import HostRule
from tests.protocol.http.fake_services import make_request, make_services
from tests.protocol.media.hosts import Host, answer


def request_of(port: int | None = None) -> HttpRequest:
    hosts = [] if port is None else [HostRule.parse(f"127.0.0.1:{port}")]
    media = MediaFetcher(MediaSettings(hosts, timeout=60)) if hosts else None
    return make_request(make_services(media=media), path_parameters={})


def part(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url}}


def encoded(data: bytes) -> str:
    return base64.b64encode(data).decode()


async def test_urls_become_what_they_name(nursery: trio.Nursery) -> None:
    """Each once, and what else there is stays where it is."""
    host = await nursery.start(Host({"/a": answer(b"a"), "/b": answer(b"bb")}).run)
    base = f"http://127.0.0.1:{host.port}"
    text = {"type": "text", "text": "c"}
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "s"},
        {"role": "user", "content": [part(f"{base}/a"), text, part("data:image/png;base64,ZA=="), part(f"{base}/b")]},
        {"role": "user", "content": [Picture("x", url=f"{base}/a"), Picture("y", "ZA==")]},
    ]
    request = request_of(host.port)
    made = await with_pictures(request, messages)
    where = "messages[1].content[{}].image_url"
    assert made == [
        messages[0],
        {
            "role": "user",
            "content": [
                Picture(where.format(0), encoded(b"a")),
                text,
                Picture(where.format(2), "ZA=="),
                Picture(where.format(3), encoded(b"bb")),
            ],
        },
        {"role": "user", "content": [Picture("x", encoded(b"a")), Picture("y", "ZA==")]},
    ]
    assert sorted(host.asked) == ["/a", "/b"]
    assert (request.fetched.size, request.services.memory.held) == (3, 3)
    request.end()
    assert request.services.memory.held == 0


async def test_without_urls_nothing_changes() -> None:
    messages = [{"role": "user", "content": [part("data:image/png;base64,ZA==")]}]
    assert await with_pictures(request_of(), messages) is messages


async def test_a_server_that_fetches_nothing() -> None:
    with pytest.raises(
        FieldError, match=r"'messages\[0\].content\[0\].image_url': 'http://a/' cannot be .* not fetched"
    ):
        await with_pictures(request_of(), [{"role": "user", "content": [part("http://a/")]}])


async def test_where_one_fails_the_others_end(nursery: trio.Nursery) -> None:
    host = await nursery.start(Host({"/gone": answer(b"", "404 Not Found")}).run)
    base = f"http://127.0.0.1:{host.port}"
    messages = [
        {"role": "user", "content": [part(f"{base}/silent"), Picture("input[3].image_url", url=f"{base}/gone")]}
    ]
    with pytest.raises(
        FieldError, match=r"'input\[3\].image_url': .* cannot be fetched: its answer has status 404"
    ) as e:
        await with_pictures(request_of(host.port), messages)
    assert e.value.param == "input[3].image_url"


async def test_how_many() -> None:
    messages = [{"role": "user", "content": [part(f"http://127.0.0.1:1/{place}") for place in range(MAX_FETCHED + 1)]}]
    with pytest.raises(FieldError, match="expected at most 16 pictures by URLs, got 17"):
        await with_pictures(request_of(1), messages)


async def test_they_count_as_the_requests(nursery: trio.Nursery) -> None:
    host = await nursery.start(Host({"/a": answer(b"a" * 100)}).run)
    request = request_of(host.port)
    request.services.memory.limit = 99
    with pytest.raises(PayloadTooLarge, match="--max-request-memory"):
        await with_pictures(request, [{"role": "user", "content": [part(f"http://127.0.0.1:{host.port}/a")]}])
    request.end()
    assert request.services.memory.held == 0
