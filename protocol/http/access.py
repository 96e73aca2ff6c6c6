"""Access log entries of HTTP requests: what their lines say."""

from __future__ import annotations

from collections.abc import Mapping

from protocol.access.categories import Category
from protocol.errors import ServerError, text_of
from protocol.http.exchange import HttpRequest
from protocol.http.handlers.failed_request import own_id
from protocol.http.measured import MeasuredExchange
from protocol.log.access_log import Ended
from protocol.log.call_origin import CallOrigin
from protocol.messages import LATEST_VERSION

# What load balancers and monitoring ask all the time has no lines.
UNLOGGED = frozenset((Category.HEALTH, Category.METRICS))
# What the log says of a request whose client has left before it had a response (nginx's number).
CLIENT_CLOSED = 499


def ended(
    exchange: MeasuredExchange,
    parameters: Mapping[str, str],
    request: HttpRequest | None,
    origin: CallOrigin,
    failure: Exception | None,
    arrival_ns: int,
) -> Ended:
    """A request that was handled by a task; `request` is None where its body has not come whole, and `parameters` are
    those of its path."""
    model, version = parameters.get("model_name", ""), parameters.get("model_version", "")
    named = "" if request is None else own_id(request)
    if request is not None and request.inference is not None:
        model = request.inference.model_name
        if request.inference.model_version != LATEST_VERSION:
            version = str(request.inference.model_version)
    is_cancelled = failure is None and not exchange.is_complete
    return Ended(
        "http",
        exchange.method,
        path_text(exchange.asked_path),
        exchange.status or (CLIENT_CLOSED if is_cancelled else 500),
        tags=origin.tags(named),
        own_id=named,
        model=model,
        version=version,
        client=exchange.peer,
        bytes_in=exchange.bytes_in,
        bytes_out=exchange.bytes_out,
        is_cancelled=is_cancelled,
        error=error_text(failure),
        started_ns=arrival_ns,
    )


def path_text(raw_path: bytes) -> str:
    return raw_path.decode("latin-1")


def error_text(error: Exception | None) -> str:
    if error is None:
        return ""
    return error.message if isinstance(error, ServerError) else text_of(error)
