"""perf_analyzer's options as one typed object. Pure; `parsing` reads them from words.

What the original has and this one does not is refused by name; what has no meaning here is accepted.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from pathlib import Path

from protocol.messages import ParameterValue
from trioton.perf.data.inputs import GivenShape


class OptionError(Exception):
    """The command line asks for what cannot be."""


class ServiceKind(enum.StrEnum):
    TRITON = "triton"
    OPENAI = "openai"


class WindowKind(enum.StrEnum):
    """What ends a window."""

    TIME = "time_windows"
    COUNT = "count_windows"


@dataclass(frozen=True, slots=True)
class Range:
    """Levels of a load: from `start` by `step` to `end`, which 0 leaves open."""

    start: float
    end: float
    step: float

    @property
    def is_open(self) -> bool:
        return self.end == 0

    @property
    def is_single(self) -> bool:
        """Whether there is one level alone."""
        return not self.is_open and self.end <= self.start


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """One run.

    Attributes:
        is_async: then windows need not have like latencies, as with the original.
        concurrency, rates: the levels; rates where they are given.
        intervals: a file of gaps in place of both.
        is_scheduled: each entry of the data has its time.
        window_seconds, window_requests: of a window, by its kind.
        request_count: one window of exactly so many requests; 0 for windows until they are alike.
        stability: by how much three windows may differ, 0.1 for 10 %.
        percent: judged and reported in place of the mean.
        latency_limit: the search ends beyond it, in seconds; 0 for none.
        words: what `--input-data` names.
        shared_memory: whether tensors lie in system shared memory.
        composing: models that a model calls (business logic scripting), with their versions or "".
        notes: what was given and has no meaning here, to be said.
    """

    model: str
    version: str = ""
    address: str = ""
    is_grpc: bool = False
    is_streaming: bool = False
    is_async: bool = False
    kind: ServiceKind = ServiceKind.TRITON
    endpoint: str = ""
    batch: int = 1
    headers: tuple[tuple[str, str], ...] = ()
    parameters: tuple[tuple[str, ParameterValue], ...] = ()
    uses_tls: bool = False
    ca_file: str = ""

    concurrency: Range = Range(1, 1, 1)
    rates: Range | None = None
    is_poisson: bool = False
    intervals: Path | None = None
    is_scheduled: bool = False
    is_binary_search: bool = False

    window: WindowKind = WindowKind.TIME
    window_seconds: float = 5.0
    window_requests: int = 50
    request_count: int = 0
    warmup_requests: int = 0
    stability: float = 0.1
    trials: int = 10
    percent: int | None = None
    latency_limit: float = 0.0

    words: tuple[str, ...] = ()
    is_zero: bool = False
    shapes: tuple[GivenShape, ...] = ()
    string_length: int = 128
    string_data: str | None = None
    sequence_length: int = 0
    sequence_variation: float = 0.2
    sequences: int = 4
    first_sequence: int = 1
    last_sequence: int = 0
    shared_memory: bool = False
    output_bytes: int = 102_400

    csv: Path | None = None
    has_verbose_csv: bool = False
    export: Path | None = None
    collects_metrics: bool = False
    metrics_url: str = ""
    metrics_seconds: float = 1.0
    composing: tuple[tuple[str, str], ...] = ()
    verbosity: int = 0
    notes: tuple[str, ...] = ()

    @property
    def is_rate(self) -> bool:
        """Whether levels are rates and not concurrencies."""
        return self.rates is not None or self.intervals is not None or self.is_scheduled

    @property
    def levels(self) -> Range:
        return self.rates or self.concurrency
