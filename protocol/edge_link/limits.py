"""Limits of a link: what one edge process may hold of the core's memory, and for how long."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class LinkLimits:
    """Of one edge process. The core decides them; the edge is told when the link begins.

    Attributes:
        input_bytes: shared memory for large inputs. It takes address space only, until it is written to.
        output_bytes: the same for large outputs.
        unsent_bytes: what may wait for an edge that does not read; with more, the link ends.
        stall_seconds: for how long it may wait without any progress.
    """

    input_bytes: int = 256 << 20
    output_bytes: int = 256 << 20
    unsent_bytes: int = 64 << 20
    stall_seconds: float = 10.0
