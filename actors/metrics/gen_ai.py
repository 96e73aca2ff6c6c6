"""OpenTelemetry's metrics of calls to generative models, in Prometheus' form. Implements `protocol.gen_ai.GenAi`.

Flow: observed calls → [these] → the server's custom metrics. Models come and go, and their names are clients' words: of
more than `MOST_SERIES` kinds of calls those are forgotten that were not seen for longest.
"""

from __future__ import annotations

from collections import OrderedDict
from contextlib import suppress
from typing import TypeAlias

from actors.metrics.custom import CustomMetrics, FamilyHandle, MetricHandle
from protocol.errors import Unsupported
from protocol.gen_ai import PROVIDER, EndedCall

MOST_SERIES = 256

# Source: OpenTelemetry, "Generative AI metrics".
_FIRST_TOKEN = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
_PER_TOKEN = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
_DURATION = tuple(0.01 * 2**power for power in range(14))

_FAMILIES = (
    ("gen_ai_server_request_duration_seconds", "From the arrival of a call to its end", _DURATION),
    ("gen_ai_server_time_to_first_token_seconds", "From the arrival of a call to its first token", _FIRST_TOKEN),
    ("gen_ai_server_time_per_output_token_seconds", "Mean time of a token after the first one", _PER_TOKEN),
)

_Kind: TypeAlias = tuple[str, str, str, str]


class GenAiMetrics:
    """Those of one server."""

    def __init__(self, metrics: CustomMetrics) -> None:
        self._families: list[tuple[FamilyHandle, tuple[float, ...]]] = []
        with suppress(Unsupported):  # the server shows no metrics
            for name, description, bounds in _FAMILIES:
                self._families.append((metrics.family(name, description, "histogram"), bounds))
        self._series: OrderedDict[_Kind, dict[int, MetricHandle]] = OrderedDict()

    def record(self, call: EndedCall) -> None:
        if not self._families:
            return
        kind = (call.operation, call.request_model, call.response_model, call.error_type)
        series = self._series.setdefault(kind, {})
        self._series.move_to_end(kind)
        if len(self._series) > MOST_SERIES:
            _, forgotten = self._series.popitem(last=False)
            for each in forgotten.values():
                each.close()
        for place, seconds in enumerate((call.seconds, call.first_token_seconds, call.per_token_seconds)):
            if seconds is not None:
                self._metric(series, place, kind).observe(seconds)

    def _metric(self, series: dict[int, MetricHandle], place: int, kind: _Kind) -> MetricHandle:
        found = series.get(place)
        if found is None:
            operation, request_model, response_model, error_type = kind
            labels = {
                "gen_ai_operation_name": operation,
                "gen_ai_provider_name": PROVIDER,
                "gen_ai_request_model": request_model,
                "gen_ai_response_model": response_model,
            }
            family, bounds = self._families[place]
            found = series[place] = family.metric(labels | ({"error_type": error_type} if error_type else {}), bounds)
        return found
