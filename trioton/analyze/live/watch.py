"""Watches a running server: statistics and metrics, a few times a second, and nothing else."""

from __future__ import annotations

from urllib.parse import quote

import trio

from repository.json_form import from_json_form
from trioton.analyze.bench.http_client import CallFailed, HttpClient
from trioton.analyze.live.observation import Snapshot, snapshot_of
from trioton.analyze.live.proposals import Current

_EVERY_SECONDS = 0.5
# Each costs the server a fraction of a millisecond, so that a long watch asks more seldom.
_MOST_SNAPSHOTS = 600


async def models_of(client: HttpClient) -> list[str]:
    """Those that serve and have had requests."""
    found = (await client.json("/v2/models/stats")).get("model_stats", ())
    names = (each["name"] for each in found if each.get("inference_stats", {}).get("success", {}).get("count"))
    return list(dict.fromkeys(names))


async def watch(client: HttpClient, model: str, seconds: float) -> list[Snapshot]:
    """Raises CallFailed: the server does not answer, or has no such model."""
    every = max(_EVERY_SECONDS, seconds / _MOST_SNAPSHOTS)
    found = [await _look(client, model)]
    end = trio.current_time() + seconds
    while (now := trio.current_time()) < end:
        await trio.sleep(min(every, end - now))
        found.append(await _look(client, model))
    return found


async def _look(client: HttpClient, model: str) -> Snapshot:
    statistics = await client.json(f"/v2/models/{quote(model, safe='')}/stats")
    at = trio.current_time()
    return snapshot_of(at, statistics, await _metrics(client), model)


async def _metrics(client: HttpClient) -> str:
    """The text that is on the port of HTTP, too; empty where it is not."""
    try:
        return await client.text("/metrics")
    except CallFailed:
        return ""


async def current_of(client: HttpClient, model: str) -> tuple[Current, bytes]:
    """The configuration that serves, also as JSON."""
    answer, _ = await client.call("GET", f"/v2/models/{quote(model, safe='')}/config")
    config = from_json_form(answer)
    count = sum(group.count for group in config.instance_group if not group.passive) or 1
    dynamic = config.dynamic_batching
    delay = 0.0 if dynamic is None else dynamic.max_queue_delay_microseconds / 1e6
    return Current(count, max(1, config.max_batch_size), delay, dynamic is not None), answer
