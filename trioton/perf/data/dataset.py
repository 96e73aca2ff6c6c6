"""Data sets: streams of steps, each the tensors of one request or of one row of its batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from protocol.messages import ParameterValue, Tensor

# What a data set holds at most; what a file has beyond is left out, and said so.
MAX_BYTES = 256 << 20
MAX_STEPS = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What one request says, or one row of it.

    Attributes:
        tensors: by the names of inputs, without a batch dimension, unless `rows` is given.
        rows: the tensors are those of a whole request that has so many rows; None for one row.
        expected: what the outputs have to be, by their names.
        body: a JSON object in place of tensors, for the generate extension and OpenAI's routes.
        at: when it is to be sent, in seconds from the start; None where the data does not say.
        session: steps with the same one follow each other; `delay` seconds after the answer to the one before.
    """

    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    rows: int | None = None
    expected: Mapping[str, Tensor] = field(default_factory=dict)
    parameters: Mapping[str, ParameterValue] = field(default_factory=dict)
    body: Mapping[str, Any] | None = None
    at: float | None = None
    session: str = ""
    delay: float = 0.0

    @property
    def byte_size(self) -> int:
        """Of its tensors."""
        return sum(tensor.byte_size for side in (self.tensors, self.expected) for tensor in side.values())


@dataclass(frozen=True, slots=True)
class Dataset:
    """Streams of steps: each sequence takes one. Data that knows of no streams is one stream.

    Attributes:
        notes: what was left out, for the person who measures.
        is_generated: the steps were made and not given: a sequence is as long as it is told to be.
    """

    streams: tuple[tuple[Step, ...], ...]
    notes: tuple[str, ...] = ()
    is_generated: bool = False

    @property
    def steps(self) -> Iterator[Step]:
        """All of them, stream by stream."""
        for stream in self.streams:
            yield from stream

    @property
    def byte_size(self) -> int:
        return sum(step.byte_size for step in self.steps)
