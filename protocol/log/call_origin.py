"""Origin of the requests of one call: its id, once that is asked for, and what a log line says of it."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from protocol.log.request_ids import ClientIds, RequestIds, usual_id
from protocol.origin import RequestTags


class CallOrigin(msgspec.Struct, eq=False):
    """One HTTP exchange, or one call of gRPC. Implements `protocol.origin.Origin`. `key` finds the name of the caller's
    key."""

    ids: RequestIds
    client: ClientIds
    key: Callable[[], str]
    request_id: bytes = b""

    def name(self, own_id: str = "") -> bytes:
        """The request's id. What was answered or logged once stays, also if the protocol's own `id` is known later."""
        if not self.request_id:
            self.request_id = self.ids.of(self.client, own_id)
        return self.request_id

    def tags(self, own_id: str) -> RequestTags:
        return call_tags(self.name(own_id), self.client, self.key())


class StreamedOrigin(msgspec.Struct, eq=False):
    """That of the requests in one stream: each is found by an `id` of its own, or else by the call's."""

    call: CallOrigin

    def tags(self, own_id: str) -> RequestTags:
        """Implements `protocol.origin.Origin`."""
        tags = self.call.tags("")
        return msgspec.structs.replace(tags, request_id=usual_id(own_id).decode() or tags.request_id)


def call_tags(request_id: bytes, client: ClientIds, key: str) -> RequestTags:
    return RequestTags(request_id.decode(), client.trace_id.decode(), client.span_id.decode(), key)
