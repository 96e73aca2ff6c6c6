"""The client's HTTP/2 against h2 as the server: calls, windows, trailers, pieces, and what goes wrong."""

from __future__ import annotations

from typing import Any

import h2.config
import h2.connection
import h2.events
import h2.settings
import hpack
import pytest

from protocol.messages import Buffer
from trioton.perf.wires.h2 import H2Client, H2Error, prefixed
from trioton.perf.wires.header_blocks import leaves_table, without_request_id

HEADERS = [(":method", "POST"), (":scheme", "http"), (":path", "/a/b"), (":authority", "x"), ("te", "trailers")]
HEAD = [(":status", "200"), ("content-type", "application/grpc")]


def _is_request(event: Any) -> bool:
    return isinstance(event, h2.events.RequestReceived)


class Told:
    """Implements `Handler`."""

    def __init__(self) -> None:
        self.messages: list[tuple[int, bytes]] = []
        self.ends: dict[int, str] = {}

    def message(self, stream_id: int, data: Buffer) -> None:
        self.messages.append((stream_id, bytes(data)))

    def end(self, stream_id: int, error: str) -> None:
        assert stream_id not in self.ends, "told once"
        self.ends[stream_id] = error


class Pair:
    """A client, and h2 in place of the server; `sizes` of the pieces in which bytes go from one to the other."""

    def __init__(self, piece: int = 1 << 20) -> None:
        self.told = Told()
        self.client = H2Client(HEADERS, self.told)
        self.server = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False, header_encoding="utf-8"))
        self.piece = piece
        self.events: list[Any] = []
        self.client.start()
        self.server.initiate_connection()
        self.exchange()

    def exchange(self) -> list[Any]:
        """Until neither has anything to say. The server's new events."""
        found: list[Any] = []
        while True:
            out = b"".join(bytes(part) for part in self.client.take_output())
            if out:
                found += self.server.receive_data(out)
            back = self.server.data_to_send()
            for start in range(0, len(back), self.piece):
                self.client.receive(back[start : start + self.piece])
            if not out and not back:
                self.events += found
                return found

    def answer(self, stream_id: int, *messages: bytes, status: str = "0", text: str = "") -> None:
        self.server.send_headers(stream_id, HEAD)
        for message in messages:
            self.server.send_data(stream_id, prefixed(message))
        trailers = [("grpc-status", status), *([("grpc-message", text)] if text else [])]
        self.server.send_headers(stream_id, trailers, end_stream=True)
        self.exchange()


@pytest.mark.parametrize("piece", [1, 3, 10, 1 << 20])
def test_calls_are_answered(piece: int) -> None:
    pair = Pair(piece)
    streams = [pair.client.open(prefixed(b"question")) for _ in range(5)]
    events = pair.exchange()
    assert [event.stream_id for event in events if isinstance(event, h2.events.RequestReceived)] == streams
    received = [event for event in events if _is_request(event)]
    assert all(list(map(tuple, event.headers)) == HEADERS for event in received), "by the table as without it"
    for stream in streams:
        pair.answer(stream, b"answer")
    assert pair.told.messages == [(stream, b"answer") for stream in streams]
    assert pair.told.ends == dict.fromkeys(streams, "")
    assert not pair.client.streams


@pytest.mark.parametrize("size", [0, 70_000, 3_000_000])
def test_a_large_message_waits_for_the_windows(size: int) -> None:
    pair = Pair()
    message = prefixed(bytes(size))
    stream = pair.client.open(message)
    received = b""
    for _ in range(1000):
        data = [event for event in pair.exchange() if isinstance(event, h2.events.DataReceived)]
        if not data:
            break
        for event in data:
            received += event.data
            pair.server.acknowledge_received_data(event.flow_controlled_length, stream)
    assert received == message
    assert any(isinstance(event, h2.events.StreamEnded) for event in pair.events)


def test_large_answers_and_several_messages_are_put_together() -> None:
    pair = Pair(piece=1000)
    stream = pair.client.open(prefixed(b"q"))
    pair.exchange()
    pair.server.send_headers(stream, HEAD)
    first, second = bytes(30_000), b"x" * 20_000
    data = prefixed(first) + prefixed(second) + prefixed(b"")
    for start in range(0, len(data), 16_000):
        pair.server.send_data(stream, data[start : start + 16_000])
    pair.server.send_headers(stream, [("grpc-status", "0")], end_stream=True)
    pair.exchange()
    assert [message for _, message in pair.told.messages] == [first, second, b""]
    assert pair.told.ends == {stream: ""}


def test_errors_have_their_names_and_texts() -> None:
    pair = Pair()
    stream = pair.client.open(prefixed(b"q"))
    pair.exchange()
    pair.answer(stream, status="5", text="no model %27x%27")
    assert pair.told.ends == {stream: "NOT_FOUND: no model 'x'"}


def test_an_answer_of_trailers_only() -> None:
    pair = Pair()
    stream = pair.client.open(prefixed(b"q"))
    pair.exchange()
    pair.server.send_headers(stream, [*HEAD, ("grpc-status", "14"), ("grpc-message", "full")], end_stream=True)
    pair.exchange()
    assert pair.told.ends == {stream: "UNAVAILABLE: full"}


