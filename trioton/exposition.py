"""Prometheus text format of a registry, with counter names unchanged.

prometheus-client's own writer appends `_total` to the name of every counter. Triton's counters have no such ending, and
dashboards ask for Triton's names. Source: Prometheus, "Text-based format" 0.0.4.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from prometheus_client import CollectorRegistry

_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n"})
_LABEL_ESCAPES = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})
# What prometheus-client adds to its own counters and histograms; not part of this format.
_CREATED = "_created"


def render_text(registry: CollectorRegistry) -> str:
    """All metrics of the registry."""
    lines: list[str] = []
    for metric in registry.collect():
        lines.append(family_head(metric.name, metric.documentation, metric.type))
        lines += [
            f"{sample_start(sample.name, sample.labels)}{number(sample.value)}\n"
            for sample in metric.samples
            if sample.name != metric.name + _CREATED
        ]
    return "".join(lines)


def family_head(name: str, description: str, kind: str) -> str:
    """The lines before the samples of a metric."""
    kind = "untyped" if kind == "unknown" else kind
    return f"# HELP {name} {description.translate(_ESCAPES)}\n# TYPE {name} {kind}\n"


def sample_start(name: str, labels: Mapping[str, str]) -> str:
    """What stands before a sample's value."""
    text = ",".join(f'{label}="{value.translate(_LABEL_ESCAPES)}"' for label, value in sorted(labels.items()))
    return f"{name}{{{text}}} " if text else f"{name} "


def number(value: float) -> str:
    """A sample's value."""
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return "NaN" if math.isnan(value) else repr(value)
