"""The settings that clients may read and change at run time: log settings and trace settings, with their interfaces.

Source: Triton's logging and trace extensions. The edges translate their forms; `trioton.log` and
`actors.tracing.tracer` implement the two controls.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:  # the command line reads these settings before it loads numpy
    from protocol.datatypes import DataType

# What `LogSettings.log_format` may be.
LOG_FORMATS = ("default", "ISO8601", "json", "ecs")


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
        """Log from now on as `settings` say; `log_file` must not change.

        Raises:
            InvalidArgument: `log_format` is unknown, or `log_verbose_level` is out of range.
            Unsupported: another `log_file`.
        """


@dataclass(frozen=True, slots=True)
class TraceSettings:
    """`level` holds `OFF` alone, or `TIMESTAMPS` and `TENSORS`; every `rate`-th request is traced, `count` times in
    all (-1 without end); `log_frequency` traces go into a file (0: all into one). Read from a server, `count` is what
    is left. `mode_options` are those of mode `opentelemetry`, by their names on the wire."""

    level: tuple[str, ...] = ("OFF",)
    rate: int = 1000
    count: int = -1
    log_frequency: int = 0
    file: str = ""
    mode: str = "triton"
    mode_options: tuple[tuple[str, str], ...] = ()

    @property
    def is_off(self) -> bool:
        return self.level == ("OFF",)

    def texts(self) -> dict[str, str | tuple[str, ...]]:
        """The settings by their names on the wire, as both edges answer them: `trace_level` several texts, the others
        one each. Mode `opentelemetry` has its options in place of `log_frequency` and `trace_file`."""
        texts: dict[str, str | tuple[str, ...]] = {
            "trace_level": self.level,
            "trace_rate": str(self.rate),
            "trace_count": str(self.count),
        }
        if self.mode == "opentelemetry":
            return {**texts, "trace_mode": self.mode, **dict(self.mode_options)}
        texts.update(log_frequency=str(self.log_frequency), trace_file=self.file, trace_mode=self.mode)
        return texts


class TracedTensor(Protocol):
    """What a trace reads of a `protocol.messages.Tensor`."""

    @property
    def name(self) -> str: ...

    @property
    def datatype(self) -> DataType: ...

    @property
    def shape(self) -> tuple[int, ...]: ...

    @property
    def data(self) -> bytes | bytearray | memoryview: ...


class Trace(Protocol):
    """The trace of one request, carried by it. Names of activities are Triton's.

    The edge needs `stamp` and `end`; the other methods are the model's. Nothing here raises, and after `end` nothing
    has an effect.
    """

    def stamp(self, activity: str, ns: int | None = None) -> None:
        """Record that the activity happens now, or happened at `ns` of `time.monotonic_ns`."""

    def identify(self, model_version: int, request_id: str) -> None:
        """Record which version serves the request, and its client's id for it (empty for none)."""

    def record_tensors(self, activity: str, tensors: Sequence[TracedTensor]) -> None:
        """Record the contents of tensors, if the trace is of level TENSORS. They are copied."""

    def annotate(self, attributes: Mapping[str, str | int | float | Sequence[str]]) -> None:
        """Add attributes to the request's span, where spans are made."""

    def child(self, model: str) -> Trace | None:
        """A trace for a request that is made to answer this one; None where none is recorded. Its caller ends it."""

    def context(self) -> str | None:
        """The context for spans of the model's own, beneath this request's computation: JSON text with `traceparent`
        and perhaps `tracestate` (W3C Trace Context). None where no spans are made."""

    def end(self) -> None:
        """The trace is complete and may be written. Called once, by the edge, on every path."""


class TraceControl(Protocol):
    """Which requests are traced, and where to."""

    @property
    def is_sampling(self) -> bool:
        """Whether any request may be traced: the one question that every request asks."""

    @property
    def follows_context(self) -> bool:
        """Whether `sample` wants to see the headers `traceparent` and `tracestate`; else an edge need not look."""

    def settings(self, model: str = "") -> TraceSettings:
        """The settings of a model, or the global ones.

        Raises:
            NotFound: unknown model. InvalidArgument: a model that is not ready.
        """

    def update(self, changes: Mapping[str, Sequence[str] | None], model: str = "") -> TraceSettings:
        """Change settings by their names on the wire (`trace_level`, `trace_rate`, …), given as texts; None clears one,
        so that a model follows the global setting again and the global one its value at the start. Names that are none
        are ignored, as is a `trace_level` that holds no known word.

        Raises:
            NotFound: unknown model. InvalidArgument: a value that is none. Unsupported: `trace_file`.
        """

    def sample(self, model: str, *, traceparent: str = "", tracestate: str = "") -> Trace | None:
        """A trace for the request that is about to be read, if it is its turn. Cheap while tracing is off.

        A request that comes with a W3C `traceparent` is always traced where `follows_context`. A model that is not
        served gives None.
        """
