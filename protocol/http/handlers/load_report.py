"""Load reports (ORCA) for load balancers: the response header `endpoint-load-metrics` of generate and of the OpenAI
interface.

The format is that of the request's header `endpoint-load-metrics-format`. A pure codec of named numbers. Source:
Triton's ORCA headers; vLLM's server; Envoy, "Open Request Cost Aggregation".
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping

import msgspec

from protocol.http.reply import Headers

logger = logging.getLogger(__name__)

FORMAT_HEADER = b"endpoint-load-metrics-format"
REPORT_HEADER = b"endpoint-load-metrics"


def load_report_headers(
    headers: Mapping[bytes, bytes], report: Callable[[str], Mapping[str, float]] | None, model: str
) -> Headers:
    """The header for a response to a request to a model with these headers; none where it asks for none or there is
    nothing to tell. `report` is only called for a request that asks."""
    wanted = headers.get(FORMAT_HEADER)
    if wanted is None or report is None:
        return ()
    encode = _ENCODERS.get(wanted.lower())
    if encode is None:
        # Not an error, as in Triton: any client could fill the log with them.
        logger.debug("header '%s': expected text or json, got %r", FORMAT_HEADER.decode(), wanted[:64])
        return ()
    try:
        figures = {name: value for name, value in report(model).items() if math.isfinite(value)}
    except Exception:  # a response is worth more than its header
        logger.exception("the load report failed")
        return ()
    return ((REPORT_HEADER, encode(figures)),) if figures else ()


def _text(figures: Mapping[str, float]) -> bytes:
    return b"TEXT " + ", ".join(f"named_metrics.{name}={_number(value)}" for name, value in figures.items()).encode()


def _json(figures: Mapping[str, float]) -> bytes:
    return b"JSON " + msgspec.json.encode({"named_metrics": figures})


def _number(value: float) -> str:
    return msgspec.json.encode(value).decode()


_ENCODERS: Mapping[bytes, Callable[[Mapping[str, float]], bytes]] = {b"text": _text, b"json": _json}
