"""A little of each attack, and that what looks for failures finds them."""

from __future__ import annotations

import os
import random
import socket
import threading
from contextlib import closing

import pytest

from protocol.http.app import HttpApp
from protocol.http.settings import HttpSettings, OpenAISettings
from protocol.text.model import TextModel
from tests.attack import codecs, fuzz, load, operations, soak, texts
from tests.attack.faults import FAULTS
from tests.attack.sockets import Broken, attacks, check_http1, check_http2
from tests.attack.sums import make_sums
from tests.attack.text_inputs import BODIES
from tests.protocol.http.asgi import call
from tests.protocol.http.fake_services import make_services
from tests.protocol.http.openai.handlers.scripted_core import TEMPLATE, ScriptedCore
from tests.protocol.http.openai.words import word_tokenizer

INPUTS = int(os.environ.get("TRIOTON_FUZZ_EXAMPLES", "200"))


@pytest.mark.parametrize("name", codecs.codecs())
def test_codecs_take_or_refuse_whatever_comes(name: str) -> None:
    result = fuzz.fuzz_codecs(INPUTS, seed=7, names=[name])
    assert not result.failures, result.failures[0]
    assert result.inputs[name] == INPUTS


def test_a_codec_that_raises_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(chance: random.Random) -> None:
        raise KeyError(chance.random())

    monkeypatch.setattr(fuzz, "codecs", lambda: {"fails": fails})
    assert len(fuzz.fuzz_codecs(3, seed=1).failures) == 3


@pytest.mark.e2e
def test_a_server_survives_connections_that_send_what_they_like() -> None:
    result = fuzz.fuzz_sockets(INPUTS, seed=7)
    assert not result.failures, result.failures[0]
    assert result.is_clean, result.log
    assert set(result.inputs) == set(attacks())


@pytest.mark.e2e
def test_the_openai_interface_survives_bodies_and_bombs() -> None:
    result = texts.attack(INPUTS // 10, seed=7, hostile=INPUTS // 2)
    assert not result.failures, result.failures[0]
    assert result.is_clean, result.log
    assert {path for path, _ in result.statuses} >= set(BODIES)


@pytest.mark.parametrize("strict", [False, True])
async def test_no_hostile_value_is_a_defect_of_the_edge(strict: bool) -> None:
    """Nor is one answered by all of itself."""
    text = TextModel("m", 1, tokenizer=word_tokenizer(), chat_template=TEMPLATE, tool_parser="hermes")
    app = HttpApp(make_services(ScriptedCore(texts=(text,))), HttpSettings(openai=OpenAISettings(strict=strict)))
    for each in texts.sampled(INPUTS, seed=7):
        answer = await call(app, "POST", each.path, each.body("m"))
        assert answer.status < 500, each.name
        assert answer.status == 200 or len(answer.body) < 1 << 18, each.name


@pytest.mark.parametrize(
    ("status", "data"),
    [
        (500, b'{"error": {"message": "no"}}'),
        (400, b'{"detail": "no"}'),
        (200, b'data: {"choices": []}\n\n'),
        (200, b'data: {"error": {"message": "no", "code": "internal_error"}}\n\n'),
    ],
    ids=["500", "form", "end", "defect"],
)
def test_an_answer_that_must_not_be_is_a_failure(status: int, data: bytes) -> None:
    with pytest.raises(texts.Broken):
        texts.check("/v1/completions", status, "text/event-stream" if data[:4] == b"data" else "", data)


def test_a_500_is_a_failure() -> None:
    check_http1(b"HTTP/1.1 200 OK\r\n\r\nHTTP/1.1 400 Bad Request\r\n\r\n")
    with pytest.raises(Broken):
        check_http1(b"HTTP/1.1 200 OK\r\n\r\nHTTP/1.1 500 Internal Server Error\r\n\r\n")
    check_http2(b"\0\0\1\1\4\0\0\0\1\x8c", is_grpc=False)  # :status 400
    with pytest.raises(Broken):
        check_http2(b"\0\0\1\1\4\0\0\0\1\x8e", is_grpc=False)  # :status 500
    with pytest.raises(Broken):
        check_http2(b"\0\0\x10\1\5\0\0\0\1\x88\0\x0bgrpc-status\x0213", is_grpc=True)
    with pytest.raises(Broken):
        check_http2(b"\0\0\x08\7\0\0\0\0\0\0\0\0\0\0\0\0\2", is_grpc=False)  # GOAWAY, INTERNAL_ERROR


@pytest.mark.e2e
def test_under_load_and_faults_nothing_is_lost_or_wrong() -> None:
    """Every kind of fault is done at least once in that time, or the seed is changed."""
    result = soak.soak(requests=3_000, seconds=60, seed=7, pause=0.0)
    assert result.is_clean, result.broken[:3]
    assert result.answers["right"] > 1_000
    assert sum(result.faults.values()) > len(FAULTS)


@pytest.mark.e2e
def test_models_come_and_go_under_requests_and_nothing_is_wrong() -> None:
    result = operations.run(60, threads=4, seed=7, operations=40)
    assert not result.broken, result.broken[:3]
    assert result.is_clean, result.log
    assert result.answers["sum 200"] > 0
    assert {name.partition(" ")[0] for name in result.answers} >= {"load", "change", "unload", "look", "trace", "log"}


@pytest.mark.parametrize(("status", "text"), [(500, b""), (400, b"{}"), (200, b"{}" + b"\0" * 128)])
def test_an_operation_that_must_not_end_so_is_a_failure(
    monkeypatch: pytest.MonkeyPatch, status: int, text: bytes
) -> None:
    caller = operations.Caller("nowhere:1", random.Random(1), operations.Result())
    answer = status, text, {"inference-header-content-length": "2"}
    monkeypatch.setattr(operations.Caller, "_exchange", lambda *_: answer)
    with pytest.raises(operations.Broken):
        caller.sum()


def test_an_answer_of_another_request_is_wrong() -> None:
    connection, tally = _answered(b"\0" * 128)
    with closing(connection):
        connection.receive(tally)
    assert tally.wrong
    assert not tally.right


def test_a_connection_that_closes_before_the_answer_has_lost_a_request() -> None:
    connection, tally = _answered(None)
    with closing(connection):
        assert not connection.receive(tally)
    assert tally.lost == 1


def _answered(body: bytes | None) -> tuple[load.Http1Connection, load.Tally]:
    """A connection that has sent a request, and what a server of ours has answered; nothing where there is no body."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        with listener, listener.accept()[0] as accepted:
            accepted.recv(1 << 16)
            if body is not None:
                accepted.sendall(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))

    thread = threading.Thread(target=serve)
    thread.start()
    sums = make_sums("sum", 1)
    connection = load.Http1Connection(listener.getsockname(), "sum", sums, random.Random(1))
    connection.send()
    thread.join()
    return connection, load.Tally()
