"""gRPC's headers: what is no call, timeouts, trailers."""

from __future__ import annotations

import pytest
from grpclib.const import Status

from protocol.errors import InvalidArgument, Overloaded, QuotaExceeded, Restricted, ServerError, Unavailable
from protocol.grpc.call.headers import decode_timeout_seconds, error_trailers, refusal, trailers

TIMEOUTS = [
    (b"1H", 3600.0),
    (b"2M", 120.0),
    (b"3S", 3.0),
    (b"4m", 0.004),
    (b"5u", 0.000005),
    (b"6n", 0.000000006),
    (b"0S", 0.0),
    (b"99999999H", 99999999 * 3600.0),
]


@pytest.mark.parametrize(("value", "seconds"), TIMEOUTS)
def test_timeouts(value: bytes, seconds: float) -> None:
    assert decode_timeout_seconds(value) == pytest.approx(seconds)


@pytest.mark.parametrize(
    "value", [b"", b"S", b"1", b"1s", b"1.5S", b"-1S", b"+1S", b"123456789S", b"9" * 5000 + b"S", b"\xff", b"1 S"]
)
def test_what_is_no_timeout(value: bytes) -> None:
    with pytest.raises(InvalidArgument, match="grpc-timeout must be at most 8 digits and one of"):
        decode_timeout_seconds(value)


def test_trailers_carry_status_and_text() -> None:
    assert [*trailers(Status.OK, "")] == [(b"grpc-status", b"0")]
    assert trailers(Status.NOT_FOUND, "näh") == [(b"grpc-status", b"5"), (b"grpc-message", b"n%C3%A4h")]


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({b":method": b"GET", b"content-type": b"application/grpc"}, b"405"),
        ({b":method": b"POST", b"content-type": b"application/grpc-web"}, b"415"),
        ({b":method": b"POST", b"content-type": b"application/grpc+json"}, b"415"),
        ({b":method": b"POST"}, b"415"),
        ({b":method": b"POST", b"content-type": b"application/grpc"}, None),
        ({b":method": b"POST", b"content-type": b"application/grpc+proto ; q=1"}, None),
    ],
)
def test_what_is_no_call_gets_an_http_status(fields: dict[bytes, bytes], status: bytes | None) -> None:
    response = refusal(fields)
    assert (response and response[0]) == (None if status is None else (b":status", status))


@pytest.mark.parametrize(
    ("error", "may_pass"),
    [
        (Overloaded("full"), True),
        (Unavailable("not yet"), True),
        (Restricted("no"), False),
        (InvalidArgument("x"), False),
    ],
)
def test_what_may_pass_says_when_to_try_again(error: ServerError, may_pass: bool) -> None:
    assert ((b"grpc-retry-pushback-ms", b"1000") in error_trailers(error, "m")) == may_pass


def test_a_quota_that_is_used_up_says_what_is_left_and_when_there_is_more() -> None:
    error = QuotaExceeded("no more", retry_after=0.0203, fields=(("ratelimit", '"requests";r=0;t=1'),))
    assert error_trailers(error, "m") == [
        (b"grpc-status", b"8"),
        (b"grpc-message", b"no more"),
        (b"grpc-retry-pushback-ms", b"21"),
        (b"ratelimit", b'"requests";r=0;t=1'),
    ]
