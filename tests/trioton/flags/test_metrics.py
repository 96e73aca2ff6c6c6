"""`--metrics-config`: groups, quantiles, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from actors.metrics.latencies import HistogramDetail
from trioton.flags.metrics import DEFAULT_QUANTILES, metric_setting
from trioton.settings import Settings


def settings(*texts: str) -> Settings:
    return Settings(model_repository=(Path("/models"),), metrics_config=tuple(map(metric_setting, texts)))


def test_the_groups_by_default() -> None:
    chosen = settings()
    assert chosen.shows_metrics("counter_latencies")
    assert chosen.shows_metrics("histogram_latencies")
    assert chosen.histogram_detail() is HistogramDetail.FEW
    assert not chosen.shows_metrics("summary_latencies")
    assert chosen.summary_quantiles() == ()
    assert (chosen.allow_cpu_metrics, chosen.allow_gpu_metrics) == (True, True)


def test_the_last_one_counts() -> None:
    chosen = settings("histogram_latencies=false", "counter_latencies=false", "counter_latencies=true")
    assert chosen.shows_metrics("counter_latencies")
    assert not chosen.shows_metrics("histogram_latencies")
    assert chosen.histogram_detail() is HistogramDetail.NONE
    assert settings("histogram_latencies=true").histogram_detail() is HistogramDetail.ALL


def test_summaries_have_tritons_quantiles_or_others() -> None:
    assert settings("summary_latencies=true").summary_quantiles() == DEFAULT_QUANTILES
    assert settings("summary_quantiles=0.5:0.05,0.25:0.1", "summary_latencies=1").summary_quantiles() == (0.5, 0.25)
    assert settings("summary_quantiles=0.5:0.05").summary_quantiles() == ()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("summary_latencies", "--metrics-config option format is <setting>=<value>"),
        ("latencies=true", "expected counter_latencies, histogram_latencies, summary_latencies or summary_quantiles"),
        ("summary_quantiles=", "--metrics-config option format is <setting>=<value>"),
    ],
)
def test_what_is_refused(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        metric_setting(text)


@pytest.mark.parametrize(
    ("text", "quantiles", "skipped"),
    [
        ("0.5:0.05, 0.9:0.01", (0.5, 0.9), 0),
        ("0.5:0.05 0.9:0.01", (0.5,), 0),  # what follows a number is not looked at
        (".5x:1e-2y,1.:0", (0.5, 1.0), 0),
        ("0.5:0.1,0.50:0.2", (0.5,), 0),
        ("0.5,0.9:0.01,", (0.9,), 2),
        ("0.5:x,nan:0.1,1.5:0.1,-1:0.1,0.25:0.1", (0.25,), 4),
        ("0.5", DEFAULT_QUANTILES, 1),
    ],
)
def test_quantiles_are_read_as_leniently_as_triton_reads_them(
    text: str, quantiles: tuple[float, ...], skipped: int
) -> None:
    """A pair that is none is skipped, and the log says which."""
    chosen = settings("summary_latencies=true", f"summary_quantiles={text}")
    assert chosen.summary_quantiles() == quantiles
    assert len(chosen.notices()) == skipped


def test_a_later_flag_without_a_quantile_leaves_the_earlier_ones() -> None:
    chosen = settings("summary_latencies=true", "summary_quantiles=0.5:0.1", "summary_quantiles=x")
    assert chosen.summary_quantiles() == (0.5,)
