"""Texts of records: errors, extras, tags and events come out as they went in, and nothing else does."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol import errors
from protocol.edge_link.errors import NotLinked
from protocol.edge_link.frames import BrokenFrame
from protocol.edge_link.texts import (
    ErrorText,
    LinkedOrigin,
    LinkedTrace,
    RequestExtras,
    ResponseExtras,
    TraceText,
    decode_error,
    decode_text,
    encode_error,
    encode_tags,
    encode_text,
    replay,
)
from protocol.errors import QuotaExceeded, ServerError, Unavailable
from protocol.log.access_record import AccessRecord
from protocol.origin import RequestTags

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
PARAMETERS = st.dictionaries(TEXT, st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | TEXT, max_size=4)
KINDS = [
    found
    for found in (*vars(errors).values(), NotLinked)
    if isinstance(found, type) and issubclass(found, ServerError) and found is not QuotaExceeded
]


@pytest.mark.parametrize("kind", KINDS)
@given(message=st.text(max_size=30), retry_after=st.none() | st.floats(0, 1e9))
def test_an_error_keeps_its_class_message_and_wait(
    kind: type[ServerError], message: str, retry_after: float | None
) -> None:
    error = kind(message)
    error.retry_after = retry_after
    found = decode_error(memoryview(encode_error(error)))
    assert (type(found), found.retry_after) == (kind, retry_after)
    assert found.message == message.encode("utf-8", "replace").decode()


def test_an_exceeded_quota_keeps_its_details() -> None:
    error = QuotaExceeded("too much", retry_after=2.5, limit="requests", fields=(("a", "b"), ("c", "d")))
    found = decode_error(memoryview(encode_error(error)))
    assert isinstance(found, QuotaExceeded)
    assert (found.message, found.retry_after, found.limit, found.fields) == (
        *("too much", 2.5, "requests"),
        (("a", "b"), ("c", "d")),
    )


def test_an_invalid_field_keeps_its_name() -> None:
    found = decode_error(memoryview(encode_error(errors.InvalidField("too much", "top_p"))))
    assert isinstance(found, errors.InvalidField)
    assert (found.message, found.param) == ("too much", "top_p")


def test_an_error_that_edges_do_not_know_is_that_which_it_is_derived_from() -> None:
    class Own(Unavailable):
        """Of some backend."""

    found = decode_error(memoryview(encode_error(Own("x"))))
    assert type(found) is Unavailable


def test_an_unknown_error_is_refused() -> None:
    with pytest.raises(BrokenFrame, match="its error is a 'dict'"):
        decode_error(memoryview(encode_text(ErrorText("dict", "x"))))


TRACES = st.none() | st.builds(TraceText, TEXT, TEXT, st.lists(st.tuples(TEXT, st.integers(0, 2**63))))


@given(TEXT, PARAMETERS, st.integers(0, 2**64 - 1) | TEXT, st.booleans(), st.booleans(), TRACES)
def test_extras_of_requests(
    own_id: str,
    parameters: dict[str, bool | int | float | str],
    sequence_id: int | str,
    start: bool,
    end: bool,
    trace: TraceText | None,
) -> None:
    extras = RequestExtras(own_id, parameters, sequence_id, start, end, trace is not None, trace)
    found = decode_text(memoryview(encode_text(extras)), RequestExtras)
    assert repr(found) == repr(extras)  # where numbers may be none


@given(st.binary(max_size=60))
def test_invalid_texts_are_refused(data: bytes) -> None:
    view = memoryview(data)
    for kind in (RequestExtras, ResponseExtras, ErrorText):
        try:
            decode_text(view, kind)
        except BrokenFrame:
            continue
    for read in (decode_error, lambda text: replay(text, AccessRecord())):
        try:
            read(view)
        except BrokenFrame:
            continue


def test_tags() -> None:
    tags = RequestTags("id", "trace", "", "key")
    assert LinkedOrigin(memoryview(encode_tags(tags))).tags("x") == tags
    assert LinkedOrigin(memoryview(b"")).tags("x") == RequestTags()


class Notes:
    """Implements `protocol.server_settings.Trace`, as far as it is replayed."""

    def __init__(self) -> None:
        self.notes: list[object] = []

    def stamp(self, activity: str, ns: int | None = None) -> None:
        self.notes.append((activity, ns))

    def identify(self, model_version: int, request_id: str) -> None:
        self.notes.append((model_version, request_id))

    def annotate(self, attributes: Mapping[str, str | int | float | Sequence[str]]) -> None:
        self.notes.append(dict(attributes))


def test_a_trace_is_told_what_was_recorded_in_order() -> None:
    own, notes = Notes(), Notes()
    trace = LinkedTrace()
    assert (trace.child("m"), trace.context()) == (None, None)
    trace.trace = own  # type: ignore[assignment]
    trace.identify(3, "id")
    trace.stamp("QUEUE_START", 7)
    trace.annotate({"a": 1, "b": [True and "x"], "c": math.pi})
    replay(memoryview(trace.take()), notes)  # type: ignore[arg-type]
    assert own.notes == notes.notes == [(3, "id"), ("QUEUE_START", 7), {"a": 1, "b": ["x"], "c": math.pi}]
    assert trace.take() == b""


def test_an_event_of_no_kind_is_refused() -> None:
    with pytest.raises(BrokenFrame, match="event"):
        replay(memoryview(msgspec.msgpack.encode([(9, "x", None)])), AccessRecord())
