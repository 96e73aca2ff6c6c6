"""The metrics that models define: names, sharing, buckets, and how long they live."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from actors.metrics.custom import CustomMetrics, FamilyValues, MetricValue
from backends.services import MetricKind
from protocol.errors import AlreadyExists, InvalidArgument, ServerError, Unsupported


def shown(metrics: CustomMetrics) -> list[FamilyValues]:
    return [replace(family, values=list(family.values)) for family in metrics.values()]


def test_values_are_shown_as_they_are() -> None:
    metrics = CustomMetrics()
    requests = metrics.family("requests", "so many", "counter").metric({"b": "2", "a": "1"}, ())
    requests.increment(2)
    requests.increment(0.5)
    level = metrics.family("level", "", "gauge").metric({}, ())
    level.set(7)
    level.increment(-9)
    assert (requests.value(), level.value()) == (2.5, -2)
    assert shown(metrics) == [
        FamilyValues("level", "", "gauge", [MetricValue({}, -2.0, (), [])]),
        FamilyValues("requests", "so many", "counter", [MetricValue({"a": "1", "b": "2"}, 2.5, (), [])]),
    ]


@pytest.mark.parametrize("bounds", [[1.0, 2.0], [1.0, 2.0, math.inf]])
def test_a_histogram_counts_up_to_each_bound(bounds: list[float]) -> None:
    """A value on a bound belongs beneath it."""
    metrics = CustomMetrics()
    sizes = metrics.family("sizes", "", "histogram").metric({}, bounds)
    for size in (0.5, 1.0, 1.5, 2.5, 99.0):
        sizes.observe(size)
    ((value,),) = [family.values for family in shown(metrics)]
    assert (value.bounds, list(value.cumulative), value.value) == ((1.0, 2.0), [2, 3, 5], 104.5)


def test_equal_names_share_their_values() -> None:
    """Of two models that make one family, each with the same labels in another order; the first description stays."""
    metrics = CustomMetrics()
    first, second = (metrics.family("f", text, "counter") for text in ("one", "two"))
    one, two, other = first.metric({"a": "", "b": ""}, ()), second.metric({"b": "", "a": ""}, ()), second.metric({}, ())
    one.increment(1)
    two.increment(1)
    assert (one.value(), two.value(), other.value()) == (2, 2, 0)
    assert [(family.description, len(list(family.values))) for family in shown(metrics)] == [("one", 2)]


def test_a_value_vanishes_with_its_last_holder() -> None:
    metrics = CustomMetrics()
    families = [metrics.family("f", "", "counter") for _ in range(2)]
    held = [family.metric({}, ()) for family in families]
    held[0].increment(3)
    for _ in range(2):
        held[0].close()
        families[0].close()
    assert held[1].value() == 3
    held[1].close()
    assert [list(family.values) for family in shown(metrics)] == [[]]
    families[1].close()
    assert shown(metrics) == []
    assert metrics.family("f", "", "gauge").metric({}, ()).value() == 0


@pytest.mark.parametrize(
    ("name", "kind", "error", "words"),
    [
        ("nv_mine", "counter", AlreadyExists, "'nv_mine' is a metric of the server's own"),
        ("there", "gauge", AlreadyExists, "'there' exists already, as a counter and not as a gauge"),
        ("sizes_sum", "gauge", AlreadyExists, "'sizes_sum' belongs to the metric family 'sizes' already"),
        ("a", "histogram", AlreadyExists, "'a_count' belongs to the metric family 'a_count' already"),
        ("1st", "counter", InvalidArgument, "'1st' is no name"),
        ("", "counter", InvalidArgument, "'' is no name"),
        ("a b", "counter", InvalidArgument, "'a b' is no name"),
        ("a\n", "counter", InvalidArgument, "is no name"),
    ],
)
def test_names_that_cannot_be(name: str, kind: MetricKind, error: type[ServerError], words: str) -> None:
    metrics = CustomMetrics(lambda name: name.startswith("nv_"))
    metrics.family("there", "", "counter")
    metrics.family("sizes", "", "histogram")
    metrics.family("a_count", "", "gauge")
    before = shown(metrics)
    with pytest.raises(error, match=words):
        metrics.family(name, "", kind)
    assert shown(metrics) == before


@pytest.mark.parametrize(
    ("labels", "buckets", "words"),
    [
        ({"le": "1"}, [1.0], "'le' is no name for a label"),
        ({"__name__": "x"}, [1.0], "'__name__' is no name for a label"),
        ({"a-b": "x"}, [1.0], "'a-b' is no name for a label"),
        ({}, [2.0, 1.0], r"must ascend, got \[2.0, 1.0\]"),
        ({}, [1.0, 1.0], "must ascend"),
        ({}, [math.nan], "must ascend"),
        ({"is": "there"}, [5.0], r"has the buckets \[1.0\] already, got \[5.0\]"),
    ],
)
def test_labels_and_buckets_that_cannot_be(labels: dict[str, str], buckets: list[float], words: str) -> None:
    family = CustomMetrics().family("f", "", "histogram")
    family.metric({"is": "there"}, [1.0])
    with pytest.raises(InvalidArgument, match=words):
        family.metric(labels, buckets)


def test_without_metrics_there_are_none() -> None:
    with pytest.raises(Unsupported, match="metrics are not enabled"):
        CustomMetrics(is_enabled=False).family("f", "", "counter")


# The server's own backends


def test_a_backend_of_the_servers_own_may_use_its_names() -> None:
    metrics = CustomMetrics(lambda name: name.startswith("trioton_"))
    own = metrics.family("trioton_tokens", "", "counter", is_own=True)
    own.metric({}, ()).increment(1)
    with pytest.raises(AlreadyExists, match="'trioton_others' is a metric of the server's own"):
        metrics.family("trioton_others", "", "counter")
    assert [value.value for value in metrics.find("trioton_tokens")] == [1]
    assert metrics.find("unknown") == []


def test_its_histograms_can_be_off_while_those_of_models_are_on() -> None:
    metrics = CustomMetrics(has_histograms=False)
    metrics.family("of_a_model", "", "histogram")
    metrics.family("own", "", "counter", is_own=True)
    with pytest.raises(Unsupported, match="histograms are not enabled"):
        metrics.family("sizes", "", "histogram", is_own=True)


def test_its_metric_with_other_bounds_takes_the_place_of_the_one_before() -> None:
    """Whose holder lets go of it later, and counts on meanwhile for nobody."""
    metrics = CustomMetrics()
    family = metrics.family("sizes", "", "histogram", is_own=True)
    before = family.metric({}, [1.0])
    after = family.metric({}, [1.0, 2.0])
    before.observe(5)
    after.observe(5, 3)
    before.close()
    [found] = metrics.find("sizes")
    assert (found.bounds, list(found.cumulative), found.value) == ((1.0, 2.0), [0, 0, 3], 15.0)
    after.close()
    assert metrics.find("sizes") == []
