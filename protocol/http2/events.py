"""What has come from the client: h2's events as far as a gRPC server has a use for them, in fewer bytes and objects.

That a client has ended a stream is said by the event that brings its last frame.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

from protocol.messages import Buffer


class RequestReceived(msgspec.Struct, eq=False):
    """A stream is opened. `request` is what the owner's `interpret` makes of its headers. `data` is all of its data
    where that came at once behind the headers, and `flow_controlled_length` what to acknowledge for it."""

    stream_id: int
    request: Any
    stream_ended: bool
    data: Buffer | None = None
    flow_controlled_length: int = 0


class DataReceived(msgspec.Struct, eq=False):
    """`flow_controlled_length` is what to acknowledge for it: with padding it is more than the data. A large frame
    comes in pieces."""

    stream_id: int
    data: Buffer
    flow_controlled_length: int
    stream_ended: bool


class TrailersReceived(msgspec.Struct, eq=False):
    """Headers at the end of a request; gRPC has none that mean anything."""

    stream_id: int


class StreamReset(msgspec.Struct, eq=False):
    """The stream has ended at once: the client has reset it, or has made an error for which it was reset."""

    stream_id: int


class WindowUpdated(msgspec.Struct, eq=False):
    """The client lets more be sent. One for all such frames of a read, and the last: their streams, of which 0 is the
    connection."""

    stream_ids: list[int]


class RemoteSettingsChanged(msgspec.Struct, eq=False):
    """The client's settings, which are in force and acknowledged."""


class PingReceived(msgspec.Struct, eq=False):
    """It is answered."""


class PingAckReceived(msgspec.Struct, eq=False):
    ping_data: bytes


class IgnoredFrame(msgspec.Struct, eq=False):
    """A frame that means nothing to a server: an acknowledgement of settings, a priority, a GOAWAY (a client opens no
    more streams then, and those that are open finish), a kind that is not known."""

    kind: int


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
