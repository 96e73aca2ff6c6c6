"""Origin of a request: by what it is found in logs, as its edge knows it. Carried along by the inference request."""

from __future__ import annotations

from typing import Protocol

import msgspec


class RequestTags(msgspec.Struct, frozen=True):
    """What a log line says of the request that it belongs to; empty for what is not known.

    Attributes:
        request_id: as it comes back in `x-request-id`.
        trace_id: of the trace that its client, or the server, has begun: 32 hexadecimal digits.
        span_id: in that trace the server's own span, or else the client's: 16 digits.
        key: the name of the key that it came with.
    """

    request_id: str = ""
    trace_id: str = ""
    span_id: str = ""
    key: str = ""


class Origin(Protocol):
    """The call that a request came by."""

    def tags(self, own_id: str) -> RequestTags:
        """For a line of a request with this `id` of the protocol's own. Called only for lines that are written."""


class CallersOrigin(msgspec.Struct, eq=False):
    """That of a request which a model makes while it serves another one: it is found as that is, whatever `id` the
    model gives it. `own_id` is the other one's."""

    origin: Origin
    own_id: str

    def tags(self, own_id: str) -> RequestTags:
        """Implements `Origin`."""
        return self.origin.tags(self.own_id)
