"""The application: routing, limits, defects and clients that leave, called without a socket."""

from __future__ import annotations

import gzip
import logging
from collections.abc import Iterator
from dataclasses import replace

import pytest
import trio
import trio.testing

from protocol.access.control import AccessControl
from protocol.access.restricted import HTTP_API, RestrictedApis
from protocol.http.app import HttpApp
from protocol.http.settings import HttpSettings
from protocol.limits.request_memory import RequestMemory
from tests.protocol.access.changing_keys import ChangingKeys
from tests.protocol.http.asgi import Answer, Exchange, call
from tests.protocol.http.fake_core import FakeCore
from tests.protocol.http.fake_services import FakeTraceControl, make_services

INFER = "/v2/models/echo/infer"
SMALL = HttpSettings(max_input_size=100, max_body_size=1000, body_timeout=10, linger=5)


def make_app(core: FakeCore | None = None, settings: HttpSettings = SMALL) -> HttpApp:
    return HttpApp(make_services(core), settings)


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
    """It is dropped."""
    exchange = Exchange("POST", "/nowhere", [b"x"] * 30, {"content-length": "30"})
    answer = await exchange.run(make_app())
    assert (answer.status, answer.complete) == (404, True)
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
        assert exchange.answer.status == 413
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
    assert answer.error == (
        "the request body is not complete: 0 bytes came within 10 seconds. "
        "Use --http-body-timeout to allow longer pauses."
    )


async def test_a_body_that_trickles(autojump_clock: trio.testing.MockClock) -> None:
    """Short pauses are allowed, but not so many that the body would take for ever."""

    async def trickle() -> bytes:
        await trio.sleep(1)
        return b" " * 10

    exchange = Exchange("POST", INFER, headers={"transfer-encoding": "chunked"}, next_chunk=trickle)
    services = make_services()
    answer = await exchange.run(HttpApp(services, replace(SMALL, linger=0)))
    assert answer.status == 408
    assert answer.error.startswith("the request body is not complete: 100 bytes came within 10 seconds.")
    assert services.limits.counts() == {("http", "body_timeout"): 1}


async def test_a_slow_body_that_moves_is_taken(autojump_clock: trio.testing.MockClock) -> None:
    """More than `MIN_BODY_RATE` bytes in a second may go on as long as they like."""
    body = b'{"inputs":[]}' + b" " * 60_000
    pieces = iter([body[start : start + 2000] for start in range(0, len(body), 2000)])

    async def steady() -> bytes | None:
        await trio.sleep(1)
        return next(pieces, None)

    exchange = Exchange("POST", INFER, headers={"transfer-encoding": "chunked"}, next_chunk=steady)
    answer = await exchange.run(make_app(settings=replace(SMALL, max_input_size=100_000, max_body_size=100_000)))
    assert answer.status == 200
    assert trio.current_time() > 2 * SMALL.body_timeout


async def test_a_defect_is_500_and_logged_with_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    core = FakeCore(failure=ValueError("a defect"))
    with caplog.at_level(logging.ERROR):
        answer = await call(make_app(core), "POST", "/v2/models/broken/infer", b'{"inputs":[]}')
    assert (answer.status, answer.error) == (500, "internal error: ValueError: a defect")
    record, line = caplog.records
    assert line.getMessage().startswith("HTTP infer failed: model 'broken', version 'latest', id '', status 500, after")
    assert record.getMessage() == "POST /v2/models/{model_name}/infer failed"
    assert record.exc_info is not None
    assert record.exc_info[1] is core.failure


