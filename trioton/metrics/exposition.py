"""Exposition: the text of metrics, in Prometheus' text format 0.0.4 or in OpenMetrics 1.0.

Names are as they are: Triton's counters do not end in `_total`, and dashboards ask for Triton's names. OpenMetrics
allows no such counter, so there they are of type `unknown`. Sources: Prometheus, "Text-based format"; OpenMetrics.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeAlias

from actors.metrics.exemplars import Exemplar
from protocol.sync.sliced import Sliced
from trioton.metrics.families import Family, Labels, Sample, Series, Source

_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n"})
_LABEL_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})
_TOTAL = "_total"

# What stands before the value of a sample, by what is the sample's own.
_Starts: TypeAlias = dict[tuple[str, Labels], str]


class Exposition:
    """The text of what the sources give. What stands before the values is kept from one scrape to the next, for the
    series that the last scrape has shown."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self._sources = sources
        self._kept: dict[tuple[str, Labels], _Starts] = {}

    def render(self, is_openmetrics: bool = False) -> Sliced[list[bytes]]:
        """The text in parts, one for each family."""
        texts: dict[Family, list[str]] = {}
        kept: dict[tuple[str, Labels], _Starts] = {}
        for source in self._sources:
            for series in source():
                key = (series.family.name, series.labels)
                starts = kept[key] = self._kept.get(key) or {}
                texts.setdefault(series.family, []).append(_text(series, starts, with_exemplars=is_openmetrics))
                yield
        self._kept = kept
        head = _openmetrics_head if is_openmetrics else _prometheus_head
        parts: list[bytes] = []
        for family, lines in texts.items():
            parts.append(f"{head(family)}{''.join(lines)}".encode())
            yield
        return [*parts, b"# EOF\n"] if is_openmetrics else parts


def _text(series: Series, starts: _Starts, *, with_exemplars: bool) -> str:
    lines: list[str] = []
    for sample in series.samples:
        key = (sample.suffix, sample.labels)
        start = starts.get(key)
        if start is None:
            start = starts[key] = _start(series, sample)
        exemplar = sample.exemplar
        end = "" if exemplar is None or not with_exemplars else _exemplar(exemplar)
        lines.append(f"{start}{_number(sample.value)}{end}\n")
    return "".join(lines)


def _start(series: Series, sample: Sample) -> str:
    labels = sorted((*series.labels, *sample.labels))
    text = ",".join(f'{name}="{value.translate(_LABEL_ESCAPES)}"' for name, value in labels)
    name = series.family.name + sample.suffix
    return f"{name}{{{text}}} " if text else f"{name} "


def _number(value: float) -> str:
    if isinstance(value, int):
        return str(value)
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return "NaN" if math.isnan(value) else repr(value)


def _exemplar(exemplar: Exemplar) -> str:
    labels = f'trace_id="{exemplar.trace_id}",span_id="{exemplar.span_id}"'
    return f" # {{{labels}}} {_number(exemplar.value)} {exemplar.seconds:.3f}"


def _prometheus_head(family: Family) -> str:
    kind = "untyped" if family.kind == "unknown" else family.kind
    return f"# HELP {family.name} {family.help.translate(_ESCAPES)}\n# TYPE {family.name} {kind}\n"


def _openmetrics_head(family: Family) -> str:
    name, kind = family.name, family.kind
    if kind == "counter":
        name, kind = (name.removesuffix(_TOTAL), kind) if name.endswith(_TOTAL) else (name, "unknown")
    return f"# HELP {name} {family.help.translate(_LABEL_ESCAPES)}\n# TYPE {name} {kind}\n"
