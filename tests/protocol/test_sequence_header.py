"""The header that names a sequence: its forms, and what it says beside the parameter."""

from __future__ import annotations

import pytest

from protocol.errors import InvalidArgument
from protocol.messages import InferenceRequest
from protocol.sequence_header import put_sequence_id


@pytest.mark.parametrize(
    ("header", "own", "id"),
    [
        ("42", 0, 42),
        ("42", "", 42),
        ("0", 0, 0),
        ("18446744073709551615", 0, 2**64 - 1),
        ("tenant/7", 0, "tenant/7"),
        ('"42"', 0, "42"),
        ('"', 0, '"'),
        ("-1", 0, "-1"),
        ("42", 42, 42),
        ("42", "42", "42"),
        ('"42"', 42, 42),
        ("a", "a", "a"),
    ],
)
def test_the_id_of_a_sequence(header: str, own: int | str, id: int | str) -> None:
    request = InferenceRequest("m", [], sequence_id=own)
    put_sequence_id(request, header)
    assert request.sequence_id == id


@pytest.mark.parametrize(
    ("header", "own", "text"),
    [
        ("42", 43, "the request to model 'm' disagree: got '42' and '43'"),
        ("0", 43, "disagree"),
        ("a", "b", "disagree"),
        ("18446744073709551616", 0, "no number of 64 bits: got '18446744073709551616'"),
        ("9" * 10_000, 0, "no number of 64 bits: got '9{64}'"),
    ],
)
def test_what_it_cannot_say(header: str, own: int | str, text: str) -> None:
    with pytest.raises(InvalidArgument, match=text):
        put_sequence_id(InferenceRequest("m", [], sequence_id=own), header)
