"""What has come from the client: h2's events as far as a gRPC server has a use for them, in fewer bytes and objects.

That a client has ended a stream is said by the event that brings its last frame.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from protocol.messages import Buffer


class RequestReceived:
    """A stream is opened. `request` is what the owner's `interpret` makes of its headers. `data` is all of its data
    where that came at once behind the headers, and `flow_controlled_length` what to acknowledge for it."""

    __slots__ = ("data", "flow_controlled_length", "request", "stream_ended", "stream_id")

    def __init__(self, stream_id: int, request: Any, stream_ended: bool) -> None:
        self.stream_id = stream_id
        self.request = request
        self.stream_ended = stream_ended
        self.data: Buffer | None = None
        self.flow_controlled_length = 0


class DataReceived:
    """`flow_controlled_length` is what to acknowledge for it: with padding it is more than the data. A large frame
    comes in pieces."""

    __slots__ = ("data", "flow_controlled_length", "stream_ended", "stream_id")

    def __init__(self, stream_id: int, data: Buffer, flow_controlled_length: int, stream_ended: bool) -> None:
        self.stream_id = stream_id
        self.data = data
        self.flow_controlled_length = flow_controlled_length
        self.stream_ended = stream_ended


class TrailersReceived:
    """Headers at the end of a request; gRPC has none that mean anything."""

    __slots__ = ("stream_id",)

    def __init__(self, stream_id: int) -> None:
        self.stream_id = stream_id


class StreamReset:
    """The stream has ended at once: the client has reset it, or has made an error for which it was reset."""

    __slots__ = ("stream_id",)

    def __init__(self, stream_id: int) -> None:
        self.stream_id = stream_id


class WindowUpdated:
    """The client lets more be sent. One for all such frames of a read, and the last: their streams, of which 0 is the
    connection."""

    __slots__ = ("stream_ids",)

    def __init__(self, stream_ids: list[int]) -> None:
        self.stream_ids = stream_ids


class RemoteSettingsChanged:
    """The client's settings, which are in force and acknowledged."""

    __slots__ = ()


class PingReceived:
    """It is answered."""

    __slots__ = ()


class PingAckReceived:
    __slots__ = ("ping_data",)

    def __init__(self, ping_data: bytes) -> None:
        self.ping_data = ping_data


class IgnoredFrame:
    """A frame that means nothing to a server: an acknowledgement of settings, a priority, a GOAWAY (a client opens no
    more streams then, and those that are open finish), a kind that is not known."""

    __slots__ = ("kind",)

    def __init__(self, kind: int) -> None:
        self.kind = kind


Event: TypeAlias = (
    RequestReceived
    | DataReceived
    | TrailersReceived
    | StreamReset
    | WindowUpdated
    | RemoteSettingsChanged
    | PingReceived
    | PingAckReceived
    | IgnoredFrame
)
