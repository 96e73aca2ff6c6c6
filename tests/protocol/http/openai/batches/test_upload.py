"""Uploads over every version of HTTP, in any pieces: what is kept, and that nothing is left of what is not."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio

from protocol.http.app import HttpApp
from protocol.http.settings import HttpSettings
from protocol.jobs.keeping import JobKeeping
from protocol.services import EdgeServices
from tests.actors.jobs.batches.test_batches import Server, serving
from tests.protocol.http.asgi import Exchange
from tests.protocol.http.conftest import Serve
from tests.protocol.http.fake_services import make_services
from tests.protocol.http.http2_client import Http2Client

FILES = "/v1/files"
CONTENT = bytes(range(256)) * 3000
TYPE = "multipart/form-data; boundary=XX"
HEAD = (
    b'--XX\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nbatch\r\n'
    b'--XX\r\nContent-Disposition: form-data; name="file"; filename="in.jsonl"\r\n\r\n'
)
FORM = HEAD + CONTENT + b"\r\n--XX--\r\n"
SETTINGS = HttpSettings(host="127.0.0.1", port=0, max_file_size=1_000_000, linger=1)


@asynccontextmanager
async def with_batches(folder: Path) -> AsyncIterator[tuple[Server, EdgeServices]]:
    async with serving(folder) as server:
        yield server, replace(make_services(), keeping=JobKeeping(batches=server.batches))


async def check_kept(server: Server, answer: bytes) -> None:
    made = json.loads(answer)
    assert (made["object"], made["bytes"], made["filename"]) == ("file", len(CONTENT), "in.jsonl")
    file = await server.batches.find_file("anonymous", made["id"])
    assert await server.batches.read_file(file.payload, 0, len(CONTENT) + 1) == CONTENT
    check_only(server, file.payload)


def check_only(server: Server, *payloads: str) -> None:
    assert {path.name for path in (server.store._folder / "payloads").iterdir()} == set(payloads)
    assert server.store._uploads.byte_size == 0


async def until(condition: Callable[[], bool]) -> None:
    """What threads do has no event."""
    while not condition():
        await trio.to_thread.run_sync(time.sleep, 0.005)


def request_head(*headers: str) -> bytes:
    return "\r\n".join([f"POST {FILES} HTTP/1.1", "Host: x", f"Content-Type: {TYPE}", *headers, "", ""]).encode()


async def http1_answer(stream: trio.SocketStream) -> tuple[int, bytes]:
    data = b""
    while b"\r\n\r\n" not in data:
        piece = await stream.receive_some()
        assert piece, data
        data += piece
    head, _, body = data.partition(b"\r\n\r\n")
    size = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
    while len(body) < size:
        body += await stream.receive_some()
    return int(head.split()[1]), body


def chunked(pieces: Sequence[bytes]) -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


@pytest.mark.parametrize("is_chunked", [False, True])
async def test_over_http_1(tmp_path: Path, serve: Serve, is_chunked: bool) -> None:
    async with with_batches(tmp_path) as (server, services):
        served = await serve(settings=SETTINGS, services=services)
        stream = await served.connect()
        if is_chunked:
            pieces = [FORM[start : start + 7001] for start in range(0, len(FORM), 7001)]
            await stream.send_all(request_head("Transfer-Encoding: chunked") + chunked(pieces))
        else:
            await stream.send_all(request_head(f"Content-Length: {len(FORM)}") + FORM)
        status, answer = await http1_answer(stream)
        assert status == 200
        await check_kept(server, answer)
        # The connection goes on.
        await stream.send_all(f"GET {FILES} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        status, answer = await http1_answer(stream)
        assert (status, len(json.loads(answer)["data"])) == (200, 1)


async def test_a_client_that_waits_for_continue(tmp_path: Path, serve: Serve) -> None:
    async with with_batches(tmp_path) as (server, services):
        stream = await (await serve(settings=SETTINGS, services=services)).connect()
        await stream.send_all(request_head(f"Content-Length: {len(FORM)}", "Expect: 100-continue"))
        assert (await stream.receive_some()).startswith(b"HTTP/1.1 100 ")
        await stream.send_all(FORM)
        status, answer = await http1_answer(stream)
        assert status == 200
        await check_kept(server, answer)


@pytest.mark.parametrize("declares", [True, False])
async def test_over_http_2(tmp_path: Path, serve: Serve, declares: bool) -> None:
    async with with_batches(tmp_path) as (server, services):
        client = Http2Client(await (await serve(settings=SETTINGS, services=services)).connect())
        extra = [("content-type", TYPE), *([("content-length", str(len(FORM)))] if declares else [])]
        stream_id = await client.start("POST", FILES, None, extra)
        sent = 0
        while sent < len(FORM):
            room = min(client.h2.local_flow_control_window(stream_id), client.h2.max_outbound_frame_size)
            if not room:
                assert await client.more()
                continue
            client.h2.send_data(stream_id, FORM[sent : sent + room], end_stream=sent + room >= len(FORM))
            sent += room
            await client.flush()
        status, answer = await client.answer(stream_id)
        assert status == 200
        await check_kept(server, answer)


async def test_over_an_upgraded_connection(tmp_path: Path) -> None:
    async with with_batches(tmp_path) as (server, services):
        pieces = [FORM[start : start + 50_000] for start in range(0, len(FORM), 50_000)]
        exchange = Exchange("POST", FILES, [pieces[0], b"", *pieces[1:]], {"content-type": TYPE})
        answer = await exchange.run(HttpApp(services, SETTINGS))
        assert answer.status == 200
        await check_kept(server, answer.body)


async def test_a_client_that_leaves_leaves_nothing(tmp_path: Path, serve: Serve) -> None:
    async with with_batches(tmp_path) as (server, services):
        stream = await (await serve(settings=SETTINGS, services=services)).connect()
        await stream.send_all(request_head(f"Content-Length: {len(FORM)}") + FORM[:400_000])
        await until(lambda: any((tmp_path / "payloads").iterdir()))
        await stream.aclose()
        await until(lambda: not (any((tmp_path / "payloads").iterdir()) or server.store._uploads.byte_size))


async def test_a_body_that_stops_coming(tmp_path: Path, serve: Serve) -> None:
    async with with_batches(tmp_path) as (server, services):
        stream = await (await serve(settings=replace(SETTINGS, body_timeout=0.3), services=services)).connect()
        await stream.send_all(request_head(f"Content-Length: {len(FORM)}") + FORM[:300_000])
        status, answer = await http1_answer(stream)
        assert (status, b"--http-body-timeout" in answer) == (408, True)
        check_only(server)


def part(name: str, content: bytes, file_name: str = "") -> bytes:
    named = f'; filename="{file_name}"' if file_name else ""
    head = f'--XX\r\nContent-Disposition: form-data; name="{name}"{named}\r\n\r\n'.encode()
    return head + content + b"\r\n"


END = b"--XX--\r\n"
GOOD = part("file", b"{}", "f") + part("purpose", b"batch")


@pytest.mark.parametrize(
    ("body", "content_type", "text"),
    [
        (GOOD, TYPE, "cut off"),
        (part("purpose", b"batch") + END, TYPE, "'file': Field required"),
        (part("file", b"{}", "f") + END, TYPE, "'purpose': Field required"),
        (part("file", b"{}", "f") + GOOD + END, TYPE, "expected one file"),
        (part("file", b"{}", "f") + part("purpose", b"vision") + END, TYPE, "'purpose': expected 'batch'"),
        (GOOD + part("x", b"y" * 5000) + END, TYPE, "over 4096 bytes"),
        (GOOD + b"".join(part(str(number), b"y") for number in range(40)) + END, TYPE, "over 32 fields"),
        (GOOD + part("expires_after[seconds]", b"10") + END, TYPE, "expires_after"),
        (b"{}", "application/json", "multipart/form-data"),
        (b"--XX\r\nA: b\r\n\r\n" + END, TYPE, "has no name"),
    ],
)
async def test_a_form_that_is_refused_leaves_nothing(tmp_path: Path, body: bytes, content_type: str, text: str) -> None:
    async with with_batches(tmp_path) as (server, services):
        exchange = Exchange("POST", FILES, body, {"content-type": content_type})
        answer = await exchange.run(HttpApp(services, SETTINGS))
        assert answer.status == 400
        assert text in answer.json["error"]["message"]
        check_only(server)


async def test_fields_may_come_in_any_order_and_names_are_cleaned(tmp_path: Path) -> None:
    async with with_batches(tmp_path) as (server, services):
        body = part("file", b"{}", "a\tb" + "c" * 300) + part("purpose", b"batch") + END
        answer = await Exchange("POST", FILES, body, {"content-type": TYPE}).run(HttpApp(services, SETTINGS))
        assert answer.status == 200
        assert answer.json["filename"] == ("ab" + "c" * 300)[:255]
        assert answer.json["expires_at"] - answer.json["created_at"] == server.batches.keep_seconds


async def test_a_file_over_the_limit_is_refused_while_it_comes(tmp_path: Path) -> None:
    def endless() -> Iterator[bytes]:
        yield HEAD
        while True:
            yield b"x" * 50_000

    async with with_batches(tmp_path) as (server, services):
        exchange = Exchange("POST", FILES, endless(), {"content-type": TYPE})
        async with trio.open_nursery() as nursery:
            nursery.start_soon(exchange.run, HttpApp(services, SETTINGS))
            await until(lambda: bool(exchange.answer.body))
            nursery.cancel_scope.cancel()
        assert exchange.answer.status == 413
        assert "--jobs-max-file-bytes" in exchange.answer.json["error"]["message"]
        check_only(server)


async def test_little_of_a_large_file_is_held(tmp_path: Path) -> None:
    """What is read is written before more is read."""
    held: list[Any] = []

    async with with_batches(tmp_path) as (server, services):

        def pieces() -> Iterator[bytes]:
            yield HEAD
            for number in range(19):
                held.append(number * 50_000 - server.store._uploads.byte_size)
                yield b"x" * 50_000
            yield b"\r\n" + END

        answer = await Exchange("POST", FILES, pieces(), {"content-type": TYPE}).run(HttpApp(services, SETTINGS))
        assert answer.status == 200
        assert max(held) <= 300_000


async def upload(services: EdgeServices) -> Any:
    return (await Exchange("POST", FILES, FORM, {"content-type": TYPE}).run(HttpApp(services, SETTINGS))).json


async def test_the_head_of_a_content_has_no_content(tmp_path: Path, serve: Serve) -> None:
    async with with_batches(tmp_path) as (_, services):
        path = f"{FILES}/{(await upload(services))['id']}/content"
        served = await serve(settings=SETTINGS, services=services)
        stream = await served.connect()
        await stream.send_all(f"HEAD {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        head = b""
        while not head.endswith(b"\r\n\r\n"):
            head += await stream.receive_some()
        assert head.startswith(b"HTTP/1.1 200 ")
        await stream.send_all(f"GET {FILES} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        assert (await http1_answer(stream))[0] == 200
        client = Http2Client(await served.connect())
        assert await client.answer(await client.start("HEAD", path)) == (200, b"")
        assert await client.answer(await client.start("GET", path)) == (200, CONTENT)
        answer = await Exchange("HEAD", path).run(HttpApp(services, SETTINGS))
        assert (answer.status, answer.body, answer.complete) == (200, b"", True)


async def test_a_file_that_goes_while_it_is_sent_is_cut_off(tmp_path: Path) -> None:
    async with with_batches(tmp_path) as (server, services):
        made = await upload(services)
        file = await server.batches.find_file("anonymous", made["id"])
        sent: list[int] = []

        class Removing(Exchange):
            async def _send(self, event: Any) -> None:
                await super()._send(event)
                sent.append(len(event.get("body", b"")))
                if sum(sent):
                    (tmp_path / "payloads" / file.payload).unlink(missing_ok=True)

        answer = await Removing("GET", f"{FILES}/{made['id']}/content").run(HttpApp(services, SETTINGS))
        assert (answer.status, answer.complete) == (200, False)
        assert 0 < len(answer.body) < len(CONTENT)
