"""The HTTP application: finds the route of a request, reads the body, runs the handler and sends the reply.

Runs in the task of the request's exchange. Every failure becomes a reply here: a `ServerError` by the table in
`errors`, anything else, a defect, as 500 with its traceback in the log.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import trio

from protocol.errors import Internal, InvalidArgument, Overloaded, ServerError, text_of
from protocol.http.access import UNLOGGED, ended
from protocol.http.body import BodyLimit
from protocol.http.charges import ChargedWriter, charge_reply, declared_size
from protocol.http.codec.binary_type import CONTENT_TYPE
from protocol.http.codec.compression import IDENTITY, content_encoding, inflate
from protocol.http.codec.infer import HEADER_LENGTH, json_too_large
from protocol.http.codec.json_text import may_nest
from protocol.http.codec.request_templates import RequestTemplates
from protocol.http.console.origin_check import refuse_foreign_page
from protocol.http.errors import FIRST_ERROR, BodyTooLarge, LimitError, error_reply, name_reply
from protocol.http.exchange import BodyStream, ClientGone, Exchange, HttpRequest, header_text
from protocol.http.handlers.failed_request import describe, own_id
from protocol.http.measured import MeasuredExchange
from protocol.http.reply import Reply
from protocol.http.route import Route
from protocol.http.route_table import RouteTable
from protocol.http.routes import route_table
from protocol.http.settings import HttpSettings
from protocol.limits.request_memory import LIMIT_NAME, RequestShare
from protocol.log.access_record import AccessRecord
from protocol.log.call_origin import CallOrigin
from protocol.log.request_ids import ClientIds
from protocol.log.tags import of_call, tags_of
from protocol.messages import Buffer
from protocol.quotas.accounts import Account, Charge
from protocol.quotas.quota import Unit
from protocol.server_settings import Trace
from protocol.services import EdgeServices
from protocol.zipped import MAX_INFLATION

logger = logging.getLogger(__name__)

# Of a body that only says what to change.
_SHORT_BODY = 1 << 20
# Of a form that a file is uploaded in, beside the file.
_FORM_SIZE = 1 << 16


@dataclass(frozen=True, slots=True)
class HttpApp:
    """The application of one server; it holds no state of its own between exchanges."""

    services: EdgeServices
    settings: HttpSettings
    routes: RouteTable = field(default_factory=route_table)
    templates: RequestTemplates = field(default_factory=RequestTemplates)
    _short_limit: BodyLimit = field(init=False)
    _json_limit: BodyLimit = field(init=False)
    _binary_limit: BodyLimit = field(init=False)
    _file_limit: BodyLimit = field(init=False)
    _count_overload: Callable[[], None] = field(init=False)

    def __post_init__(self) -> None:
        sizes, put = self.settings, partial(object.__setattr__, self)  # frozen from here on
        short = min(sizes.max_input_size, sizes.max_body_size, _SHORT_BODY)
        put(
            "_short_limit",
            BodyLimit(short, _short_body_too_large),
        )
        put("_json_limit", BodyLimit(min(sizes.max_input_size, sizes.max_body_size), json_too_large))
        put("_binary_limit", BodyLimit(sizes.max_body_size, _body_too_large))
        put("_file_limit", BodyLimit(sizes.max_file_size + _FORM_SIZE, _file_too_large))
        put("_count_overload", partial(self.services.limits.count, "http", LIMIT_NAME))

    async def __call__(self, exchange: Exchange) -> None:
        if self.services.access_log.is_on:
            exchange = MeasuredExchange(exchange)
        headers = exchange.headers
        arrival_ns = time.monotonic_ns()
        trace: Trace | None = None
        route: Route | None = None
        request: HttpRequest | None = None
        origin = CallOrigin(self.services.request_ids, ClientIds.of(headers), partial(self._key_name, exchange))
        record = self.services.access_log.begin() if self.services.access_log.measures else None
        failure: Exception | None = None
        share = RequestShare(self.services.memory, self._count_overload)
        charge: Charge | None = None
        size = 0
        incoming: BodyStream | None = None
        try:
            try:
                route, parameters, account = self.find(exchange.method, exchange.raw_path, headers)
                if account is not None and route.is_charged:
                    charge = await account.admit_when_known(parameters.get("model_name"), declared_size(headers))
                if route.is_inference and self.services.trace.is_sampling and "model_name" in parameters:
                    trace = self._sample(parameters, headers)
                if record is not None and route.is_inference:
                    record.trace, trace = trace, record
                encoding = IDENTITY
                if b"content-encoding" in headers:
                    encoding = content_encoding(headers, allowed=route.takes_codings)
                limit = self.body_limit(route, headers, encoding)
                body: Buffer = b""
                if route.streams_body:
                    incoming = exchange.stream_body(limit, pause_seconds=self.settings.body_timeout)
                else:
                    body = await exchange.read_body(limit, share, pause_seconds=self.settings.body_timeout)
                request = HttpRequest(
                    self.services,
                    self.settings,
                    parameters,
                    headers,
                    body,
                    exchange,
                    self.templates,
                    origin,
                    exchange.sent_headers,
                    trace,
                    arrival_ns=arrival_ns,
                    query=exchange.query,
                    charge=charge,
                    record=record,
                    incoming=incoming,
                )
                if charge is not None:
                    size = max(len(body), declared_size(headers))
                    if incoming is None:
                        charge.settle(Unit.BYTES, len(body), declared_size(headers))
                    request.writer = ChargedWriter(exchange, charge)
                if trace is not None:
                    trace.stamp("HTTP_RECV_END")
                if encoding != IDENTITY:
                    await self._inflate(request, encoding, share, route)
                ends_with_client = route.is_inference or route.may_wait
                call = exchange.run(route.handler, request) if ends_with_client else route.handler(request)
                try:
                    reply = await call
                except RecursionError:  # the reader of a body lets through what nests too deeply for others
                    if not may_nest(request.body):
                        raise
                    raise InvalidArgument("what the request holds nests too deeply") from None
                finally:
                    request.end_turn()
                if reply is not None:
                    self._add_headers(reply, exchange, request, origin)
                if reply is not None and charge is not None and not request.is_elsewhere:
                    charge_reply(charge, reply)
            except ClientGone:
                return
            except ServerError as exc:
                failure = exc
                if request is not None and route is not None and route.is_inference:
                    origin.name(own_id(request))
                reply = self._error_reply(exc, exchange, request, origin)
                self._note_failure(exchange, route, request, exc, reply.status, arrival_ns, origin)
                if request is None:
                    await self._refuse(reply, exchange)
                    return
            except Exception as exc:
                failure = exc
                logger.exception(
                    "%s %s failed",
                    exchange.method,
                    "the search for a path" if route is None else route.path,
                    extra=_tags(origin, request),
                )
                # Where a part of the answer has been sent, its body ends without its end: all that can still be said.
                reply = None if exchange.has_started else self._error_reply(_internal(exc), exchange, request, origin)
                self._note_failure(exchange, route, request, exc, 500, arrival_ns, origin)
            if trace is None and request is not None:
                trace = request.trace  # of a model that only the body names
            if reply is not None and incoming is not None and not incoming.has_ended:
                await self._refuse(reply, exchange)
            elif reply is not None:
                if trace is not None:
                    trace.stamp("HTTP_SEND_START")
                try:
                    await exchange.reply(reply)
                except Overloaded as exc:
                    failure = exc
                    self._note_failure(exchange, route, request, exc, 503, arrival_ns, origin)
                    await exchange.reply(self._error_reply(exc, exchange, request, origin))
                if trace is not None:
                    trace.stamp("HTTP_SEND_END")
        finally:
            if request is not None:
                trace = request.trace
                request.end()
            share.end()
            if charge is not None:
                if incoming is not None:
                    charge.settle(Unit.BYTES, incoming.received, declared_size(headers))
                if request is not None and request.is_elsewhere and failure is None:
                    charge.withdraw(size)
                charge.end()
            if trace is not None:
                trace.end()
            if isinstance(exchange, MeasuredExchange):
                self._log_access(exchange, record, request, origin, failure, arrival_ns)

    async def end_unread(self, exchange: Exchange, error: ServerError | None, arrival_ns: int) -> None:
        """Refuse a request that has come at that time and is not whole, and log it; without an error its client has
        left."""
        if self.services.access_log.is_on:
            exchange = MeasuredExchange(exchange)
        origin = CallOrigin(
            self.services.request_ids, ClientIds.of(exchange.headers), partial(self._key_name, exchange)
        )
        record = self.services.access_log.begin()
        try:
            if error is not None:
                await self._refuse(self._error_reply(error, exchange, None, origin), exchange)
        finally:
            if isinstance(exchange, MeasuredExchange):
                self._log_access(exchange, record, None, origin, error, arrival_ns)

    def _log_access(
        self,
        exchange: MeasuredExchange,
        record: AccessRecord | None,
        request: HttpRequest | None,
        origin: CallOrigin,
        failure: Exception | None,
        arrival_ns: int,
    ) -> None:
        """Write the line of a request that has ended, if it is to have one."""
        if request is not None and request.is_elsewhere and failure is None:
            return
        if request is not None and request.failure is not None:
            failure = request.failure
        try:
            endpoint, parameters = self.routes.find(exchange.raw_path)
        except ServerError:
            parameters = {}
        else:
            if endpoint.category in UNLOGGED:
                return
        is_failed = failure is not None or exchange.status >= FIRST_ERROR or not exchange.is_complete
        described = partial(ended, exchange, parameters, request, origin, failure, arrival_ns)
        self.services.access_log.end(record, is_failed, described)

    def find(
        self, method: str, raw_path: bytes, headers: Mapping[bytes, bytes]
    ) -> tuple[Route, Mapping[str, str], Account | None]:
        """Look up the route: path, then access, then method, so that an unauthorised client learns nothing else. Also
        the path's parameters, and the account of the client's key, if there are keys.

        Raises:
            ServerError: no such route, or the client may not use it.
        """
        endpoint, parameters = self.routes.find(raw_path)
        access, account = self.services.access, None
        if not (access.is_open or endpoint.is_public):
            account = access.check(endpoint.category, partial(endpoint.header, headers))
        route, console = endpoint.route(method), self.services.console
        if console is not None and route.is_act and access.keys.current is None:
            refuse_foreign_page(headers, console.names)
        return route, parameters, account

    def _sample(self, parameters: Mapping[str, str], headers: Mapping[bytes, bytes]) -> Trace | None:
        control = self.services.trace
        start = time.monotonic_ns()
        if control.follows_context:
            parent, state = (header_text(headers, name) or "" for name in ("traceparent", "tracestate"))
            trace = control.sample(parameters["model_name"], traceparent=parent, tracestate=state)
        else:
            trace = control.sample(parameters["model_name"])
        if trace is not None:
            trace.stamp("HTTP_RECV_START", start)
        return trace

    def body_limit(self, route: Route, headers: Mapping[bytes, bytes], encoding: str) -> BodyLimit:
        if route.streams_body:
            return self._file_limit
        if route.has_short_body:
            return self._short_limit
        # A compressed body says nothing of its size; what it inflates to is bounded by max_input_size.
        if (route.has_binary_tail and HEADER_LENGTH in headers) or encoding != IDENTITY:
            return self._binary_limit
        if route.binary_type is not None and route.binary_type.is_in(headers.get(CONTENT_TYPE)):
            return self._binary_limit
        return self._json_limit

    async def _refuse(self, reply: Reply, exchange: Exchange) -> None:
        """Reply to a request whose body has not been read whole."""
        if exchange.may_have_body:
            await exchange.reply_early(reply, linger=self.settings.linger)
        else:
            await exchange.reply(reply)

    async def _inflate(self, request: HttpRequest, encoding: str, share: RequestShare, route: Route) -> None:
        limit = self._short_limit.maximum if route.has_short_body else self.settings.max_input_size
        size = len(request.body)
        most = min(limit, size * MAX_INFLATION)
        share.take(most)
        request.body = await trio.to_thread.run_sync(inflate, request.body, encoding, limit)
        share.give(size + most - len(request.body))

    def _note_failure(
        self,
        exchange: Exchange,
        route: Route | None,
        request: HttpRequest | None,
        error: Exception,
        status: int,
        arrival_ns: int,
        origin: CallOrigin,
    ) -> None:
        """Log the failure of an inference request."""
        if route is not None and not route.is_inference:
            return
        try:
            endpoint, parameters = self.routes.find(exchange.raw_path)
            route = endpoint.route(exchange.method)
        except ServerError:
            return
        if route.is_inference:
            call = f"HTTP {route.path.rpartition('/')[2]}"
            failed = partial(describe, request, parameters, arrival_ns, origin)
            self.services.failure_log.note(call, status, error, failed)

    def _error_reply(
        self, error: ServerError, exchange: Exchange, request: HttpRequest | None, origin: CallOrigin
    ) -> Reply:
        if isinstance(error, LimitError):
            self.services.limits.count("http", error.limit)
        reply = self.routes.error_form(exchange.raw_path)(error)
        self._add_headers(reply, exchange, request, origin)
        return reply

    def _add_headers(self, reply: Reply, exchange: Exchange, request: HttpRequest | None, origin: CallOrigin) -> None:
        """Add what every reply has; `request` is None where it has not come whole."""
        name_reply(reply, origin.name() if request is None else request.request_id)
        if header := self.routes.request_id_header(exchange.raw_path):
            reply.headers = (*reply.headers, (header, reply.request_id))
        if request is not None and request.limits is not None:
            reply.headers = (*reply.headers, *request.limits())

    def _key_name(self, exchange: Exchange) -> str:
        try:
            endpoint, _ = self.routes.find(exchange.raw_path)
        except ServerError:
            return ""
        return self.services.access.key_name(partial(endpoint.header, exchange.headers))


def _tags(origin: CallOrigin, request: HttpRequest | None) -> dict[str, Any]:
    inference = None if request is None else request.inference
    return {"tags": of_call(origin) if inference is None else tags_of(inference)}


def internal_reply(error: Exception) -> Reply:
    return error_reply(_internal(error))


def _internal(error: Exception) -> Internal:
    return Internal(f"internal error: {text_of(error)}")


def _body_too_large(size: int, limit: int) -> BodyTooLarge:
    return BodyTooLarge(
        f"request body size of {size} bytes exceeds the maximum allowed size of {limit} bytes. "
        f"Use --http-max-body-size to increase the limit.",
        "max_body_size",
    )


def _short_body_too_large(size: int, limit: int) -> BodyTooLarge:
    return BodyTooLarge(
        f"request body size of {size} bytes exceeds the maximum of {limit} bytes that a request to this path may have",
        "max_short_body_size",
    )


def _file_too_large(size: int, limit: int) -> BodyTooLarge:
    return BodyTooLarge(
        f"a file of {size} bytes exceeds the maximum allowed size of {limit - _FORM_SIZE} bytes. "
        f"Use --jobs-max-file-bytes to increase the limit.",
        "jobs_max_file_bytes",
    )
