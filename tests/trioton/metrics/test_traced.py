"""Exemplars: a bucket of a model's durations leads to the trace of a request that fell into it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import httpx
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from tests.e2e.repository import add_add_sub
from tests.trioton.test_server import settings
from tests.trioton.test_server_tracing import infer
from trioton.flags.trace import trace_option
from trioton.server import Server, open_server

pytest.importorskip("opentelemetry.sdk", reason="needs the extra trace")

from tests.actors.tracing.test_export import Collector
from tests.actors.tracing.test_export import collector as make_collector

pytestmark = pytest.mark.slow

collector = make_collector


async def exemplars(server: Server) -> list[dict[str, str]]:
    host, port = server.addresses["metrics"]
    async with httpx.AsyncClient() as client:
        answer = await client.get(f"http://{host}:{port}/metrics", headers={"accept": "application/openmetrics-text"})
    return [
        dict(sample.exemplar.labels)
        for family in text_string_to_metric_families(answer.text)  # type: ignore[no-untyped-call]  # it has no types
        for sample in family.samples
        if sample.exemplar is not None
    ]


@pytest.mark.parametrize("mode", ["opentelemetry", "triton"])
async def test_a_traced_request_is_an_exemplar(mode: str, tmp_path: Path, collector: Collector) -> None:
    """Under the ids of its spans; in the other mode a trace has none."""
    add_add_sub(tmp_path / "models" / "m", versions=(1,))
    sink = f"url={collector.url}" if mode == "opentelemetry" else f"file={tmp_path}/trace.json"
    options = [f"mode={mode}", "level=TIMESTAMPS", "rate=1", f"{mode},{sink}"]
    given = replace(settings(tmp_path / "models"), trace_config=tuple(map(trace_option, options)))
    async with open_server(given) as server:
        assert await exemplars(server) == []
        await infer(server)
        found = await exemplars(server)
    spans = {span.trace_id.hex(): span.span_id.hex() for span in collector.spans() if span.name == "compute"}
    assert {each["trace_id"]: each["span_id"] for each in found} == spans
    assert len(spans) == (mode == "opentelemetry")
