"""Profiles: what one level of load has shown, for the reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from trioton.perf.figures import Figures
from trioton.perf.server_side import ServerFigures
from trioton.perf_analyzer.gpu_metrics import GpuFigures


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """A request and its responses, for the export. Times are in nanoseconds since the epoch; `inputs` and `outputs` as
    JSON has them."""

    sent: int
    responses: Sequence[int]
    inputs: object = None
    outputs: Sequence[object] = ()
    sequence_id: int | str = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """One level.

    Attributes:
        level: a concurrency, or a rate.
        figures: of all windows that count, as one.
        boundaries: where windows begin and end, in nanoseconds since the epoch.
        server: None where the server does not tell.
        versions: of the models of an ensemble that have run.
        exchanges: where an export is asked for.
    """

    level: float
    is_rate: bool
    figures: Figures
    boundaries: Sequence[int] = ()
    server: ServerFigures | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    gpu: GpuFigures | None = None
    exchanges: Sequence[Exchange] = field(default=(), repr=False)
    is_decoupled: bool = False
    has_cache: bool = False
