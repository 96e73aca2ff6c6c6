"""HTTP exchange: the request that a handler gets, and the interface for its reply, independent of sockets and HTTP
versions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from protocol.core import InferenceCore
from protocol.errors import InvalidArgument
from protocol.http.body import BodyLimit
from protocol.http.codec.request_templates import RequestTemplates
from protocol.http.reply import Headers, Reply
from protocol.http.settings import HttpSettings
from protocol.limits.request_memory import RequestShare
from protocol.log.access_record import AccessRecord
from protocol.log.call_origin import CallOrigin
from protocol.log.request_ids import usual_id
from protocol.messages import LATEST_VERSION, Buffer, InferenceRequest
from protocol.quotas.accounts import Charge
from protocol.server_settings import Trace
from protocol.services import EdgeServices
from protocol.shared_memory.lease import Lease

# Reading or writing more bytes than this as JSON would hold up every other call.
JSON_IN_THREAD_ABOVE = 1 << 20
# An inference's JSON of more bytes is read and written in slices; most of a millisecond or two in one go.
JSON_SLICED_ABOVE = 1 << 17

_MAX_VERSION = 2**63 - 1


class BodyWriter(Protocol):
    """The writer of a streamed response. HTTP cannot take a status back: after `start`, errors are reported in the
    body."""

    @property
    def has_started(self) -> bool: ...

    async def start(self, status: int, headers: Headers) -> None:
        """Send the head of the response, once."""

    async def send(self, data: bytes) -> None:
        """Send a piece of the body, and wait while the client reads slowly."""

    def send_at_once(self, data: bytes) -> bool:
        """Send a piece of the body after `start`, without waiting; False where that cannot be, and nothing was sent.
        What the kernel does not take any more goes before the next piece."""

    async def end(self) -> None:
        """The body is complete. Without this call the client sees that it was cut off."""


class BodyStream(Protocol):
    """A request's body, which its handler reads as it comes.

    Attributes:
        received: bytes that have come.
        has_ended: all of it was read.
    """

    received: int
    has_ended: bool

    async def receive(self) -> Buffer:
        """The next piece; empty at the end. The client sends no more than is read.

        Raises:
            BodyTimeout: it pauses for too long in all, or comes too slowly.
            ClientGone: the client has left.
            ServerError: it is over the limit, or framed as it must not be.
        """
        ...


@dataclass(slots=True, eq=False)
class HttpRequest:
    """A request whose body has arrived whole and decompressed, or comes as `incoming`, where its route streams it.

    `path_parameters` are the named parts of the route's path, percent-decoded. `headers` holds the first value of each
    header by its lower-case name, `sent_headers` all of them as they came. `templates` are those of inference requests.
    `trace` is there if the request is traced, `inference` once a request for inference was decoded.
    `arrival_ns` is when its head was there, in nanoseconds of `time.monotonic_ns`. `query` is that of its target;
    `origin` has its id, `record` what is measured for the access log, and `failure` is why a response that has begun
    has failed.
    `limits` makes headers that tell of limits, once the model is known that has them. `charge` is there if there are
    keys, and the call costs something of a quota. `turn` ends the turn that its large body has among others.
    `is_elsewhere`: another process has answered it, which also logs and charges it.
    """

    services: EdgeServices
    settings: HttpSettings
    path_parameters: Mapping[str, str]
    headers: Mapping[bytes, bytes]
    body: Buffer
    writer: BodyWriter
    templates: RequestTemplates
    origin: CallOrigin
    sent_headers: Iterable[tuple[bytes, bytes]] = ()
    trace: Trace | None = None
    inference: InferenceRequest | None = None
    arrival_ns: int = 0
    query: bytes = b""
    limits: Callable[[], Headers] | None = None
    charge: Charge | None = None
    record: AccessRecord | None = None
    failure: Exception | None = None
    turn: Callable[[], None] | None = None
    incoming: BodyStream | None = None
    is_elsewhere: bool = False
    _lease: Lease | None = None
    _fetched: RequestShare | None = None

    @property
    def core(self) -> InferenceCore:
        return self.services.core

    @property
    def request_id(self) -> bytes:
        """The client's own name for the request, or one that is made for it."""
        return self.origin.name("" if self.inference is None else self.inference.id)

    def rename(self, given: str | None) -> None:
        """Take the name that the body gives, if it is one that a header can carry."""
        if given is not None:
            self.origin.request_id = usual_id(given) or self.services.request_ids.make()

    def take_trace(self, trace: Trace | None) -> Trace | None:
        """Have it traced, beside what is measured for the access log."""
        if self.record is None:
            self.trace = trace
        else:
            self.record.trace = trace
        return trace

    @property
    def lease(self) -> Lease:
        """The request's use of shared memory; it lasts until the response is sent."""
        if self._lease is None:
            self._lease = self.services.shared_memory.lease()
        return self._lease

    @property
    def fetched(self) -> RequestShare:
        """The bytes that the server has fetched for the request, which count as its body does."""
        if self._fetched is None:
            self._fetched = RequestShare(self.services.memory)
        return self._fetched

    def end_turn(self) -> None:
        """What the body holds was read, or is waited for: let the next large one have its turn."""
        turn, self.turn = self.turn, None
        if turn is not None:
            turn()

    def end(self) -> None:
        """The response was sent, or its client has gone: release shared memory. Called once, by the app."""
        if self._lease is not None:
            self._lease.__exit__(None, None, None)
        if self._fetched is not None:
            self._fetched.end()

    @property
    def caller(self) -> str:
        """The name of its key, to which belongs what the server keeps for its client: as `AccessControl.caller`."""
        return self.services.access.caller(lambda name: header_text(self.headers, name))

    @property
    def model_name(self) -> str:
        return self.path_parameters["model_name"]

    @property
    def model_version(self) -> int:
        """The version in the path, or the latest.

        Raises:
            InvalidArgument: the digits are no 64-bit number.
        """
        return version_in(self.path_parameters)


