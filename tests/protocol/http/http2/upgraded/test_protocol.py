"""The tests of HTTP/2 once more, on connections that began in HTTP/1: hypercorn serves those."""

from __future__ import annotations

import h2.connection
import pytest

from tests.protocol.http import test_http2
from tests.protocol.http.conftest import Served
from tests.protocol.http.http2_client import Http2Client

test_requests_of_every_kind = test_http2.test_requests_of_every_kind
test_a_tensor_larger_than_every_window = test_http2.test_a_tensor_larger_than_every_window
test_an_early_refusal_ends_only_its_stream = test_http2.test_an_early_refusal_ends_only_its_stream
test_a_stream_reset_cancels_its_inference = test_http2.test_a_stream_reset_cancels_its_inference
test_rapid_reset_ends_the_connection = test_http2.test_rapid_reset_ends_the_connection
test_a_rapid_reset_on_a_busy_machine = test_http2.test_a_rapid_reset_on_a_busy_machine
test_priorities_are_not_remembered = test_http2.test_priorities_are_not_remembered
test_continuation_without_end_ends_the_connection = test_http2.test_continuation_without_end_ends_the_connection
test_headers_that_are_too_large_are_answered = test_http2.test_headers_that_are_too_large_are_answered
test_a_header_bomb_ends_the_connection = test_http2.test_a_header_bomb_ends_the_connection
test_more_settings_than_there_are_end_the_connection = test_http2.test_more_settings_than_there_are_end_the_connection
test_a_frame_is_refused_by_the_size_that_it_announces = test_http2.test_a_frame_is_refused_by_the_size_that_it_announces
test_a_client_that_takes_no_data_loses_its_stream = test_http2.test_a_client_that_takes_no_data_loses_its_stream
test_a_stream_of_events_waits_for_its_window = test_http2.test_a_stream_of_events_waits_for_its_window
test_windows_without_a_reason_end_the_connection = test_http2.test_windows_without_a_reason_end_the_connection
test_windows_that_open_as_data_is_read_are_no_flood = test_http2.test_windows_that_open_as_data_is_read_are_no_flood
test_strange_paths = test_http2.test_strange_paths
test_connect_is_no_method_here = test_http2.test_connect_is_no_method_here


async def upgraded(server: Served) -> Http2Client:
    """A connection whose first request asked for HTTP/2, and has its answer."""
    stream = await server.connect()
    client = Http2Client(stream)
    client.h2 = h2.connection.H2Connection(client.h2.config)
    settings = client.h2.initiate_upgrade_connection()
    assert settings is not None
    await stream.send_all(test_http2.upgrade(settings.decode()))
    head = b""
    while not head.endswith(b"\r\n\r\n"):
        head += await stream.receive_some(1)
    await client.flush()
    assert (await client.answer(1))[0] == 200
    return client


@pytest.fixture(autouse=True)
def begin_in_http1(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(test_http2, "connect", upgraded)
