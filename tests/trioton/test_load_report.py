"""The load report is read from the metrics that a model itself has put into the server's registry."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest
from prometheus_client import CollectorRegistry, Metric
from prometheus_client.registry import Collector

from tests.e2e.repository import add_types
from tests.trioton.test_server import settings
from trioton.load_report import FAMILY, load_report
from trioton.server import open_server

pytestmark = pytest.mark.slow

Blocks = dict[str, float]


@dataclass(eq=False)
class Blocky(Collector):
    """The family as a language model's backend has it, by the model's name."""

    models: dict[str, Blocks] = field(default_factory=dict)

    def collect(self) -> Iterator[Metric]:
        metric = Metric(FAMILY, "Blocks of the key-value cache", "gauge")
        for model, blocks in self.models.items():
            for kind, value in blocks.items():
                metric.add_sample(FAMILY, {"model": model, "version": "1", "kv_cache_block_type": kind}, value)
        yield metric


FULL: Blocks = {"used": 30, "max": 40, "tokens_per": 64, "free": 10}


@pytest.mark.parametrize(
    ("models", "expected"),
    [
        ({"a": FULL}, {"kv_cache_utilization": 0.75, "max_token_capacity": 2560}),
        (
            {"a": {**FULL, "used": 4}, "b": FULL, "c": {**FULL, "used": 0}},
            {"kv_cache_utilization": 0.75, "max_token_capacity": 2560},
        ),
        ({"a": {**FULL, "max": 0}}, {"kv_cache_utilization": 0.0, "max_token_capacity": 0}),
        ({"a": {"used": 1, "max": 2}}, {}),
        ({}, {}),
    ],
)
def test_the_report(models: dict[str, Blocks], expected: dict[str, float]) -> None:
    registry = CollectorRegistry()
    registry.register(Blocky(models))
    assert load_report(registry) == expected


def test_no_family_no_report() -> None:
    assert load_report(CollectorRegistry()) == {}


async def test_a_server_reports_what_its_metrics_show(tmp_path: Path) -> None:
    add_types(tmp_path / "echo", ("BYTES",))
    async with open_server(settings(tmp_path)) as server, httpx.AsyncClient() as client:
        host, port = server.addresses["http"]
        url = f"http://{host}:{port}/v2/models/echo/generate"
        headers = {"endpoint-load-metrics-format": "json"}
        response = await client.post(url, json={"IN_BYTES": "hi"}, headers=headers)
        assert response.status_code == 200
        assert "endpoint-load-metrics" not in response.headers
        server._metrics.registry.register(Blocky({"echo": FULL}))
        response = await client.post(url, json={"IN_BYTES": "hi"}, headers=headers)
        assert response.headers["endpoint-load-metrics"] == (
            'JSON {"named_metrics":{"kv_cache_utilization":0.75,"max_token_capacity":2560}}'
        )
        host, port = server.addresses["metrics"]
        assert f'{FAMILY}{{kv_cache_block_type="used"' in (await client.get(f"http://{host}:{port}/metrics")).text