def test_a_stream_takes_several_messages() -> None:
    pair = Pair()
    stream = pair.client.open(ends=False)
    for _ in range(3):
        pair.client.send(stream, prefixed(b"one"))
    data = b"".join(event.data for event in pair.exchange() if isinstance(event, h2.events.DataReceived))
    assert data == prefixed(b"one") * 3
    assert not any(isinstance(event, h2.events.StreamEnded) for event in pair.events)


def test_a_call_that_is_given_up_is_reset() -> None:
    pair = Pair()
    stream = pair.client.open(prefixed(b"q"))
    pair.exchange()
    pair.client.cancel(stream)
    assert [event.error_code for event in pair.exchange() if isinstance(event, h2.events.StreamReset)] == [8]
    assert pair.told.ends == {}


def test_a_reset_and_a_goaway_end_calls() -> None:
    pair = Pair()
    first, second, third = (pair.client.open(prefixed(b"q")) for _ in range(3))
    pair.exchange()
    pair.server.reset_stream(first, error_code=2)
    pair.exchange()
    assert "reset" in pair.told.ends[first]
    pair.server.close_connection(last_stream_id=second, additional_data=b"bye")
    pair.exchange()
    assert pair.client.is_closing
    assert "bye" in pair.told.ends[third]
    pair.client.fail_all("lost")
    assert pair.told.ends[second] == "lost"


def test_settings_are_followed() -> None:
    pair = Pair()
    pair.server.update_settings(
        {
            h2.settings.SettingCodes.MAX_CONCURRENT_STREAMS: 7,
            h2.settings.SettingCodes.HEADER_TABLE_SIZE: 0,
            h2.settings.SettingCodes.MAX_FRAME_SIZE: 20_000,
            h2.settings.SettingCodes.INITIAL_WINDOW_SIZE: 10,
        }
    )
    pair.exchange()
    assert pair.client.max_streams == 7
    stream = pair.client.open(prefixed(bytes(100)))
    events = pair.exchange()
    assert [list(map(tuple, event.headers)) for event in events if _is_request(event)] == [HEADERS]
    assert sum(len(event.data) for event in events if isinstance(event, h2.events.DataReceived)) == 10
    assert stream in range(1, 3, 2)


def test_what_is_no_http2() -> None:
    client = H2Client(HEADERS, Told())
    with pytest.raises(H2Error, match="larger than allowed"):
        client.receive(b"HTTP/1.1 400 Bad Request\r\n\r\n")


@pytest.mark.parametrize("kind", [0, 1])
@pytest.mark.parametrize("payload", [b"", b"\x05abc"])
def test_padding_that_is_no_padding(kind: int, payload: bytes) -> None:
    client = H2Client(HEADERS, Told())
    stream = client.open(prefixed(b"q"))
    with pytest.raises(H2Error, match="padd"):
        client.receive(len(payload).to_bytes(3, "big") + bytes((kind, 0x0C)) + stream.to_bytes(4, "big") + payload)


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ([(":status", "200")], True),
        ([("x-request-id", "abc")], False),
    ],
)
def test_blocks_that_leave_the_table_are_known(headers: list[tuple[str, str]], expected: bool) -> None:
    assert leaves_table(hpack.Encoder().encode(headers)) == expected


def test_a_literal_without_indexing_leaves_the_table() -> None:
    assert leaves_table(b"\x88\x00\x0cx-request-id\x03abc")
    assert leaves_table(b"\x10\x01a\x01b")
    assert not leaves_table(b"\x00\x0cx-request-id\x7f")
    assert not leaves_table(b"\x00\x0cx-req")
    assert not leaves_table(b"\x3f\xe1\x1f")


def test_an_id_at_the_end_of_a_block_is_taken_off() -> None:
    whole = b"\xbe\x00\x0cx-request-id\x03abc"
    assert without_request_id(whole) == b"\xbe"
    for other in (b"\xbe", whole + b"\x88", whole[:-1], whole[:-4], b""):
        assert without_request_id(other) == other


def test_answers_that_differ_in_their_ids_are_decoded_once() -> None:
    pair = Pair()
    decoded: list[bytes] = []
    decode = pair.client._decoder.decode

    def counted(block: bytes) -> Any:
        decoded.append(block)
        return decode(block)

    pair.client._decoder.decode = counted
    for number in range(20):
        stream = pair.client.open(prefixed(b"q"))
        pair.exchange()
        pair.server.send_headers(stream, HEAD)
        pair.server.send_data(stream, prefixed(b"a"))
        block = b"\x10\x0bgrpc-status\x010" + b"\x00\x0cx-request-id\x04id%02d" % number
        pair.client.receive(pair.server.data_to_send())
        pair.client.receive(len(block).to_bytes(3, "big") + b"\x01\x05" + stream.to_bytes(4, "big") + block)
        assert pair.told.ends[stream] == ""
    assert len(decoded) <= 5
