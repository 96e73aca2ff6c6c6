"""`--metrics-config`: groups, quantiles, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from trioton.metrics_flags import DEFAULT_QUANTILES, metric_setting
from trioton.settings import Settings


def settings(*texts: str) -> Settings:
    return Settings(model_repository=(Path("/models"),), metrics_config=tuple(map(metric_setting, texts)))


def test_the_groups_by_default() -> None:
    chosen = settings()
    assert chosen.shows_metrics("counter_latencies")
    assert chosen.shows_metrics("histogram_latencies")
    assert not chosen.shows_metrics("summary_latencies")
    assert chosen.summary_quantiles() == ()
    assert (chosen.allow_cpu_metrics, chosen.allow_gpu_metrics) == (True, True)


def test_the_last_one_counts() -> None:
    chosen = settings("histogram_latencies=false", "counter_latencies=false", "counter_latencies=true")
    assert chosen.shows_metrics("counter_latencies")
    assert not chosen.shows_metrics("histogram_latencies")


def test_summaries_have_tritons_quantiles_or_others() -> None:
    assert settings("summary_latencies=true").summary_quantiles() == DEFAULT_QUANTILES
    assert settings("summary_quantiles=0.5:0.05,0.25:0.1", "summary_latencies=1").summary_quantiles() == (0.5, 0.25)
    assert settings("summary_quantiles=0.5:0.05").summary_quantiles() == ()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("summary_latencies", "--metrics-config option format is <setting>=<value>"),
        ("latencies=true", "expected counter_latencies, histogram_latencies, summary_latencies or summary_quantiles"),
        ("summary_quantiles=", "got ''"),
        ("summary_quantiles=0.5", "got '0.5'"),
        ("summary_quantiles=0.5:x", "got '0.5:x'"),
        ("summary_quantiles=0.5:0.1,nan:0.1", "got 'nan:0.1'"),
        ("summary_quantiles=1.5:0.1", "with numbers from 0 to 1, got '1.5:0.1'"),
    ],
)
def test_what_is_refused(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        metric_setting(text)
