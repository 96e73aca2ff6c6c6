"""Request ids: the name by which a request is found in logs, in headers, metadata and bodies of answers, and in traces.

It is what the client names it: by the header or metadata `x-request-id`, by the protocol's own `id`, or by the trace
that it belongs to (`traceparent`, W3C Trace Context); else one is made. The `id` of an answer stays what the client
sent. Pure, but for the randomness of what is made.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Mapping

import msgspec

REQUEST_ID = b"x-request-id"
TRACEPARENT = b"traceparent"
# What a header can carry, and a log line shows whole.
_USUAL_ID = re.compile(rb"[!-~]{1,128}")
# Version, trace id, parent's span id, flags; a later version may say more behind them.
_TRACEPARENT = re.compile(rb"(?!ff)([0-9a-f]{2})-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_ID_BYTES = 16
_MADE_AT_ONCE = 256
_IDS = struct.Struct(f"{2 * _ID_BYTES}s" * _MADE_AT_ONCE)


class ClientIds(msgspec.Struct, frozen=True):
    """What the headers of a request say: its id, and the trace and span that it belongs to; empty for what is not said,
    or not as it has to be."""

    request_id: bytes = b""
    trace_id: bytes = b""
    span_id: bytes = b""

    @classmethod
    def of(cls, headers: Mapping[bytes, bytes]) -> ClientIds:
        """By headers whose names are in lower case."""
        request_id, traceparent = headers.get(REQUEST_ID, b""), headers.get(TRACEPARENT, b"")
        if not (request_id or traceparent):
            return NO_IDS
        found = _TRACEPARENT.fullmatch(traceparent)
        if found is not None and found[1] == b"00" and found[5]:
            found = None
        trace_id, span_id = (b"", b"") if found is None else (found[2], found[3])
        return cls(usual_id(request_id), trace_id, span_id)


NO_IDS = ClientIds()


def usual_id(text: str | bytes) -> bytes:
    """An id as it is, if a header can carry it; else nothing."""
    if isinstance(text, str):
        text = text.encode() if text.isascii() else b""
    return text if _USUAL_ID.fullmatch(text) else b""


class RequestIds:
    """The ids of one server's requests. Those that are made cannot be guessed: by its id a request may be cancelled.
    `made` are those that are there to be taken; `make` makes more where there are none."""

    def __init__(self) -> None:
        self.made: list[bytes] = []

    def of(self, client: ClientIds, own_id: str = "") -> bytes:
        """The id of a request with these headers and, where it is known, the protocol's own `id`."""
        if client.request_id:
            return client.request_id
        if own_id and (usual := usual_id(own_id)):
            return usual
        return client.trace_id or self.make()

    def make(self) -> bytes:
        """A new one: 32 hexadecimal digits, as a trace id has them."""
        if not self.made:
            self.made += _IDS.unpack(os.urandom(_ID_BYTES * _MADE_AT_ONCE).hex().encode())
        return self.made.pop()
