"""Tracer: the actor that decides which requests are traced, and writes finished traces to files or to a collector.

Flow: edge → [tracer] makes a trace → the request carries it through the server → edge ends it → [tracer] → sink.
Started and owned by the server, before its edges; cancelled after them. Its settings can be changed while it runs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import trio

from actors.tracing.files import TraceFiles
from actors.tracing.record import RequestTrace, TensorBudget
from actors.tracing.sampling import TraceSampling
from actors.tracing.settings import CHANGEABLE, TracerSettings, changed, followed, invalid_reason, parse_changes
from actors.tracing.sink import CannotTrace, TraceSink
from protocol.errors import InvalidArgument, NotFound, ServerError, shown_name
from protocol.server_settings import Trace, TraceSettings

logger = logging.getLogger("trioton.tracer")

# Finished traces that wait for the disk; more are dropped.
QUEUED_TRACES = 1024
# Traces written in one go.
WRITTEN_AT_ONCE = 256
# Bytes of tensors in all traces that are not yet written; what is beyond is left out of them.
TENSOR_BYTES = 64 * 1024 * 1024
# How long a write may take, and at the end what is then left to be sent.
GRACE_SECONDS = 5.0

# Models with settings of their own, from which on those that are not there any more are looked for.
KEPT_MODELS = 256

_FIELDS = frozenset(CHANGEABLE.values())


class Tracer:
    """Implements `protocol.server_settings.TraceControl`. Before and after `run` it traces nothing.

    `is_model_ready` is asked about models by name; it raises the client's error for one that does not exist.
    `has_ended` is told of every trace that ends while it runs.
    """

    def __init__(
        self,
        settings: TracerSettings,
        is_model_ready: Callable[[str], bool],
        has_ended: Callable[[RequestTrace], None] = lambda trace: None,
    ) -> None:
        start = settings.start
        if start.mode == "opentelemetry":
            start = replace(start, mode_options=settings.export.texts())
        self.lost_count = 0
        self._settings = replace(settings, start=start)
        self._is_model_ready = is_model_ready
        self._has_ended = has_ended
        self._global = TraceSampling(start)
        # Models with settings of their own, and which of them are (fields of TraceSettings); the others follow.
        self._models: dict[str, TraceSampling] = {}
        self._own: dict[str, frozenset[str]] = {}
        self._look_at = KEPT_MODELS
        self.is_sampling = False
        self._last_id = 0
        self._budget = TensorBudget(TENSOR_BYTES)
        # A write that was given up still holds it, so that writes never overlap and no more than one thread hangs.
        self._one_writer = trio.CapacityLimiter(1)
        self._finished: trio.MemorySendChannel[RequestTrace] | None = None

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Write traces as they end. Cancelled, it writes those that are left, within a bounded time; so it is cancelled
        once no more traces can end.

        Raises:
            CannotTrace: the settings are impossible here; before it is started.
        """
        sink = await trio.to_thread.run_sync(open_sink, self._settings)
        to_writer, finished = trio.open_memory_channel[RequestTrace](QUEUED_TRACES)
        with to_writer, finished:
            self._finished = to_writer
            self._look_again()
            try:
                task_status.started()
                async for trace in finished:
                    await self._write(sink, [trace, *_waiting(finished, WRITTEN_AT_ONCE - 1)])
            finally:
                self._finished = None
                self._look_again()
                await self._close(sink, _waiting(finished, QUEUED_TRACES))

    # protocol.server_settings.TraceControl

    @property
    def follows_context(self) -> bool:
        return self.is_sampling and self._settings.start.mode == "opentelemetry"

    def settings(self, model: str = "") -> TraceSettings:
        if model:
            self._check_model(model)
        return self._models.get(model, self._global).settings

    def update(self, changes: Mapping[str, Sequence[str] | None], model: str = "") -> TraceSettings:
        if model:
            self._check_model(model)
        wanted = parse_changes(changes)
        current = self._models.get(model, self._global)
        if not wanted:
            return current.settings
        if model:
            new = changed(current.settings, wanted, self._global.settings)
            own = (self._own.get(model, frozenset()) | wanted.values.keys()) - wanted.cleared
            self._set_model(model, new, own)
        else:
            new = changed(current.settings, wanted, self._settings.start)
            self._global = TraceSampling(new)
            for name, own in list(self._own.items()):
                self._set_model(name, followed(self._models[name].settings, new, _FIELDS - own), own)
        self._look_again()
        return self._models.get(model, self._global).settings

    def sample(self, model: str, *, traceparent: str = "", tracestate: str = "") -> Trace | None:
        if not self.is_sampling:
            return None
        sampling = self._models.get(model, self._global)
        is_forced = bool(traceparent) and self.follows_context
        if not sampling.takes(model, self._is_known, is_forced=is_forced):
            return None
        if not sampling.is_active:
            self._look_again()
        context = (traceparent, tracestate) if is_forced else ("", "")
        return RequestTrace(self._new_id(), model, sampling, self._budget, self._take, context, new_id=self._new_id)

    def _new_id(self) -> int:
        self._last_id += 1
        return self._last_id

    def _set_model(self, name: str, settings: TraceSettings, own: frozenset[str]) -> None:
        """Put settings in force; a model with none of its own follows the global ones."""
        if own:
            self._models[name], self._own[name] = TraceSampling(settings), own
            if len(self._models) >= self._look_at:
                self._forget_gone()
        else:
            self._models.pop(name, None)
            self._own.pop(name, None)

    def _forget_gone(self) -> None:
        """Drop the settings of models that do not exist any more."""
        for name in list(self._models):
            try:
                self._is_model_ready(name)
            except NotFound:
                del self._models[name], self._own[name]
            except ServerError:  # it is only unloaded
                continue
        self._look_at = max(KEPT_MODELS, 2 * len(self._models))

    def _look_again(self) -> None:
        self.is_sampling = self._finished is not None and any(
            sampling.is_active for sampling in (self._global, *self._models.values())
        )

    def _check_model(self, name: str) -> None:
        if not self._is_model_ready(name):
            raise InvalidArgument(f"Request for unknown model : {shown_name(name)}")

    def _is_known(self, name: str) -> bool:
        try:
            self._is_model_ready(name)
        except ServerError:
            return False
        return True

    def _take(self, trace: RequestTrace) -> None:
        """A trace has ended."""
        if self._finished is None:
            trace.release()
            return
        self._has_ended(trace)
        try:
            self._finished.send_nowait(trace)
        except trio.WouldBlock:
            self._lose([trace], f"more than {QUEUED_TRACES} wait to be written")

    async def _write(self, sink: TraceSink, traces: Sequence[RequestTrace]) -> None:
        """Write what was taken from the queue, also when cancelled meanwhile; give up if the disk hangs."""
        with trio.CancelScope(shield=True, deadline=trio.current_time() + GRACE_SECONDS) as writing:
            try:
                await trio.to_thread.run_sync(sink.write, traces, abandon_on_cancel=True, limiter=self._one_writer)
            except OSError as error:
                self._lose(traces, str(error))
            except Exception:  # tracing must not take the server down
                logger.exception("traces could not be written")
                self._lose(traces, "see above")
            else:
                for trace in traces:
                    trace.release()
        if writing.cancelled_caught:
            self._lose(traces, f"writing has taken more than {GRACE_SECONDS:g} s")

    async def _close(self, sink: TraceSink, rest: Sequence[RequestTrace]) -> None:
        if rest:
            await self._write(sink, rest)
        with trio.CancelScope(shield=True, deadline=trio.current_time() + GRACE_SECONDS) as closing:
            try:
                await trio.to_thread.run_sync(sink.close, abandon_on_cancel=True)
            except Exception:  # tracing must not spoil the server's end
                logger.exception("where traces go to could not be closed")
        if closing.cancelled_caught:
            sink.abort()
            logger.error("the last traces could not be sent within %g s", GRACE_SECONDS)

    def _lose(self, traces: Sequence[RequestTrace], reason: str) -> None:
        for trace in traces:
            trace.release()
            self.lost_count += 1
            if self.lost_count & (self.lost_count - 1) == 0:  # 1, 2, 4, 8, …: a full disk must not fill the log too
                logger.error("%d traces are lost: %s", self.lost_count, reason)


def open_sink(settings: TracerSettings) -> TraceSink:
    """The sink of a mode. Raises CannotTrace."""
    start = settings.start
    if not start.is_off:
        reason = invalid_reason(start)
        if reason:
            raise CannotTrace(reason)
    if start.mode != "opentelemetry":
        return TraceFiles(start.file)
    try:
        from actors.tracing.export import TraceExport
    except ImportError as error:
        raise CannotTrace(
            f"trace mode opentelemetry needs the extra 'trace' ({error}): pip install trioton[trace]"
        ) from None
    return TraceExport(settings.export)


def _waiting(finished: trio.MemoryReceiveChannel[RequestTrace], most: int) -> list[RequestTrace]:
    """Traces that are there already."""
    found: list[RequestTrace] = []
    while len(found) < most:
        try:
            found.append(finished.receive_nowait())
        except trio.WouldBlock:
            break
    return found
