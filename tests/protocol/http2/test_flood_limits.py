"""What a peer may send in a second that only makes work; one more ends its connection."""

from __future__ import annotations

import pytest
import trio
import trio.testing
from h2.errors import ErrorCodes

from protocol.http2.flood_limits import FloodError, FloodLimits
from protocol.http2.frames import GOAWAY, unpack_header
from protocol.http2.output import FrameOutput
from protocol.limits.request_memory import RequestMemory
from protocol.reactor.transport import wire_over
from tests.protocol.http2.reference import LIMITS, started


def limits_over(stream: trio.abc.Stream, refusals: list[str]) -> tuple[FloodLimits, FrameOutput]:
    out = FrameOutput(
        started(),
        wire_over(stream),
        refusals.append,
        RequestMemory(1 << 20),
        send_timeout=60,
        connection_window=LIMITS["connection_window"],
    )
    return FloodLimits(out, max_control_frames=3, max_stream_resets=2), out


@pytest.mark.parametrize(
    ("name", "method", "allowed"),
    [("max_control_frames", "count_control_frame", 3), ("max_stream_resets", "count_reset", 2)],
)
async def test_one_more_than_the_limit_is_answered_with_a_goaway(
    name: str, method: str, allowed: int, autojump_clock: trio.testing.MockClock
) -> None:
    """And it is counted. What comes a second later has room again, but not what has come at that time and is handled
    later, by a server that is busy."""
    ours, theirs = trio.testing.memory_stream_pair()
    refusals: list[str] = []
    floods, out = limits_over(ours, refusals)
    for _ in range(3):
        await trio.sleep(1)
        floods.received_at = trio.current_time()
        for _ in range(allowed):
            getattr(floods, method)()
    assert refusals == []
    await trio.sleep(1)
    with pytest.raises(FloodError, match="too many"):
        getattr(floods, method)()
    assert refusals == [name]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(out.run)
        await out.finish()
    said = await theirs.receive_some()
    _, size, kind, *_ = unpack_header(said)
    payload = said[9:]
    assert (kind, len(payload)) == (GOAWAY, size)
    assert payload[4:8] == ErrorCodes.ENHANCE_YOUR_CALM.to_bytes(4, "big")
    assert payload[8:].startswith(b"too many")
