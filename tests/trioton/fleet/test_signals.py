"""The scaling signal from the text of metrics."""

from __future__ import annotations

import math

import pytest

from trioton.fleet.flags import Signal
from trioton.fleet.signals import Figures, SignalReader, quantile, read_figures

TEXT = """\
# HELP nv_inference_pending_request_count Instantaneous number of pending requests awaiting execution per-model.
nv_inference_pending_request_count{model="a",version="1"} 3
nv_inference_pending_request_count{model="b, with \\"quotes\\" {}",version="1"} 2
trioton_requests_in_flight{model="a",version="1"} 7
trioton_open_sequences{model="a",version="1"} 1
nv_inference_request_duration_histogram_us_bucket{le="1000.0",model="a"} 90
nv_inference_request_duration_histogram_us_bucket{le="2000.0",model="a"} 100
nv_inference_request_duration_histogram_us_bucket{le="+Inf",model="a"} 100
nv_inference_request_duration_histogram_us_bucket{le="1000.0",model="b"} 10
nv_inference_request_duration_histogram_us_bucket{le="2000.0",model="b"} 10
nv_inference_request_duration_histogram_us_bucket{le="+Inf",model="b"} 10
something_else NaN
a line that is none
"""


def test_figures_are_sums_over_models() -> None:
    assert read_figures(TEXT) == Figures(5, 7, 1, {1.0: 100, 2.0: 110, math.inf: 110})


def test_nothing_can_be_read_from_nothing() -> None:
    assert read_figures("") == Figures()


@pytest.mark.parametrize(("signal", "value"), [(Signal.QUEUE, 3.0), (Signal.IN_FLIGHT, 15.0)])
def test_the_signal_is_that_of_the_mean_replica(signal: Signal, value: float) -> None:
    assert SignalReader(signal).read({"a": Figures(2, 10), "b": Figures(4, 20)}) == value


def test_without_figures_there_is_no_signal() -> None:
    assert SignalReader(Signal.QUEUE).read({}) is None


def test_the_percentile_is_that_of_the_requests_since_the_last_reading() -> None:
    reader = SignalReader(Signal.P99)
    slow, quick = {10.0: 0.0, 100.0: 1000.0, math.inf: 1000.0}, {10.0: 500.0, 100.0: 1500.0, math.inf: 1500.0}
    assert reader.read({"a": Figures(durations=slow)}) == 0.0  # what was before says nothing of now
    assert reader.read({"a": Figures(durations=quick)}) == pytest.approx(9.9)
    assert reader.read({"a": Figures(durations=quick)}) == 0.0


def test_a_replica_that_was_started_anew_counts_from_its_start() -> None:
    reader = SignalReader(Signal.P99)
    reader.read({"a": Figures(durations={10.0: 100.0, math.inf: 100.0})})
    assert reader.read({"a": Figures(durations={10.0: 5.0, math.inf: 5.0})}) == 0.0


@pytest.mark.parametrize(
    ("counts", "value"),
    [
        ({}, None),
        ({1.0: 0.0}, None),
        ({1.0: 0.0, 2.0: 100.0, math.inf: 100.0}, 1.99),
        ({1.0: 1.0, 2.0: 1.0, math.inf: 100.0}, 2.0),  # beyond the last bound it is that bound
    ],
)
def test_quantiles_are_as_prometheus_has_them(counts: dict[float, float], value: float | None) -> None:
    found = quantile(counts, 0.99)
    assert found == (None if value is None else pytest.approx(value))
