"""OpenTelemetry's metrics of calls to generative models, as a scrape has them."""

from __future__ import annotations

import msgspec
import pytest

from actors.metrics.custom import CustomMetrics
from actors.metrics.gen_ai import MOST_SERIES, GenAiMetrics
from protocol.gen_ai import EndedCall

CALL = EndedCall("chat", "m", "m", "", 1.5, 0.25, 0.03)
LABELS = {
    "gen_ai_operation_name": "chat",
    "gen_ai_provider_name": "trioton",
    "gen_ai_request_model": "m",
    "gen_ai_response_model": "m",
}
DURATION = "gen_ai_server_request_duration_seconds"


def test_the_names_labels_and_bounds_are_those_of_the_conventions() -> None:
    custom = CustomMetrics()
    GenAiMetrics(custom).record(CALL)
    found = {family.name: list(family.values) for family in custom.values()}
    assert {name: values[0].bounds for name, values in found.items()} == {
        DURATION: pytest.approx(
            (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
        ),
        "gen_ai_server_time_to_first_token_seconds": (
            *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1, 2.5, 5, 7.5, 10),
        ),
        "gen_ai_server_time_per_output_token_seconds": (
            *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1, 2.5),
        ),
    }
    assert [values[0].value for values in found.values()] == [1.5, 0.03, 0.25]
    assert all(values[0].labels == LABELS for values in found.values())


def test_a_failure_has_its_error_and_a_duration_only() -> None:
    custom = CustomMetrics()
    GenAiMetrics(custom).record(EndedCall("chat", "m", "m", "OVERLOADED", 0.5))
    [found] = custom.find(DURATION)
    assert found.labels == {**LABELS, "error_type": "OVERLOADED"}
    assert custom.find("gen_ai_server_time_to_first_token_seconds") == []


def test_what_was_not_seen_for_longest_is_forgotten() -> None:
    custom = CustomMetrics()
    metrics = GenAiMetrics(custom)
    metrics.record(CALL)
    for place in range(MOST_SERIES):
        metrics.record(msgspec.structs.replace(CALL, request_model=f"m{place}"))
        metrics.record(CALL)
    models = {each.labels["gen_ai_request_model"] for each in custom.find(DURATION)}
    assert len(models) == MOST_SERIES
    assert "m" in models
    assert "m0" not in models


def test_without_metrics_nothing_is_recorded() -> None:
    GenAiMetrics(CustomMetrics(is_enabled=False)).record(CALL)
