"""Load reports (ORCA) for balancers: `endpoint-load-metrics`, a header of HTTP responses and a trailer of gRPC calls.

The format is that of the request's header or metadata `endpoint-load-metrics-format`. A pure codec of named numbers.
Source: Triton's ORCA headers; vLLM's server; Envoy, "Open Request Cost Aggregation"; gRPC, A51 and A85.
"""

from __future__ import annotations

import base64
import logging
import math
import struct
from collections.abc import Callable, Mapping
from typing import TypeAlias

import msgspec

logger = logging.getLogger(__name__)

Headers: TypeAlias = tuple[tuple[bytes, bytes], ...]
Figures: TypeAlias = Mapping[str, float]
LoadReport: TypeAlias = Callable[[str], Figures]

FORMAT_HEADER = b"endpoint-load-metrics-format"
REPORT_HEADER = b"endpoint-load-metrics"
BINARY_TRAILER = b"endpoint-load-metrics-bin"
# Of all the utilization of a model, from 0 to 1; ORCA has a field for it, all others are named metrics.
UTILIZATION = "application_utilization"

# Field numbers of `xds.data.orca.v3.OrcaLoadReport`.
_NAMED_METRICS, _UTILIZATION = 8, 9
_BYTES, _DOUBLE = 2, 1  # wire types


def load_report_headers(headers: Mapping[bytes, bytes], report: LoadReport | None, model: str) -> Headers:
    """The header for a response to a request to a model with these headers; none where it asks for none or there is
    nothing to tell. `report` is only called for a request that asks."""
    wanted = headers.get(FORMAT_HEADER)
    if wanted is None or report is None:
        return ()
    encode = _ENCODERS.get(wanted.lower())
    figures = {} if encode is None else _figures(report, model)
    if encode is None:
        _note_unknown(wanted)
    return ((REPORT_HEADER, encode(figures)),) if encode is not None and figures else ()


def load_report_trailers(wanted: bytes, report: LoadReport | None, model: str) -> Headers:
    """As `load_report_headers`, of a gRPC call whose metadata want this format: binary is a message in metadata of its
    own, as gRPC's clients expect it."""
    if wanted.lower() != b"bin" or report is None:
        return load_report_headers({FORMAT_HEADER: wanted}, report, model)
    figures = _figures(report, model)
    return ((BINARY_TRAILER, base64.b64encode(_message(figures)).rstrip(b"=")),) if figures else ()


def _figures(report: LoadReport, model: str) -> Figures:
    try:
        return {name: value for name, value in report(model).items() if math.isfinite(value)}
    except Exception:  # a response is worth more than its header
        logger.exception("the load report failed")
        return {}


def _note_unknown(wanted: bytes) -> None:
    # Not an error, as in Triton: any client could fill the log with them.
    logger.debug("'%s': expected text, json or bin, got %r", FORMAT_HEADER.decode(), wanted[:64])


def _text(figures: Figures) -> bytes:
    names = (name if name == UTILIZATION else f"named_metrics.{name}" for name in figures)
    return (
        b"TEXT "
        + ", ".join(f"{name}={_number(value)}" for name, value in zip(names, figures.values(), strict=True)).encode()
    )


def _json(figures: Figures) -> bytes:
    named = {name: value for name, value in figures.items() if name != UTILIZATION}
    whole: dict[str, object] = {"named_metrics": named} if named else {}
    if UTILIZATION in figures:
        whole[UTILIZATION] = figures[UTILIZATION]
    return b"JSON " + msgspec.json.encode(whole)


def _number(value: float) -> str:
    return msgspec.json.encode(value).decode()


def _binary(figures: Figures) -> bytes:
    return b"BIN " + base64.b64encode(_message(figures))


def _message(figures: Figures) -> bytes:
    """An OrcaLoadReport; names are short."""
    parts: list[bytes] = []
    for name, value in figures.items():
        if name == UTILIZATION:
            parts.append(_field(_UTILIZATION, _DOUBLE) + struct.pack("<d", value))
            continue
        key = name.encode()
        entry = _field(1, _BYTES) + bytes((len(key),)) + key + _field(2, _DOUBLE) + struct.pack("<d", value)
        parts.append(_field(_NAMED_METRICS, _BYTES) + bytes((len(entry),)) + entry)
    return b"".join(parts)


def _field(number: int, wire_type: int) -> bytes:
    return bytes((number << 3 | wire_type,))


_ENCODERS: Mapping[bytes, Callable[[Figures], bytes]] = {b"text": _text, b"json": _json, b"bin": _binary}
