"""Server settings that clients may read and change over the protocols: the log, and tracing.

Source: Triton's logging and trace extensions. The edges translate their forms; `trioton.log` and `actors.tracer`
implement the two controls.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class LogSettings:
    """`log_file` is empty for the console; it can be read, but only the command line sets it."""

    log_file: str = ""
    log_info: bool = True
    log_warning: bool = True
    log_error: bool = True
    log_verbose_level: int = 0
    log_format: str = "default"


class LogControl(Protocol):
    """The server's log."""

    @property
    def settings(self) -> LogSettings: ...

    def update(self, settings: LogSettings) -> None:
        """Log from now on as `settings` say; `log_file` must be what it is.

        Raises:
            InvalidArgument: `log_format` is none of those there are.
            Unsupported: another `log_file`.
        """


@dataclass(frozen=True, slots=True)
class TraceSettings:
    """`level` holds `OFF` alone, or `TIMESTAMPS` and `TENSORS`; every `rate`-th request is traced, `count` times in
    all (-1 without end); `log_frequency` traces go into a file (0: all into one)."""

    level: tuple[str, ...] = ("OFF",)
    rate: int = 1000
    count: int = -1
    log_frequency: int = 0
    file: str = ""
    mode: str = "triton"


class Trace(Protocol):
    """The trace of one request, carried by it. Names of activities are Triton's."""

    def stamp(self, activity: str) -> None:
        """Note that the activity happens now."""

    def end(self) -> None:
        """Nothing more comes: the trace may be written. Called once, by the edge."""


class TraceControl(Protocol):
    """Which requests are traced, and where to."""

    def settings(self, model: str = "") -> TraceSettings:
        """The settings of a model, or the global ones. Raises NotFound for an unknown model."""

    def update(self, changes: Mapping[str, Sequence[str] | None], model: str = "") -> TraceSettings:
        """Change settings by their names on the wire (`trace_level`, `trace_rate`, …), given as texts; None clears one,
        so that a model follows the global setting again and the global one its value at the start.

        Raises:
            NotFound: unknown model. InvalidArgument: a value that is none. Unsupported: `trace_file`.
        """

    def sample(self, model: str) -> Trace | None:
        """A trace for the request that is about to be read, if it is its turn. Cheap while tracing is off."""
