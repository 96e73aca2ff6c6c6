"""Reads samples of Prometheus' text form: those of one model. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

_SAMPLE = re.compile(r"([A-Za-z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)")
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True, slots=True)
class MetricSample:
    name: str
    labels: Mapping[str, str]
    value: float


def samples(text: str, model: str) -> Iterator[MetricSample]:
    """Those of a model, and those of no model at all."""
    for line in text.splitlines():
        found = None if line.startswith("#") else _SAMPLE.match(line)
        if found is None:
            continue
        labels = {key: value.replace('\\"', '"').replace("\\\\", "\\") for key, value in _LABEL.findall(found[2] or "")}
        if labels.get("model", model) != model:
            continue
        try:
            yield MetricSample(found[1], labels, float(found[3]))
        except ValueError:
            continue