# None means that the handler has answered through the request's writer.
Handler: TypeAlias = Callable[[HttpRequest], Awaitable[Reply | None]]


class Exchange(BodyWriter, Protocol):
    """The interface between a connection and the application, one object per request; HTTP/1, HTTP/2 and ASGI implement
    it."""

    @property
    def method(self) -> str: ...

    @property
    def raw_path(self) -> bytes:
        """The request target as the client sent it, without its query."""

    @property
    def query(self) -> bytes:
        """What follows the path in it, after the `?`."""

    @property
    def headers(self) -> Mapping[bytes, bytes]:
        """The headers by their lower-case names; of one that comes several times the first value, for every reader."""

    @property
    def sent_headers(self) -> Iterable[tuple[bytes, bytes]]:
        """All headers, their names in the letter case of the client where its protocol has it."""

    @property
    def peer(self) -> str:
        """The client's address, as `host:port`; empty where it is not known."""

    @property
    def may_have_body(self) -> bool:
        """Whether a body may follow. HTTP/1 announces it, HTTP/2 need not, whatever the method."""

    def read_body(self, limit: BodyLimit, share: RequestShare, *, pause_seconds: float) -> Awaitable[Buffer]:
        """The whole body, counted by `limit` and `share` as it comes.

        Raises:
            BodyTimeout: it pauses for longer than `pause_seconds` in all, or comes too slowly.
            ClientGone: the client has left.
            ServerError: it is over a limit, or framed as it must not be.
        """

    def stream_body(self, limit: BodyLimit, *, pause_seconds: float) -> BodyStream:
        """The body, to be read as it comes, in place of `read_body`. Raises what `limit` raises."""
        ...

    def run(self, handler: Handler, request: HttpRequest) -> Awaitable[Reply | None]:
        """Run a handler, which is cancelled if the client leaves; then there is no reply."""

    async def reply(self, reply: Reply) -> None:
        """Answer a request whose body has been read.

        Raises:
            Overloaded: the client reads too slowly, and there is no memory for a reply of this size to wait in. Nothing
                has been sent.
        """

    async def reply_early(self, reply: Reply, *, linger: float) -> None:
        """Answer a request whose body has not been read whole, and end its connection (HTTP/1) or stream (HTTP/2).

        The reply leaves at once. The rest of the body is then read and dropped, for `linger` seconds at most: closing
        earlier would make the kernel reset the connection and the client lose the reply that it has not yet read.
        """


App: TypeAlias = Callable[[Exchange], Awaitable[None]]


def version_in(path_parameters: Mapping[str, str]) -> int:
    """As `HttpRequest.model_version`."""
    text = path_parameters.get("model_version")
    if text is None:
        return LATEST_VERSION
    # Digits only, as the route has it; the length check spares a conversion of absurd length.
    if len(text) > 19 or int(text) > _MAX_VERSION:
        raise InvalidArgument(
            f"failed to get model version from specified version string '{text[:64]}' (details: out of the range "
            f"of a 64-bit integer), version should be an integral value > 0"
        )
    return int(text)


class ClientGone(Exception):
    """The client closed its sending direction before its request was complete: there is nobody to reply to."""


def header_text(headers: Mapping[bytes, bytes], name: str) -> str | None:
    """A header as text: each byte a character, so that nothing is lost."""
    value = headers.get(name.encode("latin-1", "replace"))
    return None if value is None else value.decode("latin-1")
