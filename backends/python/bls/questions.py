"""BLS calls other than inference: model loading, readiness, and custom metrics."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable

from backends.interface import ModelSource
from backends.python.wire.frames import BrokenFrame, Frame, decode_head, encode
from backends.python.wire.heads import (
    Ask,
    FamilyAsk,
    LoadAsk,
    MetricAsk,
    MetricHead,
    ReadyAsk,
    UnloadAsk,
    ValueAsk,
    decode_question,
)
from backends.python.worker.trioton_worker.frames import CALL, ERROR_KINDS, METRIC, RETURN
from backends.python.workers.link import WorkerLink
from backends.services import CustomMetric, CustomMetricFamily
from protocol.core import LoadParameters
from protocol.errors import Internal, InvalidArgument, ServerError, Unavailable, Unsupported, text_of

logger = logging.getLogger("trioton.backends.python")

# Bounds for a model that makes metrics without end.
MOST_METRICS = 100_000
_FILE_PREFIX = "file:"
# Why a model in the server's loop gets no answer.
NOT_IN_LOOP = (
    "it would wait in the server's loop, where ISOLATION in_loop runs the model, for what only that loop can do; use "
    "in_process"
)


class Questions:
    """The questions of one worker.

    `loading` is the model's name while it is being loaded itself. `may_load` is false while models may not be loaded by
    this worker. Metrics belong to the worker until `close`.
    """

    def __init__(self, link: WorkerLink, source: ModelSource) -> None:
        self.may_load = False
        self.loading = source.name
        self._link = link
        self._name = source.name
        self._services = source.services
        self._families: dict[int, CustomMetricFamily] = {}
        self._metrics: dict[int, CustomMetric] = {}
        self._last_id = 0
        link.handlers[CALL] = self._ask
        link.handlers[METRIC] = self._change

    def answer_at_once(self, frame: Frame) -> dict[str, object]:
        """Answer a call that must not block. Raises BrokenFrame."""
        question = decode_question(frame)
        if isinstance(question, FamilyAsk | MetricAsk | ValueAsk):
            return self._answered(question, lambda: self._measure(question))
        return _failed(question, Unsupported(NOT_IN_LOOP))

    def close(self) -> None:
        """Release all metrics; their values vanish with their last holder."""
        for metric in self._metrics.values():
            metric.close()
        for family in self._families.values():
            family.close()
        self._metrics.clear()
        self._families.clear()

    # Frames of the worker

    def _ask(self, frame: Frame) -> None:
        question = decode_question(frame)
        match question:
            case LoadAsk():
                if any(size < 0 for _, size in question.files) or sum(size for _, size in question.files) != len(
                    frame.body
                ):
                    raise BrokenFrame(f"its files {question.files} do not fill {len(frame.body)} bytes")
                self._link.spawn(self._answer_later, question, bytes(frame.body))
            case UnloadAsk() | ReadyAsk():
                self._link.spawn(self._answer_later, question, b"")
            case FamilyAsk() | MetricAsk() | ValueAsk():
                answer = self._answered(question, lambda: self._measure(question))
                self._link.channel.post(encode(RETURN, answer))

    def _change(self, frame: Frame) -> None:
        head = decode_head(frame, MetricHead)
        if head.do == "drop_family":
            self._let_go(self._families, head.id)
            return
        if head.do == "drop_metric":
            self._let_go(self._metrics, head.id)
            return
        metric = self._metrics.get(head.id)
        if metric is None:  # of a family that was dropped
            return
        try:
            value = float(head.value)
        except ValueError:
            raise BrokenFrame(f"its metric has the value {head.value!r}") from None
        match head.do:
            case "increment":
                metric.increment(value)
            case "set":
                metric.set(value)
            case "observe":
                metric.observe(value)
            case _:
                raise BrokenFrame(f"it wants to {head.do!r} a metric")

    def _let_go(self, held: dict[int, CustomMetric] | dict[int, CustomMetricFamily], id: int) -> None:
        found = held.pop(id, None)
        if found is not None:
            found.close()

    def _answered(self, question: Ask, work: Callable[[], float | int | str]) -> dict[str, object]:
        try:
            return {"call": question.call, "value": work()}
        except ServerError as error:
            return _failed(question, error)

    def _measure(self, question: FamilyAsk | MetricAsk | ValueAsk) -> float | int | str:
        services = self._services
        if services is None:
            raise Unsupported("the server has no metrics")
        if isinstance(question, ValueAsk):
            metric = self._metrics.get(question.id)
            if metric is None:
                raise InvalidArgument("the metric has been deleted")
            value = metric.value()
            return value if math.isfinite(value) else repr(value)  # JSON has no other way to say inf and nan
        if len(self._families) + len(self._metrics) >= MOST_METRICS:
            raise Unavailable(f"model '{self._name}' has {MOST_METRICS} metrics already")
        self._last_id += 1
        if isinstance(question, FamilyAsk):
            self._families[self._last_id] = services.metrics.family(question.name, question.description, question.kind)
        else:
            family = self._families.get(question.family)
            if family is None:
                raise InvalidArgument("the metric family has been deleted")
            self._metrics[self._last_id] = family.metric(question.labels, question.buckets)
        return self._last_id

    # Tasks

    async def _answer_later(self, question: LoadAsk | UnloadAsk | ReadyAsk, contents: bytes) -> None:
        head: dict[str, object] = _failed(question, Internal("the call was given up"))
        try:
            head = {"call": question.call, "value": await self._manage(question, contents)}
        except ServerError as error:
            head = _failed(question, error)
        except Exception as error:
            logger.exception("%s: the server failed to answer %s", self._link.name, type(question).__name__)
            head = _failed(question, Internal(text_of(error)))
        finally:
            self._link.channel.post(encode(RETURN, head))

    async def _manage(self, question: LoadAsk | UnloadAsk | ReadyAsk, contents: bytes) -> bool:
        services = self._services
        if services is None:
            raise Unsupported("the server has no other models")
        models = services.models
        if isinstance(question, ReadyAsk):
            return await models.is_model_ready(question.model, question.version)
        if not self.may_load:
            raise Unsupported("models can be loaded and unloaded in initialize and in execute only")
        if isinstance(question, UnloadAsk):
            await models.unload_model(
                question.model, unload_dependents=question.unload_dependents, loading=self.loading
            )
        else:
            await models.load_model(question.model, _parameters(question, contents), loading=self.loading)
        return True


def _parameters(question: LoadAsk, contents: bytes) -> LoadParameters:
    files: dict[str, bytes] = {}
    position = 0
    for name, size in question.files:
        if not name.startswith(_FILE_PREFIX):
            raise InvalidArgument(f"file '{name}' must be called 'file:<version>/<name>'")
        files[name.removeprefix(_FILE_PREFIX)] = contents[position : position + size]
        position += size
    return LoadParameters(question.config or None, files)


def _failed(question: Ask, error: ServerError) -> dict[str, object]:
    code = ERROR_KINDS.index(error.kind if error.kind in ERROR_KINDS else "INTERNAL")
    return {"call": question.call, "error": [code, error.message]}
