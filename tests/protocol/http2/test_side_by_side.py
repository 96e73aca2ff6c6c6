"""Our connection beside h2's: the same bytes come, the same is done, and both say the same.

Where they differ on purpose the comparison ends, or leaves it out: each place says why.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from h2.errors import ErrorCodes
from h2.exceptions import ProtocolError, StreamClosedError
from hpack.hpack import Encoder
from hyperframe.frame import Frame, GoAwayFrame, PingFrame, RstStreamFrame, SettingsFrame
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.grpc.call.headers import RESPONSE_HEADERS
from protocol.http2 import frames
from protocol.http2.frames import PREFACE
from tests.protocol.grpc.client import REQUEST_HEADERS
from tests.protocol.http2.reference import (
    ours_in_words,
    parsed,
    started,
    started_reference,
    theirs_in_words,
)

pytestmark = pytest.mark.slow

EXAMPLES = int(os.environ.get("TRIOTON_FUZZ_EXAMPLES", "200"))
RECORDED = sorted((Path(__file__).parent / "recorded").glob("*.bin"))
STREAMS = st.sampled_from([1, 3, 5, 7])


class Pair:
    """Both connections. `differs` when they have parted on purpose."""

    def __init__(self) -> None:
        self.ours, self.theirs = started(), started_reference()
        self.opened: set[int] = set()  # streams; an owner answers no others
        self.differs = False
        self.has_failed = False
        self.receive(PREFACE)

    def receive(self, data: bytes) -> None:
        our_error, our_words = _tried(lambda: ours_in_words(self.ours.receive_data(data)))
        their_error, their_words = _tried(lambda: theirs_in_words(self.theirs.receive_data(data)))
        if our_error is not None and _differs_on_purpose(data, our_error):
            self.differs = True
            return
        if our_error is None and "invalid padding" in str(their_error):  # padding around nothing is allowed
            self.differs = True
            return
        if our_error is None and their_error is not None and _is_forgiven(data, their_error, our_words):
            self.differs = True
            return
        assert (our_error is None) == (their_error is None), (our_error, their_error)
        if our_error is None:
            assert our_words == their_words
            self.opened.update(word[1] for word in our_words if word[0] == "request")
        self._compare_what_was_sent()
        self.has_failed = our_error is not None

    def _compare_what_was_sent(self) -> None:
        ours, theirs = parsed(b"".join(self.ours.data_to_send())), parsed(self.theirs.data_to_send())
        kept = PingFrame, SettingsFrame
        assert _told(ours, kept) == _told(theirs, kept)
        # Whether a stream whose headers are broken is the last that was there is a matter of taste.
        assert _goodbyes(ours) == _goodbyes(theirs)
        # h2 answers each frame that comes late for a stream with one more RST_STREAM; we say it once.
        assert _told(ours, (RstStreamFrame,)) <= _told(theirs, (RstStreamFrame,))

    def answer(self, stream: int, *, end: bool) -> None:
        our_error, _ = _tried(lambda: self.ours.send_headers(stream, RESPONSE_HEADERS, end_stream=end))
        their_error, _ = _tried(lambda: self.theirs.send_headers(stream, RESPONSE_HEADERS, end_stream=end))
        if (our_error is None) != (their_error is None):  # an owner never sends what h2 would refuse here
            self.differs = True
            return
        assert _kinds(b"".join(self.ours.data_to_send())) == _kinds(self.theirs.data_to_send())

    def reset(self, stream: int) -> None:
        our_error, _ = _tried(lambda: self.ours.reset_stream(stream, ErrorCodes.CANCEL))
        their_error, _ = _tried(lambda: self.theirs.reset_stream(stream, ErrorCodes.CANCEL))
        ours, theirs = b"".join(self.ours.data_to_send()), self.theirs.data_to_send()
        if our_error is None:
            assert their_error is None
            assert ours == theirs


def _differs_on_purpose(data: bytes, error: Exception) -> bool:
    text = str(error)
    kind = data[3] if len(data) > 3 else None
    return (
        # A stream that was never opened cannot be reset (RFC 9113, 6.4); h2 forgives it.
        (kind == frames.RST_STREAM and "is idle" in text)
        # Data behind the end of a stream is an error of the connection (5.1); h2 resets the stream once more. For
        # headers it is one in both, and only the code tells that h2 remembers which streams were passed over.
        or (kind in (frames.DATA, frames.HEADERS) and isinstance(error, StreamClosedError))
        # Of padding that leaves no room for the rest we blame the padding.
        or "padding" in text
        # The code of an acknowledgement with a body is FRAME_SIZE_ERROR (6.5).
        or (kind == frames.SETTINGS and "acknowledged with" in text)
        # h2 waits for the end of a header block that nobody may send, and looks for the stream of one without a start.
        or kind in (frames.PUSH_PROMISE, frames.CONTINUATION)
        # A frame that is broken, and comes where none may: h2 sees the one first, we the other.
        or "during header block" in text
    )


def _is_forgiven(data: bytes, error: Exception, words: Sequence[Any]) -> bool:
    """Malformed headers, and a stream's window opened by nothing, are errors of their stream (RFC 9113, 8.1.1 and 6.9);
    h2 ends the connection. Space around a value means nothing."""
    reset = [("reset", int.from_bytes(data[5:9], "big") & 0x7FFFFFFF)]
    is_request = data[3] in (frames.HEADERS, frames.CONTINUATION) and words == reset
    is_window = data[3] == frames.WINDOW_UPDATE and words in (reset, [])
    return is_request or is_window or "whitespace" in str(error)


def _tried(act: Any) -> tuple[Exception | None, Any]:
    try:
        return None, act()
    except ProtocolError as error:
        return error, None


def _told(sent: Sequence[Frame], kinds: tuple[type[Frame], ...]) -> set[bytes]:
    return {frame.serialize() for frame in sent if isinstance(frame, kinds)}


def _goodbyes(sent: Sequence[Frame]) -> list[int]:
    return [frame.error_code for frame in sent if isinstance(frame, GoAwayFrame)]


def _kinds(data: bytes) -> list[Any]:
    return [(type(frame), frame.stream_id, set(frame.flags)) for frame in parsed(data)]


def _block(*more: tuple[str, str]) -> bytes:
    return bytes(Encoder().encode([*REQUEST_HEADERS.items(), *more]))


BAD_HEADERS = [
    ("Upper", "x"),
    (":late", "x"),
    ("connection", "close"),
    ("te", "gzip"),
    ("", "x"),
    ("a b", "x"),
    ("x", "a\nb"),
    ("x", " a"),
]
BLOCKS = st.one_of(
    st.sampled_from([_block(), _block(("grpc-timeout", "1m")), _block(("a", "b"), ("a", "c"))]),
    st.sampled_from([_block(bad) for bad in BAD_HEADERS]),
    st.sampled_from([bytes(Encoder().encode([("a", "b")])), b"\xbe\xbe", b"\xbe", b"", b"\x3f\xe1\x7f", b"\x20"]),
    st.binary(max_size=10),
)


WINDOWS = st.sampled_from([0, 1, 65536, 2**31 - 1]).map(lambda size: struct.pack(">I", size))
SETTING = st.builds(
    lambda code, value: struct.pack(">HI", code, value),
    st.integers(0, 9),
    st.sampled_from([0, 1, 2, 4096, 16384, 70000, 2**31 - 1, 2**31]),
)
BLOB = st.binary(max_size=40)
# Of each kind: bodies that mean something, and the flags that they may have.
KINDS: dict[int, tuple[st.SearchStrategy[bytes], list[int]]] = {
    frames.DATA: (BLOB, [0, frames.END_STREAM]),
    frames.HEADERS: (BLOCKS, [frames.END_HEADERS, frames.END_HEADERS | frames.END_STREAM, 0]),
    frames.PRIORITY: (st.sampled_from([b"\0\0\0\x09\1", b"\0\0\0\1\1", b"\0"]), [0]),
    frames.RST_STREAM: (WINDOWS, [0]),
    frames.SETTINGS: (SETTING, [0]),
    frames.PING: (st.binary(min_size=8, max_size=8), [0, frames.ACK]),
    frames.GOAWAY: (st.binary(min_size=8, max_size=12), [0]),
    frames.WINDOW_UPDATE: (WINDOWS, [0]),
    frames.CONTINUATION: (BLOCKS, [0, frames.END_HEADERS]),
}


@st.composite
def one_frame(draw: st.DrawFn) -> bytes:
    """A frame: mostly one that makes sense, sometimes padded, now and then of any kind with anything."""
    of_connection = (frames.SETTINGS, frames.PING, frames.GOAWAY)
    kind = draw(st.sampled_from([*KINDS, frames.HEADERS, frames.DATA, frames.PUSH_PROMISE, 11]))
    bodies, flag_sets = KINDS.get(kind, (BLOB, [0]))
    body, flags = draw(bodies), draw(st.sampled_from(flag_sets))
    if kind == frames.DATA and draw(st.integers(0, 3)) == 0:
        body += bytes(draw(st.integers(8000, 9000)))  # more than is held until it is whole
    stream = 0 if kind in of_connection else draw(STREAMS)
    match draw(st.integers(0, 19)):
        case 0:
            stream = draw(st.integers(0, 9))
        case 1:
            body = draw(BLOB)
        case 2:
            flags = draw(st.integers(0, 255))
        case 3 if kind in (frames.DATA, frames.HEADERS):
            padding = draw(st.integers(0, 9))
            body, flags = bytes([padding]) + body + bytes(padding), flags | frames.IS_PADDED
        case 4 if kind == frames.HEADERS:
            body, flags = b"\0\0\0\x09\1" + body, flags | frames.HAS_PRIORITY
    return frames.frame(kind, flags, stream, body)


@st.composite
def action(draw: st.DrawFn) -> tuple[str, int]:
    return draw(st.sampled_from(["answer", "end", "reset"])), draw(STREAMS)


STEPS = st.lists(st.one_of(one_frame(), one_frame(), one_frame(), action()), max_size=40)


@given(STEPS)
@settings(max_examples=EXAMPLES, deadline=None)
def test_any_frames_mean_the_same(steps: list[Any]) -> None:
    pair = Pair()
    for step in steps:
        match step:
            case bytes():
                pair.receive(step)
            case (_, stream) if stream not in pair.opened:
                pass
            case ("reset", stream):
                pair.reset(stream)
            case (how, stream):
                pair.answer(stream, end=how == "end")
        if pair.differs or pair.has_failed:
            return


@given(st.lists(one_frame(), max_size=20), st.lists(st.sampled_from([1, 2, 8, 9, 10, 60, 5000]), min_size=1))
@settings(max_examples=EXAMPLES, deadline=None)
def test_pieces_mean_what_the_whole_means(sent: list[bytes], sizes: list[int]) -> None:
    """However the bytes come."""
    data = PREFACE + b"".join(sent)
    in_pieces, at_once = started(), started()
    words: list[Any] = []
    error = None
    position = number = 0
    while position < len(data) and error is None:
        piece = data[position : position + sizes[number % len(sizes)]]
        error, more = _tried(lambda piece=piece: ours_in_words(in_pieces.receive_data(piece)))
        words += more or []
        position += len(piece)
        number += 1
    other_error, other_words = _tried(lambda: ours_in_words(at_once.receive_data(data)))
    assert str(error) == str(other_error)
    assert b"".join(in_pieces.data_to_send()) == b"".join(at_once.data_to_send())
    if error is None:
        assert _apart(words) == _apart(other_words)


def _apart(words: Sequence[Any]) -> tuple[list[Any], list[int]]:
    """What is said of windows is said once for each read, so it is kept apart from the rest."""
    windows = [stream for word in words if word[0] == "windows" for stream in word[1]]
    return _joined([word for word in words if word[0] != "windows"]), windows


@pytest.mark.parametrize("path", RECORDED, ids=[path.stem for path in RECORDED])
@pytest.mark.parametrize("piece", [1, 17, 1000, 65536])
def test_what_real_clients_send_means_the_same(path: Path, piece: int) -> None:
    data = path.read_bytes()
    ours, theirs = started(), started_reference()
    our_words: list[Any] = []
    their_words: list[Any] = []
    for start in range(0, len(data), piece):
        our_words += ours_in_words(ours.receive_data(data[start : start + piece]))
        their_words += theirs_in_words(theirs.receive_data(data[start : start + piece]))
    assert _joined(our_words) == _joined(their_words)
    assert any(word[0] == "request" for word in our_words)


def _joined(words: list[Any]) -> list[Any]:
    """With the pieces of a stream's data put together."""
    joined: list[Any] = []
    for word in words:
        if word[0] == "data" and joined and joined[-1][:2] == word[:2]:
            _, stream, data, size, _ = joined.pop()
            word = ("data", stream, data + word[2], size + word[3], word[4])
        joined.append(word)
    return joined
