"""Events of the HTTP/2 connection: h2's, as far as servers need them, in fewer bytes and objects.

The event of the last frame says that the client has ended the stream.
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
    """The stream has ended at once: the client has reset it, or it was reset for an error of the client."""

    stream_id: int


class WindowUpdated(msgspec.Struct, eq=False):
    """The client lets more be sent. One for all such frames of a read, and the last: their streams, of which 0 is the
    connection."""

    stream_ids: list[int]


class RemoteSettingsChanged(msgspec.Struct, eq=False):
    """The client's settings have changed; they are in force and acknowledged."""


class PingReceived(msgspec.Struct, eq=False):
    """PING was received; it is answered already."""


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
