"""The metrics text: Triton's names to the letter, labels, values, and nothing that prometheus-client adds."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import replace

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from actors.metrics.custom import CustomMetrics
from actors.metrics.statistics import VersionSnapshot
from protocol.core import InferStatistics, ModelStatistics, StatisticDuration
from tests.trioton.metrics.texts import text_of
from trioton.metrics.custom import is_own_name
from trioton.metrics.metrics import Metrics

STATISTICS = ModelStatistics(
    name="m",
    version="3",
    inference_count=12,
    execution_count=5,
    inference_stats=InferStatistics(
        success=StatisticDuration(7, 7_000_999),
        fail=StatisticDuration(2, 1),
        queue=StatisticDuration(7, 1_000_000),
        compute_input=StatisticDuration(7, 2_000_000),
        compute_infer=StatisticDuration(7, 3_000_000),
        compute_output=StatisticDuration(7, 4_000_000),
    ),
)
SNAPSHOT = VersionSnapshot(
    model="m",
    version=3,
    metric_tags={"team-name": 'a"b\\c\nd'},
    statistics=STATISTICS,
    pending_requests=4,
    load_seconds=1.5,
    failures={"REJECTED": 2, "CANCELED": 0, "BACKEND": 1, "OTHER": 0},
)
TAG = {"_team_name": 'a"b\\c\nd'}
LABELS = {"model": "m", "version": "3", **TAG}

EXPECTED = {
    "nv_inference_request_success": ("counter", 7),
    "nv_inference_count": ("counter", 12),
    "nv_inference_exec_count": ("counter", 5),
    "nv_inference_request_duration_us": ("counter", 7000),
    "nv_inference_queue_duration_us": ("counter", 1000),
    "nv_inference_compute_input_duration_us": ("counter", 2000),
    "nv_inference_compute_infer_duration_us": ("counter", 3000),
    "nv_inference_compute_output_duration_us": ("counter", 4000),
    "nv_inference_pending_request_count": ("gauge", 4),
    "nv_model_load_duration_secs": ("gauge", 1.5),
}


def samples(text: str) -> Iterable[Sample]:
    return (sample for family in text_string_to_metric_families(text) for sample in family.samples)


def without_suffix(name: str) -> str:
    return name.removesuffix("_total")  # which the parser, too, appends to counters


def test_every_metric_of_a_model() -> None:
    """Name, type, labels and value of each; microseconds are whole."""
    text = text_of(Metrics(lambda: [SNAPSHOT], interval=1))
    for name, (kind, value) in EXPECTED.items():
        assert f"# TYPE {name} {kind}\n" in text
        assert f"\n{name}{{" in text
        found = [(s.labels, s.value) for s in samples(text) if without_suffix(s.name) == name]
        assert found == [(LABELS, value)], name


def test_failures_by_reason() -> None:
    text = text_of(Metrics(lambda: [SNAPSHOT], interval=1))
    assert "# TYPE nv_inference_request_failure counter\n" in text
    found = {s.labels["reason"]: s for s in samples(text) if without_suffix(s.name) == "nv_inference_request_failure"}
    assert {reason: sample.value for reason, sample in found.items()} == SNAPSHOT.failures
    assert found["BACKEND"].labels == {**LABELS, "reason": "BACKEND"}


def test_batches_by_why_they_went() -> None:
    """Of models that batch, those that have occurred; where none does the family is not there."""
    flushed = dataclasses.replace(SNAPSHOT, flushes={"full": 3, "timeout": 0})
    text = text_of(Metrics(lambda: [flushed, SNAPSHOT], interval=1))
    assert "# TYPE trioton_batch_flush_total counter\n" in text
    found = [(s.labels, s.value) for s in samples(text) if s.name == "trioton_batch_flush_total"]
    assert found == [({**LABELS, "reason": "full"}, 3)]
    assert "trioton_batch_flush_total" not in text_of(Metrics(lambda: [SNAPSHOT], interval=1))


def test_no_names_but_triton_s() -> None:
    """No `_total`, no `_created`, and the help texts are there. Our own names say that they are."""
    text = text_of(Metrics(lambda: [SNAPSHOT], interval=1))
    names = {line.split("{")[0].split(" ")[0] for line in text.splitlines() if not line.startswith("#")}
    assert names >= {*EXPECTED, "nv_inference_request_failure"}
    of_triton = {name for name in names if not name.startswith("trioton_")}
    assert all(name.startswith("nv_") and not name.endswith(("_total", "_created")) for name in of_triton)
    assert "# HELP nv_inference_count Number of inferences performed (does not include cached requests)\n" in text


def test_without_models_the_families_are_still_described() -> None:
    text = text_of(Metrics(list, interval=1))
    assert "# TYPE nv_inference_count counter\n" in text
    assert "\nnv_inference_count" not in text


def test_values_are_read_when_they_are_asked_for() -> None:
    """And two servers do not share them."""
    loaded: list[VersionSnapshot] = []
    one, other = Metrics(lambda: loaded, interval=1), Metrics(list, interval=1)
    assert 'model="m"' not in text_of(one)
    loaded.append(SNAPSHOT)
    assert 'model="m"' in text_of(one)
    assert 'model="m"' not in text_of(other)


def test_cache_metrics_are_there_for_models_with_a_cache_only() -> None:
    """Counts, and durations in whole microseconds."""
    counted = InferStatistics(cache_hit=StatisticDuration(3, 9_999), cache_miss=StatisticDuration(2, 4_000))
    cached = replace(SNAPSHOT, model="c", statistics=replace(STATISTICS, inference_stats=counted), has_cache=True)
    text = text_of(Metrics(lambda: [SNAPSHOT, cached], interval=1))
    found = {
        without_suffix(s.name): (s.labels["model"], s.value) for s in samples(text) if s.name.startswith("nv_cache_")
    }
    assert found == {
        "nv_cache_num_hits_per_model": ("c", 3),
        "nv_cache_num_misses_per_model": ("c", 2),
        "nv_cache_hit_duration_per_model": ("c", 9),
        "nv_cache_miss_duration_per_model": ("c", 4),
    }
    assert "nv_cache_" not in text_of(Metrics(lambda: [SNAPSHOT], interval=1))


def test_what_models_count_for_themselves() -> None:
    """Under their names, with no suffix, a histogram with all its samples; an empty family without any."""
    custom = CustomMetrics(is_own_name)
    counter = custom.family("pages_read", "pages", "counter").metric({"model": "ocr"}, ())
    counter.increment(3)
    histogram = custom.family("lines", "lines of a page", "histogram").metric({}, [1.0, 10.0])
    for value in (1, 5, 50):
        histogram.observe(value)
    custom.family("nothing_yet", "", "gauge")
    text = text_of(Metrics(list, interval=1, custom=custom.values))
    assert '# HELP pages_read pages\n# TYPE pages_read counter\npages_read{model="ocr"} 3.0\n' in text
    found = {(s.name, s.labels.get("le")): s.value for s in samples(text) if s.name.startswith("lines")}
    assert found == {
        ("lines_bucket", "1.0"): 1,
        ("lines_bucket", "10.0"): 2,
        ("lines_bucket", "+Inf"): 3,
        ("lines_sum", None): 56,
        ("lines_count", None): 3,
    }
    assert "# TYPE nothing_yet gauge\n" in text


def test_what_models_count_is_shown_as_it_is_now() -> None:
    """What stands before the values is kept between scrapes, but not where a metric comes again with other bounds."""
    custom = CustomMetrics()
    metrics = Metrics(list, interval=1, custom=custom.values)
    family = custom.family("sizes", "", "histogram")

    def shown() -> list[str]:
        return [line for line in text_of(metrics).splitlines() if line.startswith("sizes")]

    labels = {"model": 'a "b"\\\n'}
    escaped = r'model="a \"b\"\\\n"'
    held = family.metric(labels, [1.0])
    for count in (0, 2):
        held.observe(0.5, count)
        assert shown() == [
            f'sizes_bucket{{le="1.0",{escaped}}} {count}',
            f'sizes_bucket{{le="+Inf",{escaped}}} {count}',
            f"sizes_sum{{{escaped}}} {count / 2}",
            f"sizes_count{{{escaped}}} {count}",
        ]
    held.close()
    assert shown() == []
    family.metric(labels, [2.0])
    assert shown()[0] == f'sizes_bucket{{le="2.0",{escaped}}} 0'


def test_every_name_of_the_servers_own_is_kept_from_models() -> None:
    text = text_of(Metrics(lambda: [SNAPSHOT], interval=1))
    assert all(is_own_name(sample.name) for sample in samples(text))
