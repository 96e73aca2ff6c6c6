"""The text of metrics in both formats, read back by prometheus-client's parsers."""

from __future__ import annotations

from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families as prometheus_families

from actors.metrics.exemplars import Exemplar
from tests.sliced import finished
from tests.trioton.metrics.texts import text_of
from trioton.metrics.exposition import Exposition
from trioton.metrics.families import Family, Sample, Series, gauge, histogram_samples

NASTY = 'a"b\\c\nd'
EXEMPLAR = Exemplar("0" * 31 + "1", "f" * 16, 150.0, 1_700_000_000.5)
COUNTER = Family("trioton_things_total", "counter", 'Things, "quoted"')
TRITONS = Family("nv_inference_count", "counter", "Without an ending")
HISTOGRAM = Family("waits_us", "histogram", "Waits\nand more")


def series() -> list[Series]:
    return [
        Series(COUNTER, (("model", NASTY),), (Sample(3, labels=(("reason", "x"),)),)),
        Series(
            HISTOGRAM, (("model", "m"),), histogram_samples((100.0, 200.0), (1, 2, 3), 999.5, (None, EXEMPLAR, None))
        ),
        Series(TRITONS, (("model", "m"),), (Sample(7),)),
        gauge("lowest", "", float("-inf")),
        gauge("nothing", "", float("nan")),
        Series(COUNTER, (("model", "n"),), (Sample(4, labels=(("reason", "x"),)),)),
    ]


def test_prometheus_text() -> None:
    """Samples of one family stand together, names are as they are, and there are no exemplars."""
    text = text_of(Exposition([lambda: iter(series())]))
    assert text.startswith(
        '# HELP trioton_things_total Things, "quoted"\n'
        "# TYPE trioton_things_total counter\n"
        'trioton_things_total{model="a\\"b\\\\c\\nd",reason="x"} 3\n'
        'trioton_things_total{model="n",reason="x"} 4\n'
        "# HELP waits_us Waits\\nand more\n# TYPE waits_us histogram\n"
        'waits_us_bucket{le="100.0",model="m"} 1\n'
        'waits_us_bucket{le="200.0",model="m"} 2\n'
    )
    assert text.endswith(
        "# HELP lowest \n# TYPE lowest gauge\nlowest -Inf\n# HELP nothing \n# TYPE nothing gauge\nnothing NaN\n"
    )
    assert "# TYPE nv_inference_count counter\n" in text
    families = {family.name: family for family in prometheus_families(text)}
    assert [sample.labels["model"] for sample in families["trioton_things"].samples] == [NASTY, "n"]


def test_openmetrics() -> None:
    """Counters without their ending are of no known type, a bucket has its exemplar, and the end is marked."""
    text = text_of(Exposition([lambda: iter(series())]), is_openmetrics=True)
    assert text.endswith("\n# EOF\n")
    families = {family.name: family for family in openmetrics_families(text)}  # type: ignore[no-untyped-call]  # it has no types
    assert {name: family.type for name, family in families.items()} == {
        "trioton_things": "counter",
        "waits_us": "histogram",
        "nv_inference_count": "unknown",
        "lowest": "gauge",
        "nothing": "gauge",
    }
    assert families["trioton_things"].documentation == 'Things, "quoted"'
    exemplars = [sample.exemplar for sample in families["waits_us"].samples]
    assert [each is not None for each in exemplars] == [False, True, False, False, False]
    assert exemplars[1] is not None
    assert exemplars[1].labels == {"trace_id": EXEMPLAR.trace_id, "span_id": EXEMPLAR.span_id}
    assert (exemplars[1].value, float(str(exemplars[1].timestamp))) == (150.0, 1_700_000_000.5)


def test_what_stands_before_values_is_kept_while_it_is_shown() -> None:
    """And no longer: what a model that went away has shown costs no memory."""
    shown = series()
    exposition = Exposition([lambda: iter(shown)])
    first = text_of(exposition)
    kept = exposition._kept
    assert text_of(exposition) == first
    assert all(exposition._kept[key] is starts for key, starts in kept.items())
    shown = series()[:1]
    finished(exposition.render())
    assert list(exposition._kept) == [("trioton_things_total", (("model", NASTY),))]