@pytest.mark.parametrize(
    ("parameters", "status"),
    [(b'{"a": 1}', 500), (b'{"a": "%s"}' % (b"[" * 120), 400), (b'{"a": "%s"}' % (rb"\u005b" * 120), 400)],
    ids=["defect", "deep", "deep and escaped"],
)
async def test_a_stack_that_is_exhausted_is_the_clients_mistake_only_if_it_may_be(
    parameters: bytes, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    app = make_app(FakeCore(failure=RecursionError("too deep")), HttpSettings())
    body = b'{"inputs":[],"parameters":%s}' % parameters
    answer = await call(app, "POST", "/v2/models/broken/infer", body)
    assert answer.status == status
    assert ("Traceback" in caplog.text) is (status == 500)


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
    exchange = Exchange("POST", "/nowhere", [b"x"] * 3)
    answer = await exchange.run(make_app())
    assert (answer.status, answer.complete) == (404, True)
    assert "connection" not in answer.headers


def restricted(text: str) -> HttpApp:
    rules = RestrictedApis.parse([text], HTTP_API)
    return HttpApp(make_services(access=AccessControl(rules)), SMALL)


async def test_access_goes_before_method_and_content() -> None:
    """Who may not make a call learns nothing else of it; an unknown path is unknown to everyone."""
    app = restricted("inference,logging:admin-key=secret")
    text = "This API is restricted, expecting header 'admin-key'"
    for method, path, body in (("POST", INFER, b"{"), ("PUT", "/v2/logging", b""), ("GET", INFER, b"")):
        answer = await call(app, method, path, body)
        assert (answer.status, answer.error) == (403, text)
    answer = await call(app, "POST", INFER, b"{}", {"Admin-Key": "wrong"})
    assert (answer.status, answer.error) == (403, text)
    assert (await call(app, "POST", INFER, b'{"inputs":[]}', {"Admin-Key": "secret"})).status == 200
    assert (await call(app, "PUT", "/v2/logging", b"", {"admin-key": "secret"})).status == 405
    assert (await call(app, "GET", "/v2/health/live")).status == 200
    assert (await call(app, "GET", "/v2/nowhere")).status == 404


async def test_a_refused_call_is_refused_before_its_body_is_read(autojump_clock: trio.testing.MockClock) -> None:
    exchange = Exchange("POST", INFER, b"", {"content-length": "50"}, leaves_early=True)
    answer = await exchange.run(restricted("inference:k=v"))
    assert answer.status == 403


# It may do nothing but look at health.
KEY = '[keys.bob]\nkey = "0123456789abcdef"\nallow = ["health"]'


async def test_keys() -> None:
    app = HttpApp(make_services(access=AccessControl(keys=ChangingKeys(KEY))), SMALL)
    answer = await call(app, "GET", "/v2/health/live")
    assert (answer.status, answer.headers["www-authenticate"]) == (401, "Bearer")
    assert answer.error == "a valid key is needed, expecting header 'Authorization: Bearer <key>'"
    key = {"authorization": "Bearer 0123456789abcdef"}
    assert (await call(app, "GET", "/v2/health/live", headers=key)).status == 200
    answer = await call(app, "GET", "/v2", headers=key)
    assert answer.status == 403
    assert answer.error.startswith("key 'bob' does not allow 'metadata' calls")


async def test_of_a_header_that_comes_twice_the_first_counts() -> None:
    """Also where two of them would disagree on who is calling."""
    app = restricted("health:k=v")
    for values, status in ((["v", "x"], 200), (["x", "v"], 403)):
        exchange = Exchange("GET", "/v2/health/live", twice=[("k", value) for value in values])
        assert (await exchange.run(app)).status == status


async def test_refusals_by_limits_are_counted() -> None:
    services = make_services()
    app = HttpApp(services, SMALL)
    await call(app, "POST", INFER, b" " * 101)
    await call(app, "POST", INFER, b" " * 1001, {"inference-header-content-length": "1"})
    await call(app, "POST", INFER, gzip.compress(b" " * 101), {"content-encoding": "gzip"})
    tensor = b'{"inputs":[{"name":"a","datatype":"INT8","shape":[101],"data":[]}]}'
    await call(app, "POST", INFER, tensor)
    await call(app, "POST", INFER, b"{")
    assert services.limits.counts() == {("http", "max_input_size"): 3, ("http", "max_body_size"): 1}


async def test_a_traced_inference() -> None:
    """Stamped on its way in and out, carried by the request, ended once."""
    core, trace = FakeCore(), FakeTraceControl(is_on=True)
    app = HttpApp(make_services(core, trace=trace), SMALL)
    await call(app, "POST", INFER, b'{"inputs":[]}', {"traceparent": "00-1-2-3"})
    (made,) = trace.traces
    assert (made.model, made.parent, made.ends) == ("echo", "", 1)
    assert made.stamps == ["HTTP_RECV_START", "HTTP_RECV_END", "HTTP_SEND_START", "HTTP_SEND_END"]
    assert core.requests[0].trace is made
    await call(app, "GET", "/v2")
    assert len(trace.traces) == 1


async def test_a_trace_within_anothers() -> None:
    trace = FakeTraceControl(is_on=True, follows_context=True)
    app = HttpApp(make_services(trace=trace), SMALL)
    await call(app, "POST", INFER, b'{"inputs":[]}', {"traceparent": "00-1-2-3"})
    assert trace.traces[0].parent == "00-1-2-3"


@pytest.mark.parametrize(
    ("body", "headers", "last"),
    [
        (b"{", {}, "HTTP_SEND_END"),
        (b" " * 200, {}, "HTTP_RECV_START"),
        (b"", {"content-encoding": "br"}, "HTTP_RECV_START"),
    ],
)
async def test_a_trace_ends_with_a_refusal(body: bytes, headers: dict[str, str], last: str) -> None:
    trace = FakeTraceControl(is_on=True)
    await call(HttpApp(make_services(trace=trace), SMALL), "POST", INFER, body, headers)
    (made,) = trace.traces
    assert (made.stamps[-1], made.ends) == (last, 1)


async def test_a_trace_ends_when_its_client_leaves() -> None:
    core, trace = FakeCore(), FakeTraceControl(is_on=True)
    exchange = Exchange("POST", "/v2/models/wait/infer", b'{"inputs":[]}')
    async with trio.open_nursery() as nursery:
        nursery.start_soon(exchange.run, HttpApp(make_services(core, trace=trace), SMALL))
        await core.started.wait()
        exchange.disconnect.set()
    assert trace.traces[0].ends == 1


@pytest.mark.parametrize("is_compressed", [False, True])
async def test_requests_in_flight_share_a_limit(is_compressed: bool) -> None:
    """A body counts until its request is answered, inflated; then the next one has room. The refusal is counted."""
    core = FakeCore()
    services = replace(make_services(core), memory=RequestMemory(100_000))
    app = HttpApp(services, HttpSettings(max_input_size=60_000, linger=0.1))
    body = b'{"inputs": [{"name": "IN", "shape": [1], "datatype": "FP32", "data": [1]}]}'.ljust(60_000)
    headers = {"content-encoding": "gzip"} if is_compressed else {}
    sent = gzip.compress(body) if is_compressed else body
    answers: list[Answer] = []

    async def infer(model: str) -> None:
        answers.append(await call(app, "POST", f"/v2/models/{model}/infer", sent, headers))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(infer, "gate")
        await core.started.wait()
        assert services.memory.held == 60_000
        await infer("echo")
        assert answers[0].status == 503
        assert answers[0].error.startswith("the requests in flight hold the 100000 bytes that the server has")
        assert services.limits.counts() == {("http", "max_request_memory"): 1}
        core.gate.set()
    await infer("echo")
    assert [answer.status for answer in answers] == [503, 200, 200]
    assert services.memory.held == 0


async def test_a_body_that_is_given_up_is_held_no_more(autojump_clock: trio.testing.MockClock) -> None:
    services = replace(make_services(), memory=RequestMemory(100_000))
    exchange = Exchange("POST", INFER, [b" " * 50_000], {"content-length": "90000"}, leaves_early=True)
    exchange.disconnect.set()
    await exchange.run(HttpApp(services, HttpSettings()))
    assert exchange.answer.status == 0
    assert services.memory.held == 0
