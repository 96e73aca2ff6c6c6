"""The control over HTTP: what concerns all replicas, as clients of one server ask for it.

    HAProxy → [control] → everywhere

HAProxy sends here only the paths of `haproxy_config`, and `/metrics` of the metrics port; those of the fleet
itself (`/v2/fleet`, see `fleet_api`) are answered on this port alone. Replicas check whether a caller may do what it
asks for: its headers are passed on.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from urllib.parse import unquote

import msgspec

from protocol.errors import Internal, InvalidArgument, PayloadTooLarge, ServerError, Unavailable, Unsupported
from protocol.http.body import BodyLimit
from protocol.http.errors import error_reply
from protocol.http.exchange import ClientGone, Exchange
from protocol.http.metrics_page import metrics_reply
from protocol.http.reply import JSON_CONTENT, Reply, json_reply
from protocol.limits.request_memory import RequestMemory, RequestShare
from protocol.messages import Buffer
from protocol.metrics_text import MetricsText
from trioton.fleet.everywhere import Everywhere, Outcome
from trioton.fleet.http_call import Answer, CallFailed, Headers
from trioton.fleet.merging import merged_index, merged_statistics
from trioton.fleet.model_records import ModelRequest

logger = logging.getLogger("trioton.fleet")

# Of a load with the model's files in it, and of all other calls.
MAX_BODY_BYTES = 1 << 30
_MAX_PLAIN_BYTES = 1 << 20
_BODY_PAUSE_SECONDS = 60.0
_LINGER_SECONDS = 5.0

_NOT_PASSED_ON = frozenset(
    (b"host", b"connection", b"content-length", b"transfer-encoding", b"accept-encoding", b"expect", b"te", b"upgrade")
)
_STATISTICS = re.compile(r"/v2/models/(stats|[^/]+(/versions/\d+)?/stats)")
_SHARED_MEMORY = re.compile(r"/v2/(system|cuda)sharedmemory/.*")
SHARED_MEMORY_REFUSAL = (
    "a fleet takes no shared memory: a region is registered with one server, and the next request may go to another; "
    "send tensors in the request"
)

FleetCall = Callable[[str, str, Mapping[bytes, bytes], bytes], Awaitable[Reply | None]]


class ControlApp:
    """`fleet` answers the calls of the fleet itself, None where a path is none of its own."""

    def __init__(
        self,
        everywhere: Everywhere,
        metrics: Callable[[], Awaitable[MetricsText]],
        memory: RequestMemory,
        fleet: FleetCall,
    ) -> None:
        self._everywhere = everywhere
        self._metrics = metrics
        self._memory = memory
        self._fleet = fleet

    async def __call__(self, exchange: Exchange) -> None:
        share, is_read = RequestShare(self._memory), False
        try:
            is_change = change_of(exchange.raw_path) is not None
            refusal = await self._refusal(exchange) if is_change and _may_be_large(exchange) else None
            if refusal is not None:
                await exchange.reply_early(refusal, linger=_LINGER_SECONDS)
                return
            limit = BodyLimit(MAX_BODY_BYTES if is_change else _MAX_PLAIN_BYTES, _too_large)
            body = await exchange.read_body(limit, share, pause_seconds=_BODY_PAUSE_SECONDS)
            is_read = True
            reply = await self._answer(exchange, body)
        except ClientGone:
            return
        except ServerError as error:
            reply = error_reply(error)
        except Exception as error:
            logger.exception("a call of the fleet's control has failed")
            reply = error_reply(Internal(f"the fleet's control has failed: {error}"))
        finally:
            share.end()
        if is_read or not exchange.may_have_body:
            await exchange.reply(reply)
        else:
            await exchange.reply_early(reply, linger=_LINGER_SECONDS)

    async def _refusal(self, exchange: Exchange) -> Reply | None:
        """For one who may not load models, before the body is read."""
        refusal = await self._everywhere.refusal(passed_on(exchange))
        return None if refusal is None else outcome_reply(refusal)

    async def _answer(self, exchange: Exchange, body: Buffer) -> Reply:
        path = unquote(exchange.raw_path.decode("latin-1"))
        if path == "/metrics":
            return await metrics_reply(await self._metrics(), exchange.headers)
        reply = await self._fleet(exchange.method, path, exchange.headers, bytes(body))
        if reply is not None:
            return reply
        if _SHARED_MEMORY.fullmatch(path):
            raise Unsupported(SHARED_MEMORY_REFUSAL)
        target = exchange.raw_path.decode("latin-1")
        if exchange.query:
            target += f"?{exchange.query.decode('latin-1')}"
        headers = passed_on(exchange)
        if path == "/v2/repository/index":
            return await self._index(exchange.method, headers, body)
        if _STATISTICS.fullmatch(path):
            found = await self._everywhere.ask(exchange.method, target, headers, body)
            return (
                outcome_reply(found) if isinstance(found, Outcome) else json_reply(merged_statistics([*found.values()]))
            )
        change = change_of(exchange.raw_path)
        if change is not None and exchange.method == "POST":
            request = ModelRequest(*change, bytes(body))
            report = await self._everywhere.change(request, headers)
            return Reply(report.status, JSON_CONTENT, report.body)
        return outcome_reply(await self._everywhere.broadcast(exchange.method, target, headers, body))

    async def _index(self, method: str, headers: Headers, body: Buffer) -> Reply:
        """Replicas are asked for all they have: what is ready on some of them only is not ready."""
        found = await self._everywhere.ask(method, "/v2/repository/index", headers, b"{}" if body else b"")
        if isinstance(found, Outcome):
            return outcome_reply(found)
        return json_reply(merged_index(found, ready=wants_ready(body)))


def change_of(raw_path: bytes) -> tuple[str, bool] | None:
    """Of the path of a load or an unload, however it is percent-encoded: the model, and whether it is a load."""
    match [unquote(part) for part in raw_path.decode("latin-1").split("/")]:
        case ["", "v2", "repository", "models", model, ("load" | "unload") as verb] if model:
            return model, verb == "load"
    return None


def _may_be_large(exchange: Exchange) -> bool:
    """Whether more may come than is read of anybody."""
    length = exchange.headers.get(b"content-length", b"")
    return exchange.may_have_body and not (length.isdigit() and int(length) <= _MAX_PLAIN_BYTES)


def wants_ready(body: Buffer) -> bool:
    """Raises InvalidArgument."""
    if not body:
        return False
    try:
        ready = msgspec.json.decode(body).get("ready", False)
    except (msgspec.DecodeError, AttributeError):
        raise InvalidArgument("the body of an index request is no JSON object") from None
    if not isinstance(ready, bool):
        raise InvalidArgument("Invalid value for 'ready': expected a boolean")
    return ready


def passed_on(exchange: Exchange) -> Headers:
    """What replicas get of a caller's headers: all but those of its connection."""
    return [(name, value) for name, value in exchange.sent_headers if name.lower() not in _NOT_PASSED_ON]


def outcome_reply(outcome: Outcome) -> Reply:
    """A replica's answer as it is."""
    if isinstance(outcome, CallFailed):
        return error_reply(Unavailable(str(outcome)))
    assert isinstance(outcome, Answer)
    content = outcome.headers.get(b"content-type", b"application/json")
    return Reply(outcome.status, ((b"content-type", content),), outcome.body)


def _too_large(size: int, limit: int) -> ServerError:
    return PayloadTooLarge(f"the body has {size} bytes or more, expected {limit} at most")
