"""The application: routing, limits, defects and clients that leave, called without a socket."""

from __future__ import annotations

import gzip
import logging
from collections.abc import Iterator

import pytest
import trio
import trio.testing

from protocol.http.app import HttpApp
from protocol.http.settings import HttpSettings
from tests.protocol.http.asgi import Exchange, call
from tests.protocol.http.fake_core import FakeCore

INFER = "/v2/models/echo/infer"
SMALL = HttpSettings(max_input_size=100, max_body_size=1000, body_timeout=10, linger=5)


def make_app(core: FakeCore | None = None, settings: HttpSettings = SMALL) -> HttpApp:
    return HttpApp(core or FakeCore(), settings)


def endless(size: int = 50) -> Iterator[bytes]:
    while True:
        yield b" " * size


async def test_unknown_paths_and_methods() -> None:
    answer = await call(make_app(), "GET", "/nowhere")
    assert (answer.status, answer.error) == (404, "Not Found")
    assert "connection" not in answer.headers
    answer = await call(make_app(), "POST", "/v2")
    assert (answer.status, answer.error) == (405, "Method Not Allowed")
    assert answer.headers["allow"] == "GET, HEAD"


async def test_a_body_where_none_is_wanted() -> None:
    """It is dropped, and the connection ends with the answer."""
    exchange = Exchange("POST", "/nowhere", [b"x"] * 30, {"content-length": "30"})
    answer = await exchange.run(make_app())
    assert (answer.status, answer.headers["connection"], answer.complete) == (404, "close", True)
    assert exchange.taken >= 30


async def test_a_declared_length_over_the_limit_is_refused_unread() -> None:
    """Nothing of the body is waited for."""
    exchange = Exchange("POST", INFER, b"", {"content-length": "101"})
    await exchange.run(make_app())
    assert exchange.answer.status == 413
    assert exchange.answer.error == (
        "request JSON size of 101 bytes exceeds the maximum allowed input size of 100 bytes. "
        "Use --http-max-input-size to increase the limit."
    )


@pytest.mark.parametrize(
    ("headers", "size", "text"),
    [
        ({}, 150, "request JSON size of 150 bytes exceeds the maximum allowed input size of 100 bytes"),
        ({"inference-header-content-length": "10"}, 1050, "request body size of 1050 bytes exceeds the maximum"),
        ({"content-encoding": "gzip"}, 1050, "request body size of 1050 bytes exceeds the maximum"),
    ],
)
async def test_a_streamed_body_is_refused_at_the_limit(
    headers: dict[str, str], size: int, text: str, autojump_clock: trio.testing.MockClock
) -> None:
    """The answer is sent while the body still comes: here it would never end."""
    exchange = Exchange("POST", INFER, endless(), {"transfer-encoding": "chunked", **headers})
    async with trio.open_nursery() as nursery:
        nursery.start_soon(exchange.run, make_app())
        while not exchange.answer.body:
            await trio.lowlevel.checkpoint()
        assert exchange.taken <= size // 50 + 1
        assert (exchange.answer.status, exchange.answer.headers["connection"]) == (413, "close")
        assert exchange.answer.error.startswith(text)
        nursery.cancel_scope.cancel()


async def test_the_rest_of_a_refused_body_is_dropped_for_a_while(autojump_clock: trio.testing.MockClock) -> None:
    """A client that neither reads nor ends holds its connection for `linger` seconds, not longer."""

    async def trickle() -> bytes:
        await trio.sleep(0.1)
        return b" " * 60

    exchange = Exchange("POST", INFER, headers={"transfer-encoding": "chunked"}, next_chunk=trickle)
    answer = await exchange.run(make_app())
    assert answer.complete
    assert trio.current_time() == pytest.approx(0.2 + SMALL.linger, abs=0.2)


async def test_a_body_within_its_limit_passes_in_any_chunks() -> None:
    body = b'{"inputs":[]}'
    for chunks in ([body], [body[:1], body[1:]], [bytes([b]) for b in body], [b"", body, b""]):
        answer = await call(make_app(), "POST", INFER, chunks, {"transfer-encoding": "chunked"})
        assert answer.status == 200


async def test_what_a_compressed_body_becomes_is_limited() -> None:
    body = gzip.compress(b" " * 101)
    answer = await call(make_app(), "POST", INFER, body, {"content-encoding": "gzip"})
    assert (answer.status, answer.error) == (
        413,
        "Decompressed data size exceeds the maximum allowed value of 100 bytes. "
        "Use --http-max-input-size to increase the limit.",
    )


async def test_a_body_that_stops_coming(autojump_clock: trio.testing.MockClock) -> None:
    """No byte for `body_timeout` seconds is answered 408."""

    async def stall() -> bytes:
        await trio.sleep_forever()
        raise AssertionError

    exchange = Exchange("POST", INFER, headers={"content-length": "50"}, next_chunk=stall)
    answer = await exchange.run(make_app())
    assert (answer.status, answer.complete) == (408, True)
    assert answer.error == "the request body is not complete and no byte came for 10 seconds"


async def test_too_many_tiny_chunks() -> None:
    settings = HttpSettings(linger=0)
    answer = await call(make_app(settings=settings), "POST", INFER, endless(1), {"transfer-encoding": "chunked"})
    assert answer.status == 400
    assert answer.error == (
        "Chunked request body exceeds maximum of 65536 non-empty chunks. Send fewer or larger HTTP chunks."
    )


async def test_a_defect_is_500_and_logged_with_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    core = FakeCore(failure=ValueError("a defect"))
    with caplog.at_level(logging.ERROR):
        answer = await call(make_app(core), "POST", "/v2/models/broken/infer", b'{"inputs":[]}')
    assert (answer.status, answer.error) == (500, "internal error: ValueError: a defect")
    (record,) = caplog.records
    assert record.getMessage() == "POST /v2/models/{model_name}/infer failed"
    assert record.exc_info is not None
    assert record.exc_info[1] is core.failure


async def test_a_client_that_leaves_cancels_its_inference() -> None:
    """And gets no answer."""
    core = FakeCore()
    exchange = Exchange("POST", "/v2/models/wait/infer", b'{"inputs":[]}')
    async with trio.open_nursery() as nursery:
        nursery.start_soon(exchange.run, make_app(core))
        await core.started.wait()
        exchange.disconnect.set()
    assert core.cancelled.is_set()
    assert exchange.answer.status == 0


async def test_a_client_that_leaves_within_its_body_is_not_answered() -> None:
    core = FakeCore()
    exchange = Exchange("POST", INFER, [b"{"], {"content-length": "50"}, leaves_early=True)
    exchange.disconnect.set()
    answer = await exchange.run(make_app(core))
    assert (answer.status, core.requests) == (0, [])


async def test_http2_replies_name_no_connection() -> None:
    """The header is illegal there."""
    exchange = Exchange("POST", "/nowhere", [b"x"] * 3, http_version="2")
    answer = await exchange.run(make_app())
    assert (answer.status, answer.complete) == (404, True)
    assert "connection" not in answer.headers
