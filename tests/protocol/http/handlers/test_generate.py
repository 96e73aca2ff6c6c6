"""`generate` and `generate_stream` through the application."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest
import trio

from protocol.core import TensorMetadata
from protocol.errors import Unavailable
from protocol.http.app import HttpApp
from protocol.http.settings import HttpSettings
from tests.protocol.http.asgi import Answer, Exchange, call
from tests.protocol.http.fake_core import FakeCore
from tests.protocol.http.fake_services import FakeTraceControl, make_services

TEXT = (TensorMetadata("text", "BYTES", (-1, 1)),)
NOT_ONE = (
    "generate expects model to produce exactly 1 response, use generate stream for model that generates various number "
    "of responses"
)


def make_core(**members: Any) -> FakeCore:
    return FakeCore(inputs=TEXT, **members)


async def post(core: FakeCore, path: str, body: Any, headers: dict[str, str] | None = None) -> Answer:
    app = HttpApp(make_services(core), HttpSettings())
    text = body if isinstance(body, bytes) else json.dumps(body).encode()
    return await call(app, "POST", f"/v2/models/{path}", text, headers)


def events(answer: Answer, status: int = 200) -> list[Any]:
    """The objects of an event stream that has come to its end."""
    assert answer.status == status
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert answer.complete
    *parts, rest = answer.body.decode().split("\n\n")
    assert rest == ""
    assert all(part.startswith("data: ") for part in parts)
    return [json.loads(part.removeprefix("data: ")) for part in parts]


async def test_generate() -> None:
    core = make_core()
    answer = await post(core, "echo/generate", {"id": "7", "text": "hi", "temperature": 0.5})
    assert (answer.status, answer.headers["content-type"]) == (200, "application/json")
    assert answer.body == b'{"OUT_text":"hi","id":"7","model_name":"echo","model_version":"1"}'
    assert core.requests[0].parameters == {"id": "7", "temperature": 0.5}


async def test_generate_with_a_version() -> None:
    core = make_core()
    assert (await post(core, "echo/versions/1/generate", {"text": "hi"})).status == 200
    assert core.requests[0].model_version == 1


@pytest.mark.parametrize(("answers", "status"), [(0, 400), (1, 200), (2, 400), (1000, 400)])
async def test_generate_wants_exactly_one_response(answers: int, status: int) -> None:
    """A model that gives a second one is stopped there."""
    core = make_core(answers=answers)
    answer = await post(core, "many/generate", {"text": "hi"})
    assert answer.status == status
    assert answer.status == 200 or answer.error == NOT_ONE
    assert core.sent <= 1


async def test_a_stream_of_one_response() -> None:
    answer = await post(make_core(), "echo/generate_stream", {"text": "hi"})
    assert events(answer) == [{"OUT_text": "hi", "model_name": "echo", "model_version": "1"}]
    assert answer.body.startswith(b'data: {"OUT_text":"hi",')


@pytest.mark.parametrize("answers", [0, 1, 5])
async def test_a_stream_of_many_responses(answers: int) -> None:
    """One event for each, in order; none for the end."""
    answer = await post(make_core(answers=answers), "many/versions/1/generate_stream", {"text": "hi"})
    assert [event["index"] for event in events(answer)] == list(range(answers))


@pytest.mark.parametrize("path", ["broken/generate", "broken/generate_stream"])
async def test_an_error_before_the_first_response(path: str) -> None:
    """It has a status of its own; of a stream it is the first event."""
    answer = await post(make_core(failure=Unavailable("full")), path, {"text": "hi"})
    if path.endswith("_stream"):
        assert events(answer, 503) == [{"error": "full", "request_id": answer.headers["x-request-id"]}]
    else:
        assert (answer.status, answer.error) == (503, "full")
        assert answer.headers["content-type"] == "application/json"


async def test_an_error_after_the_first_response() -> None:
    """It is the last event; the status has been sent."""
    answer = await post(make_core(answers=2, fails_late=True), "many/generate_stream", {"text": "hi"})
    found = events(answer)
    assert [event.get("index") for event in found] == [0, 1, None]
    assert found[2] == {"error": "failed", "request_id": answer.headers["x-request-id"]}


async def test_a_defect_after_the_first_response(caplog: pytest.LogCaptureFixture) -> None:
    core = make_core(answers=1, fails_late=True, failure=ValueError("a defect"))
    with caplog.at_level(logging.ERROR):
        answer = await post(core, "many/generate_stream", {"text": "hi"})
    assert events(answer)[1]["error"] == "internal error: ValueError: a defect"
    record, line = caplog.records
    assert line.getMessage().startswith(
        "HTTP generate_stream failed: model 'many', version 'latest', id '', status 500"
    )
    assert record.getMessage() == "a stream of model 'many' failed"


@pytest.mark.parametrize("name", ["generate", "generate_stream"])
@pytest.mark.parametrize(
    ("body", "headers", "status", "text"),
    [
        (b"", {}, 400, "failed to parse the request JSON buffer: The document is empty at 0"),
        (b"{", {}, 400, "failed to parse the request JSON buffer: "),
        ({"text": [5]}, {}, 400, "Unable to parse 'data': attempt to access JSON non-string as string"),
        (
            b"{}",
            {"content-encoding": "gzip"},
            400,
            "Unsupported content-encoding, only 'identity' is supported.",
        ),
        (b"{}", {"content-encoding": "br"}, 400, "Unsupported content-encoding, only 'identity' is supported."),
    ],
)
async def test_bad_requests(name: str, body: Any, headers: dict[str, str], status: int, text: str) -> None:
    answer = await post(make_core(), f"echo/{name}", body, headers)
    assert answer.status == status
    assert answer.error.startswith(text)


@pytest.mark.parametrize("name", ["generate", "generate_stream"])
async def test_unknown_models(name: str) -> None:
    answer = await post(make_core(), f"none/{name}", {"text": "hi"})
    assert (answer.status, answer.error) == (404, "Request for unknown model: 'none' is not found")


@pytest.mark.parametrize("name", ["generate", "generate_stream", "infer"])
async def test_a_server_that_stops(name: str) -> None:
    """It does not say that it has no such model, although it may have unloaded it."""
    answer = await post(make_core(exiting=True), f"unloaded/{name}", {"text": "x"})
    assert (answer.status, answer.error) == (503, "Server exiting")


async def test_the_identity_coding_is_none() -> None:
    assert (await post(make_core(), "echo/generate", {"text": "x"}, {"content-encoding": "identity"})).status == 200


async def test_much_text() -> None:
    """So much that it is read beside the loop; mistakes in it are answered as all others."""
    text = "x" * 2_000_000
    assert (await post(make_core(), "echo/generate", {"text": text})).json["OUT_text"] == text
    assert (await post(make_core(), "echo/generate_stream", {"text": [text, 5]})).status == 400


async def test_headers_are_not_forwarded() -> None:
    core = make_core()
    app = HttpApp(make_services(core, forwarding="x-.*"), HttpSettings())
    await call(app, "POST", "/v2/models/echo/generate", b'{"text":"x"}', {"x-user": "u"})
    assert core.requests[0].parameters == {}


@pytest.mark.parametrize("name", ["generate", "generate_stream"])
async def test_a_client_that_leaves_cancels_its_generation(name: str) -> None:
    core = make_core()
    exchange = Exchange("POST", f"/v2/models/wait/{name}", b'{"text":"x"}')
    async with trio.open_nursery() as nursery:
        nursery.start_soon(exchange.run, HttpApp(make_services(core), HttpSettings()))
        await core.started.wait()
        exchange.disconnect.set()
    assert core.cancelled.is_set()
    assert exchange.answer.status == 0


@pytest.mark.parametrize("name", ["generate", "generate_stream"])
async def test_traces(name: str) -> None:
    core, trace = make_core(), FakeTraceControl(is_on=True)
    app = HttpApp(make_services(core, trace=trace), HttpSettings())
    await call(app, "POST", f"/v2/models/echo/{name}", b'{"text":"x"}')
    (made,) = trace.traces
    assert made.stamps == ["HTTP_RECV_START", "HTTP_RECV_END", "HTTP_SEND_START", "HTTP_SEND_END"]
    assert made.ends == 1
    assert core.requests[0].trace is made
