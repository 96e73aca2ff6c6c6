"""perf_analyzer's `--profile-export-file`: every request of the windows that count, as one JSON document. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from trioton.perf_analyzer.options import Options
from trioton.perf_analyzer.profile import Exchange, Profile
from trioton.version import version_text


def export_pieces(profiles: Sequence[Profile], options: Options) -> Iterator[bytes]:
    """The document in pieces, which are never all in memory at once."""
    yield b'{"experiments":['
    for number, profile in enumerate(profiles):
        yield b"," if number else b""
        yield from _experiment(profile)
    rest = {"version": version_text(), "service_kind": str(options.kind), "endpoint": options.endpoint}
    yield b"]," + msgspec.json.encode(rest)[1:]


def _experiment(profile: Profile) -> Iterator[bytes]:
    level = profile.level if profile.is_rate else int(profile.level)
    head = {"mode": "request_rate" if profile.is_rate else "concurrency", "value": level}
    yield b'{"experiment":' + msgspec.json.encode(head) + b',"requests":['
    for number, exchange in enumerate(profile.exchanges):
        yield b"," if number else b""
        yield msgspec.json.encode(_request(exchange))
    yield b'],"window_boundaries":' + msgspec.json.encode(list(profile.boundaries)) + b"}"


def _request(exchange: Exchange) -> dict[str, Any]:
    return {
        "timestamp": exchange.sent,
        **({"sequence_id": exchange.sequence_id} if exchange.sequence_id else {}),
        **({} if exchange.inputs is None else {"request_inputs": finite(exchange.inputs)}),
        "response_timestamps": list(exchange.responses),
        "response_outputs": [finite(each) for each in exchange.outputs],
    }


def finite(value: object) -> object:
    """With null for the numbers that JSON does not have."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: finite(each) for name, each in value.items()}
    if isinstance(value, list):
        return [finite(each) for each in value]
    return value
