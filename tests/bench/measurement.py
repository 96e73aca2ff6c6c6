"""What a turn gives: figures, or the reason why there are none."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Measurement:
    throughput: float  # inferences per second
    p50: float  # microseconds, as the client sees them
    p99: float
    processor: float | None = None  # microseconds of all of the server's processes for a request


class LoadFailed(Exception):
    """The run gave no figures; the message is what the load generator said last."""


def last_words(output: str) -> str:
    """The last line that a person would read, of what a program wrote before it failed."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return lines[-1] if lines else ""
