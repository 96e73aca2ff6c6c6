"""Settings of payload capture."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class CaptureFormat(StrEnum):
    """What files are written, by their endings."""

    JSON_LINES = "jsonl"
    PARQUET = "parquet"


@dataclass(frozen=True, slots=True)
class CaptureSettings:
    """What is captured, and when a file is written.

    Attributes:
        share: of the requests to a model that has no share of its own in `shares`; from 0 to 1.
        redacted: names of tensors and parameters whose values are left out.
        max_tensor_bytes: of larger tensors only the first elements are written, and statistics.
        memory_bytes: what requests and responses may hold until their file is written.
        file_bytes: a file is written when it has so many,
        file_seconds: or when its first request is so old.
    """

    share: float = 0.01
    shares: Mapping[str, float] = field(default_factory=dict)
    format: CaptureFormat = CaptureFormat.JSON_LINES
    redacted: frozenset[str] = frozenset()
    max_tensor_bytes: int = 1 << 16
    memory_bytes: int = 1 << 26
    file_bytes: int = 1 << 24
    file_seconds: float = 60.0
