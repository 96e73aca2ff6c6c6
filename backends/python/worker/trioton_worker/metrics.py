"""`pb_utils.MetricFamily` and `Metric`: custom metrics.

The server holds the values, since several models and instances may share them; a worker checks what it can, and sends
changes without waiting.
"""

from __future__ import annotations

import enum
import json
import math
from typing import Any, Sequence

from .arguments import to_float, to_text
from .errors import TritonModelException
from .frames import METRIC, METRIC_KINDS
from .questions import ask
from .session import Session, session

_DELETED = (
    "Invalid metric operation as the corresponding 'MetricFamily' has been deleted. The 'MetricFamily' object should "
    "be deleted AFTER its corresponding 'Metric' objects have been deleted."
)


class MetricKind(enum.IntEnum):
    """Places in `frames.METRIC_KINDS`."""

    COUNTER = 0
    GAUGE = 1
    HISTOGRAM = 2


class _Family:
    """What a family and its metrics share. Its end is that of the MetricFamily, whoever else holds it. The server knows
    its number only in the session in which it was made."""

    __slots__ = ("id", "is_deleted", "kind", "session")

    def __init__(self, id: int, kind: MetricKind, session: Session | None) -> None:
        self.id = id
        self.kind = kind
        self.session = session
        self.is_deleted = False

    def tell(self, head: dict[str, Any]) -> None:
        """Change something, without waiting; also from a finalizer, in whatever thread."""
        if self.session is not None:
            self.session.connection.send_from_anywhere(METRIC, head)

    def ask(self, head: dict[str, Any], problem: str) -> Any:
        return ask(head, problem, here=self.session)


class MetricFamily:
    """A metric by its name. Families of one name and kind are one, whichever models made them."""

    COUNTER = MetricKind.COUNTER
    GAUGE = MetricKind.GAUGE
    HISTOGRAM = MetricKind.HISTOGRAM

    __slots__ = ("_family",)

    def __init__(self, name: str, description: str, kind: MetricKind) -> None:
        name = to_text(name, "MetricFamily: name")
        description = to_text(description, "MetricFamily: description")
        if not isinstance(kind, MetricKind):
            raise TypeError(f"MetricFamily: kind must be one of MetricFamily's kinds, found type {type(kind)}")
        head = {"do": "family", "name": name, "description": description, "kind": METRIC_KINDS[kind]}
        here = session()
        self._family = _Family(ask(head, "Error when creating MetricFamily: ", here=here), kind, here)

    def Metric(  # noqa: N802 (Triton's name)
        self, labels: dict[str, str] | None = None, buckets: Sequence[float] | None = None
    ) -> Metric:
        """The metric with these labels; a histogram has buckets, ascending."""
        if labels is not None and not isinstance(labels, dict):
            raise TritonModelException("Failed to create metric. Labels must be a dictionary.")
        if buckets is not None and not isinstance(buckets, list):
            raise TritonModelException("Failed to create metric. Buckets must be a list.")
        is_histogram = self._family.kind is MetricKind.HISTOGRAM
        if buckets is not None and not is_histogram:
            raise TritonModelException("Failed to create metric. Unexpected buckets found.")
        if buckets is None and is_histogram:
            raise TritonModelException("Failed to create metric. Missing required buckets.")
        head = {
            "do": "metric",
            "family": self._family.id,
            "labels": _checked_labels(labels),
            "buckets": [to_float(bound, "Metric: each of buckets") for bound in buckets or ()],
        }
        return Metric(self._family.ask(head, "Error when creating Metric: "), self._family)

    def __del__(self) -> None:
        family = getattr(self, "_family", None)  # there is none where its creation has failed
        if family is not None:
            family.is_deleted = True
            family.tell({"do": "drop_family", "id": family.id})


class Metric:
    """One value of a family. Made by `MetricFamily.Metric`."""

    __slots__ = ("_family", "_id")

    def __init__(self, id: int, family: _Family) -> None:
        self._id = id
        self._family = family

    def increment(self, value: float, /) -> None:
        """Counters go up only."""
        value = to_float(value, "Metric.increment: value")
        self._check("Failed to increment metric value: ", "Increment", (MetricKind.COUNTER, MetricKind.GAUGE))
        if self._family.kind is MetricKind.COUNTER and not value >= 0:
            raise TritonModelException(
                "Failed to increment metric value: TRITONSERVER_METRIC_KIND_COUNTER can only be incremented "
                "monotonically by non-negative values."
            )
        self._change("increment", value)

    def set(self, value: float, /) -> None:
        value = to_float(value, "Metric.set: value")
        self._check("Failed to set metric value: ", "Set", (MetricKind.GAUGE,))
        self._change("set", value)

    def observe(self, value: float, /) -> None:
        value = to_float(value, "Metric.observe: value")
        self._check("Failed to observe metric value: ", "Observe", (MetricKind.HISTOGRAM,))
        self._change("observe", value)

    def value(self) -> float:
        """As it is now, with the changes of every other holder."""
        problem = "Failed to get metric value: "
        self._check(problem, "Value", (MetricKind.COUNTER, MetricKind.GAUGE))
        return float(self._family.ask({"do": "value", "id": self._id}, problem))

    def _check(self, problem: str, what: str, kinds: tuple[MetricKind, ...]) -> None:
        if self._family.is_deleted:
            raise TritonModelException(_DELETED)
        kind = self._family.kind
        if kind not in kinds:
            raise TritonModelException(f"{problem}TRITONSERVER_METRIC_KIND_{kind.name} does not support {what}")

    def _change(self, what: str, number: float) -> None:
        # JSON has no other way to say inf and nan.
        self._family.tell({"do": what, "id": self._id, "value": number if math.isfinite(number) else repr(number)})

    def __del__(self) -> None:
        if not self._family.is_deleted:
            self._family.tell({"do": "drop_metric", "id": self._id})


def _checked_labels(labels: dict[str, str] | None) -> dict[str, str]:
    """As they cross: keys become text as those of JSON objects do, values must be text."""
    found: dict[str, str] = json.loads(json.dumps(labels or {}))
    for name, value in found.items():
        if not isinstance(value, str):
            raise TritonModelException(
                f"Error when creating Metric: label '{name}' must have a value of type str, found {value!a}"
            )
    return found
