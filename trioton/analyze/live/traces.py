"""Arrivals and latencies from a trace file of a server (mode `triton`)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from trioton.flags.fields import UsageError

_MOST_BYTES = 512 << 20
_STARTS = ("HTTP_RECV_START", "GRPC_WAITREAD_END", "REQUEST_START")
_ENDS = ("REQUEST_END", "INFER_RESPONSE_COMPLETE", "COMPUTE_END")


@dataclass(frozen=True, slots=True)
class Traced:
    """Of one model: moments in seconds of the machine's clock, ascending, and latencies within the server."""

    arrivals: tuple[float, ...]
    latencies: tuple[float, ...]


def read_traces(path: Path, model: str) -> Traced:
    """Raises UsageError: it cannot be read, or is no trace file."""
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise UsageError(f"--trace-file: {path} is larger than {_MOST_BYTES >> 20} MiB")
        entries = msgspec.json.decode(path.read_bytes(), type=list[dict[str, Any]])
    except (OSError, msgspec.MsgspecError) as error:
        raise UsageError(f"--trace-file: {path} cannot be read: {error}") from None
    ids = {entry.get("id") for entry in entries if entry.get("model_name") == model}
    times: dict[Any, dict[str, int]] = {}
    for entry in entries:
        if entry.get("id") in ids:
            for stamp in entry.get("timestamps", ()):
                times.setdefault(entry["id"], {})[stamp["name"]] = stamp["ns"]
    spans = []
    for stamps in times.values():
        start = next((stamps[name] for name in _STARTS if name in stamps), None)
        begin, end = stamps.get("REQUEST_START", start), next((stamps[name] for name in _ENDS if name in stamps), None)
        if start is not None and begin is not None and end is not None:
            spans.append((start / 1e9, (end - begin) / 1e9))
    spans.sort()
    return Traced(tuple(start for start, _ in spans), tuple(took for _, took in spans))
