"""Fast path of HTTP inference: a request that was received whole is decoded, submitted and answered from callbacks.

    connection -> [direct_infer] -> core … actor -> replies -> connection

One per edge, used by the connections of HTTP/1 and HTTP/2, which own the requests. Which requests are read here is
decided by what the edge alone knows: the head (`head`), tracing, memory, and whether the body can be decoded without a
thread or shared memory (`begin`). All others are read by a task, with `app` and `handlers.infer`. The core takes both
alike, and the answers are the same.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Protocol

import msgspec
import trio

from protocol.access.keys import KeyRing
from protocol.errors import Decoupled, ServerError
from protocol.http.access import CLIENT_CLOSED, error_text, path_text
from protocol.http.app import HttpApp, internal_reply
from protocol.http.charges import charge_reply
from protocol.http.codec.compression import IDENTITY
from protocol.http.codec.infer import (
    HEADER_LENGTH,
    OutputEncoding,
    parse_header_length,
)
from protocol.http.errors import FIRST_ERROR, error_reply, name_reply
from protocol.http.exchange import JSON_SLICED_ABOVE, header_text, version_in
from protocol.http.handlers.infer import decoupled, encode, encode_at_once
from protocol.http.handlers.jobs.submit import infer_or_job
from protocol.http.head import Head
from protocol.http.reply import Reply
from protocol.load_report import FORMAT_HEADER
from protocol.log.access_log import Ended
from protocol.log.access_record import AccessRecord
from protocol.log.call_origin import call_tags
from protocol.log.failure_log import FailedRequest
from protocol.log.request_ids import NO_IDS, ClientIds, RequestIds
from protocol.log.tags import of_call
from protocol.messages import LATEST_VERSION, Buffer, InferenceResponse
from protocol.origin import RequestTags
from protocol.quotas.accounts import Account, Charge
from protocol.reactor.drivers import the_poller
from protocol.reactor.replies import PendingReply, Replies, describe_pending
from protocol.sequence_header import SEQUENCE_HEADER, put_sequence_id

logger = logging.getLogger(__name__)

_MOST_HEADS = 512


class ReplySink(Protocol):
    """The owner of a direct request: a connection."""

    @property
    def peer(self) -> str:
        """The client's address."""

    def answer(self, request: DirectRequest) -> None:
        """The reply is there. Must not wait."""

    def fail_answer(self, request: DirectRequest, error: Exception) -> None:
        """`answer` has raised this: how much of the reply was sent is unknown."""


class DirectHead(msgspec.Struct, frozen=True, eq=False):
    """What the head of a plain inference request says; the same for all requests with these bytes, as long as the
    server has the same `keys`."""

    data: bytes
    size: int  # with the body
    model_name: str
    model_version: int
    header_length: int | None
    accepts_coding: bytes | None
    keys: KeyRing | None
    client: ClientIds
    key_name: Callable[[], str]
    account: Account | None
    sequence_id: str  # as its header has it
    path: bytes

    @property
    def is_refused(self) -> bool:
        """Whether its key has no quota left for a request. A task says so."""
        account = self.account
        return account is not None and account.may_be_refused(self.model_name, self.size - len(self.data))


class DirectRequest(PendingReply, kw_only=True):
    """A submitted request, and what log lines say of it. `status` and `bytes_out` are those of its reply, which a
    task may have to encode or send, when nothing else is left of it: then it `is_logged_later`, by `note_end`, and
    `started_ns` is when it came."""

    sink: ReplySink
    encoding: OutputEncoding
    head: DirectHead
    ids: RequestIds
    size: int
    request_id: bytes = b""
    record: AccessRecord | None = None
    status: int = 0
    bytes_out: int = 0
    is_logged_later: bool = False
    started_ns: int = 0
    charge: Charge | None = None

    def name(self) -> bytes:
        """As `CallOrigin.name`."""
        if not self.request_id:
            self.request_id = self.ids.of(self.head.client, self.own_id)
        return self.request_id

    def tags(self, own_id: str) -> RequestTags:
        """Implements `protocol.origin.Origin`."""
        if own_id and not self.request_id:  # it may be asked while it is submitted
            self.request_id = self.ids.of(self.head.client, own_id)
        return call_tags(self.name(), self.head.client, self.head.key_name())

    def deliver(self) -> None:
        self.sink.answer(self)

    def fail(self, error: Exception) -> None:
        self.sink.fail_answer(self, error)


