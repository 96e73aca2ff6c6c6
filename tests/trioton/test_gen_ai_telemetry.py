"""A whole server that observes its language models in OpenTelemetry's terms: metrics and exported spans."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio
from prometheus_client.parser import text_string_to_metric_families

from tests.backends.engines.models import write_model
from tests.trioton.test_server import settings
from trioton.flags.trace import trace_option
from trioton.server import Server, open_server

pytest.importorskip("opentelemetry.sdk", reason="needs the extra trace")

from tests.actors.tracing.test_export import Collector, attributes
from tests.actors.tracing.test_export import collector as make_collector

pytestmark = pytest.mark.slow

collector = make_collector
DURATION = "gen_ai_server_request_duration_seconds"
SECRET = "batches secret scheduler"


async def ask(server: Server) -> None:
    """A chat and a stream of completions by the OpenAI interface, and `generate`, which fails at last."""
    host, port = server.addresses["http"]
    async with httpx.AsyncClient(base_url=f"http://{host}:{port}", timeout=60) as client:
        bodies: list[tuple[str, dict[str, Any], int]] = [
            ("v1/chat/completions", {"model": "echo", "messages": [{"role": "user", "content": SECRET}]}, 200),
            ("v1/completions", {"model": "echo", "prompt": SECRET, "stream": True, "max_tokens": 3}, 200),
            ("v2/models/echo/generate", {"text_input": SECRET, "max_tokens": 2}, 200),
            ("v2/models/echo/generate", {"text_input": SECRET, "top_p": 9}, 400),
        ]
        for path, body, status in bodies:
            response = await client.post(path, json=body)
            assert response.status_code == status, response.text


async def counts(server: Server) -> dict[tuple[str, str, str], float]:
    """How many calls there were, by metric, operation and error."""
    host, port = server.addresses["metrics"]
    async with httpx.AsyncClient() as client:
        text = (await client.get(f"http://{host}:{port}/metrics")).text
    assert SECRET not in text
    return {
        (family.name, sample.labels["gen_ai_operation_name"], sample.labels.get("error_type", "")): sample.value
        for family in text_string_to_metric_families(text)
        if family.name.startswith("gen_ai_")
        for sample in family.samples
        if sample.name.endswith("_count")
    }


def durations(found: dict[tuple[str, str, str], float]) -> dict[tuple[str, str], float]:
    """Of those, by operation and error."""
    return {key[1:]: value for key, value in found.items() if key[0] == DURATION}


def traced(collector: Collector) -> list[str]:
    return ["mode=opentelemetry", "level=TIMESTAMPS", "rate=1", f"opentelemetry,url={collector.url}"]


@pytest.mark.parametrize("edges", [0, 1])
async def test_metrics_and_spans(tmp_path: Path, collector: Collector, edges: int) -> None:
    """Also of calls that an edge process answers: it tells the core how they have ended."""
    write_model(tmp_path / "echo", "scripted")
    given = replace(
        settings(tmp_path),
        gen_ai_telemetry=True,
        edge_processes=edges,
        trace_config=tuple(trace_option(option) for option in traced(collector)),
    )
    async with open_server(given) as server:
        await ask(server)
        with trio.fail_after(60):
            while durations(found := await counts(server)) != {  # noqa: ASYNC110 (another process counts)
                ("chat", ""): 1,
                ("text_completion", ""): 2,
                ("text_completion", "INVALID_ARG"): 1,
            }:
                await trio.sleep(0.01)
    for name in ("time_to_first_token", "time_per_output_token"):
        assert {key[1:]: found[key] for key in found if key[0] == f"gen_ai_server_{name}_seconds"} == {
            ("chat", ""): 1,
            ("text_completion", ""): 2,
        }
    roots = [attributes(span) for span in collector.spans() if span.name == "InferRequest"]
    told = [each for each in roots if "gen_ai.operation.name" in each]
    assert [each["gen_ai.operation.name"] for each in told] == ["chat"] + ["text_completion"] * 3
    assert [each.get("error.type") for each in told] == [None, None, None, "INVALID_ARG"]
    assert [each.get("gen_ai.usage.output_tokens") for each in told][1:] == [3, 2, None]
    assert str(told[0]["gen_ai.response.id"]).startswith("chatcmpl-")
    assert SECRET not in str(collector.requests)


async def test_off_by_default(tmp_path: Path, collector: Collector) -> None:
    write_model(tmp_path / "echo", "scripted")
    given = replace(settings(tmp_path), trace_config=tuple(trace_option(option) for option in traced(collector)))
    async with open_server(given) as server:
        await ask(server)
        assert await counts(server) == {}
    assert collector.spans()
    assert not [name for span in collector.spans() for name in attributes(span) if name.startswith("gen_ai")]
