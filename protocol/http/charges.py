"""What a call over HTTP costs of a quota: the bytes of its content, both ways; and the headers that tell of it."""

from __future__ import annotations

from collections.abc import Mapping

from protocol.http.errors import encoded_fields
from protocol.http.exchange import BodyWriter
from protocol.http.reply import Headers, Reply
from protocol.quotas.accounts import Charge
from protocol.quotas.quota import Unit


def declared_size(headers: Mapping[bytes, bytes]) -> int:
    """The size of a request's content by its head; 0 where that does not tell."""
    size = headers.get(b"content-length", b"")
    return int(size) if size.isdigit() and len(size) < 19 else 0


def charge_reply(charge: Charge, reply: Reply) -> None:
    """Charge a whole reply, and add to it what is left."""
    charge.settle(Unit.BYTES, reply.length)
    if charge.held:
        reply.headers = (*reply.headers, *encoded_fields(charge.fields()))


class ChargedWriter:
    """A body writer whose bytes are charged, in front of another `writer`. Implements `exchange.BodyWriter`."""

    __slots__ = ("_charge", "writer")

    def __init__(self, writer: BodyWriter, charge: Charge) -> None:
        self.writer = writer
        self._charge = charge

    @property
    def has_started(self) -> bool:
        return self.writer.has_started

    async def start(self, status: int, headers: Headers) -> None:
        fields = encoded_fields(self._charge.fields())
        await self.writer.start(status, (*headers, *fields))

    async def send(self, data: bytes) -> None:
        self._charge.settle(Unit.BYTES, len(data))
        await self.writer.send(data)

    def send_at_once(self, data: bytes) -> bool:
        if not self.writer.send_at_once(data):
            return False
        self._charge.settle(Unit.BYTES, len(data))
        return True

    async def end(self) -> None:
        await self.writer.end()
