"""Prometheus text format of a registry, with counter names unchanged.

prometheus-client's own writer appends `_total` to the name of every counter. Triton's counters have no such ending, and
dashboards ask for Triton's names. Source: Prometheus, "Text-based format" 0.0.4.
"""

from __future__ import annotations

import math

from prometheus_client import CollectorRegistry
from prometheus_client.samples import Sample

_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n"})
_LABEL_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})
# What prometheus-client adds to its own counters and histograms; not part of this format.
_CREATED = "_created"


def render_text(registry: CollectorRegistry) -> bytes:
    """All metrics of the registry, UTF-8."""
    lines: list[str] = []
    for metric in registry.collect():
        kind = "untyped" if metric.type == "unknown" else metric.type
        lines.append(f"# HELP {metric.name} {metric.documentation.translate(_ESCAPES)}\n")
        lines.append(f"# TYPE {metric.name} {kind}\n")
        lines += [_sample(sample) for sample in metric.samples if sample.name != metric.name + _CREATED]
    return "".join(lines).encode()


def _sample(sample: Sample) -> str:
    labels = ",".join(f'{name}="{value.translate(_LABEL_ESCAPES)}"' for name, value in sorted(sample.labels.items()))
    value = _number(sample.value)
    return f"{sample.name}{{{labels}}} {value}\n" if labels else f"{sample.name} {value}\n"


def _number(value: float) -> str:
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return "NaN" if math.isnan(value) else repr(value)