class DirectInference:
    """One per edge, same lifetime."""

    def __init__(self, app: HttpApp) -> None:
        self._app = app
        self._services = app.services
        # Asked for each request.
        self._memory = app.services.memory
        self._trace = app.services.trace
        self._templates = app.templates
        self._request_ids = app.services.request_ids
        self._access_log = app.services.access_log
        self.poller = the_poller()
        self.keys = app.services.access.keys
        self.failures = app.services.failures
        self.replies: Replies = Replies(self.failures)
        self.flush = app.services.core.flush
        self._logs = app.services.access_log.is_on
        # Heads of requests that differ in little but their length, which a client sends in turn.
        self._heads: dict[bytes, DirectHead] = {}

    async def run(self) -> None:
        """Deliver replies, as long as the edge serves."""
        with self.poller.calling_last(self.flush):
            await self.replies.run()

    def known_head(self, data: bytes) -> DirectHead | None:
        """What was found of these bytes, by whichever connection they came, if it holds for the present keys."""
        known = self._heads.get(data)
        return known if known is not None and known.keys is self.keys.current else None

    def keep_head(self, head: DirectHead) -> None:
        """For all connections; when there are too many, all are dropped."""
        if len(self._heads) >= _MOST_HEADS:
            self._heads.clear()
        self._heads[head.data] = head

    def head(self, head: Head, data: bytes) -> DirectHead | None:
        """The head in these bytes; None where its requests are not plain inference."""
        app = self._app
        headers = head.headers
        if (
            head.is_chunked
            or head.is_http_1_0
            or head.expects_continue
            or not head.keeps_alive
            or b"content-encoding" in headers
            or FORMAT_HEADER in headers
            or (b"prefer" in headers and self._services.jobs is not None)
            or not self._services.forwarding.is_empty
        ):
            return None
        try:
            route, parameters, account = app.find(head.method, head.raw_path, headers)
            if route.handler is not infer_or_job:
                return None
            header_length = parse_header_length(headers.get(HEADER_LENGTH), head.content_length)
            if (head.content_length if header_length is None else header_length) > JSON_SLICED_ABOVE:
                return None
            version = version_in(parameters)
            app.body_limit(route, headers, IDENTITY).check(head.content_length)
        except ServerError:
            return None
        if not header_length and header_length is not None:
            return None
        return DirectHead(
            data,
            len(data) + head.content_length,
            parameters["model_name"],
            version,
            header_length,
            headers.get(b"accept-encoding"),
            self.keys.current,
            ClientIds.of(headers),
            partial(self._services.access.key_name, partial(header_text, headers)),
            account,
            header_text(headers, SEQUENCE_HEADER) or "",
            head.raw_path,
        )

    def hold(self, size: int) -> bool:
        """Count bytes of a body as they arrive; False where there is no memory for them, and nothing is counted."""
        memory = self._memory
        if size > memory.limit - memory.held:
            return False
        memory.held += size
        return True

    def release(self, size: int) -> None:
        """What `hold` has counted is released, or counted by `begin` or by a task from now on."""
        self._memory.held -= size

    def begin(self, head: DirectHead, data: Buffer, sink: ReplySink, start: int = 0) -> DirectRequest | None:
        """Submit a request, whose body begins at `start`; None where only a task can read it, and nothing has been
        done: it is to be traced, uses shared memory, cannot be decoded, or there is no memory for its body, or no
        quota."""
        memory, size = self._memory, len(data) - start
        if size > memory.limit - memory.held or self._trace.is_sampling:
            return None
        if head.account is not None and head.is_refused:
            return None
        templates = self._templates
        name, version, length = head.model_name, head.model_version, head.header_length
        try:
            decoded = templates.find(data, length, name, version, start) or templates.decode(
                memoryview(data)[start:],
                length,
                model_name=name,
                model_version=version,
                max_input_size=self._app.settings.max_input_size,
            )
            if decoded.placement is not None:
                return None
            if head.sequence_id:
                put_sequence_id(decoded.request, head.sequence_id)
        except ServerError:
            return None
        inference, ids = decoded.request, self._request_ids
        request_id = b""
        if head.client is NO_IDS and not inference.id:  # mostly
            request_id = ids.made.pop() if ids.made else ids.make()
        request = inference.origin = DirectRequest(
            self.replies,
            sink=sink,
            encoding=decoded.encoding,
            head=head,
            ids=ids,
            size=size,
            request_id=request_id,
        )
        if head.account is not None:
            request.charge = inference.charge = head.account.admit(name, size)
        if self._access_log.measures:
            inference.trace = request.record = self._access_log.begin()
        request.submitted = self._services.core.submit(inference, request, later=True)
        memory.held += size
        return request

    def reply(self, request: DirectRequest) -> Reply | None:
        """The reply; None where that has to be encoded by `encode`."""
        reply = request.reply
        answer: Reply | None = None
        if isinstance(reply, InferenceResponse):
            try:
                answer = encode_at_once(reply, request.encoding, request.head.accepts_coding)
                if answer is not None:
                    answer.request_id = request.request_id or request.name()
                    if request.charge is not None:
                        charge_reply(request.charge, answer)
            except ServerError as error:
                answer = self.error_reply(request, error)
            except Exception as error:  # a defect, which is this request's and no other's
                extra = {"tags": of_call(request, model=reply.model_name, version=str(reply.model_version))}
                logger.exception("the answer of model '%s' could not be encoded", reply.model_name, extra=extra)
                self.note_failure(request, error, 500)
                answer = self._name_error(internal_reply(error), request)
        else:
            assert reply is not None
            answer = self.error_reply(request, decoupled() if isinstance(reply, Decoupled) else reply)
        if self._logs:
            request.is_logged_later = answer is None
            if answer is not None:
                self.note_reply(request, answer)
        return answer

    def error_reply(self, request: DirectRequest, error: ServerError) -> Reply:
        """The error reply of a request that was refused, once that is logged."""
        reply = self._name_error(error_reply(error), request)
        self.note_failure(request, error, reply.status)
        return reply

    def _name_error(self, reply: Reply, request: DirectRequest) -> Reply:
        name_reply(reply, request.name())
        return reply

    def note_failure(self, request: DirectRequest, error: Exception, status: int) -> None:
        """Log that it is answered with an error."""
        self._services.failure_log.note("HTTP infer", status, error, partial(describe_pending, request))

    def note_refusal(self, plain: DirectHead, error: ServerError, status: int, peer: str, head: Head) -> None:
        """Log that a request is answered with an error though only its head has come."""
        version = "" if plain.model_version == LATEST_VERSION else str(plain.model_version)
        failed = FailedRequest(plain.model_name, version)
        self._services.failure_log.note("HTTP infer", status, error, lambda: failed)
        self._log_refusal(error, status, peer, head)

    def name_refusal(self, reply: Reply, headers: Mapping[bytes, bytes]) -> None:
        """Give the reply to a request that is refused by its head the id that this says, or one that is made."""
        name_reply(reply, self._request_ids.of(ClientIds.of(headers)))

    def note_refused_head(self, error: ServerError, status: int | str, peer: str, head: Head | None = None) -> None:
        """Log that a request is refused by what is known of it when its head has come, or a part of that."""
        self._services.failure_log.note("HTTP request", status, error, FailedRequest)
        self._log_refusal(error, status, peer, head)

    def close(self, request: DirectRequest) -> None:
        """It is answered, or what is left of that needs nothing that it holds."""
        if self._logs:
            if request.is_logged_later:
                request.started_ns = _started_ns(request)
            else:
                self._log_access(request)
        self._memory.held -= request.size
        submitted, request.submitted = request.submitted, None  # as `let_go` does
        if request.charge is not None:
            request.charge.end()
        assert submitted is not None
        submitted.end()

    async def encode(self, request: DirectRequest) -> Reply:
        """Encode the reply where that takes a thread. `note_end` is to be called then, whatever comes of it."""
        assert isinstance(request.reply, InferenceResponse)
        try:
            reply = await encode(request.reply, request.encoding, request.head.accepts_coding)
            if request.charge is not None:
                charge_reply(request.charge, reply)
        except ServerError as error:
            reply = self.error_reply(request, error)
        except Exception as error:
            self.note_failure(request, error, 500)
            request.status = 500
            raise
        reply.request_id = request.name()
        self.note_reply(request, reply)
        return reply

    def note_end(self, request: DirectRequest, is_sent: bool) -> None:
        """A task has sent the reply, or its client has left before that."""
        if self._logs:
            if not is_sent and request.status < FIRST_ERROR:
                request.status = CLIENT_CLOSED
            self._log_access(request)

    def give_up(self, request: DirectRequest) -> None:
        """Cancel the request: its reply is not wanted any more."""
        if self._logs:
            request.status = request.status or CLIENT_CLOSED
            self._log_access(request)
        self._memory.held -= request.size
        if request.charge is not None:
            request.charge.end()
        request.let_go().give_up()

    # The access log.

    def note_reply(self, request: DirectRequest, reply: Reply) -> None:
        """This is what it gets."""
        if self._logs:
            request.status, request.bytes_out = reply.status, reply.length

    def _log_refusal(self, error: ServerError, status: int | str, peer: str, head: Head | None) -> None:
        if self._logs:
            method, path = ("", "") if head is None else (head.method, path_text(head.raw_path))
            client = NO_IDS if head is None else ClientIds.of(head.headers)
            tags = call_tags(client.request_id, client, "")
            ended = Ended("http", method, path, status, tags, client=peer, error=error.message)
            self._access_log.end(None, True, lambda: ended)

    def _log_access(self, request: DirectRequest) -> None:
        """Write the line of a request that has ended, if it is to have one."""
        is_failed = request.status == 0 or request.status >= FIRST_ERROR
        self._access_log.end(request.record, is_failed, partial(self._ended, request))

    def _ended(self, request: DirectRequest) -> Ended:
        head, reply = request.head, request.reply
        own_id = request.own_id
        return Ended(
            "http",
            "POST",
            path_text(head.path),
            request.status or 500,
            request.tags(own_id),
            own_id=own_id,
            model=head.model_name,
            version="" if head.model_version == LATEST_VERSION else str(head.model_version),
            client=request.sink.peer,
            bytes_in=request.size,
            bytes_out=request.bytes_out,
            is_cancelled=request.status == CLIENT_CLOSED,
            error=error_text(reply) if isinstance(reply, Exception) else "",
            started_ns=(request.started_ns or _started_ns(request)) if request.record is None else 0,
        )


def _started_ns(request: DirectRequest) -> int:
    submitted = request.submitted
    if submitted is None:
        return 0
    return time.monotonic_ns() - int((trio.current_time() - submitted.arrival) * 1e9)
