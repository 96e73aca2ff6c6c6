"""Calls to models with engines behind a real server, and what its metrics say of them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import httpx

from tests.e2e.server_process import ServerProcess, eventually

_LOAD = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")


def url(server: ServerProcess, model: str, verb: str) -> str:
    """Of one of a model's calls."""
    return f"http://{server.addresses['http']}/v2/models/{model}/{verb}"


def generate(server: ServerProcess, body: dict[str, Any], model: str = "echo") -> httpx.Response:
    """A whole answer."""
    return httpx.post(url(server, model, "generate"), json=body, timeout=60)


def events(response: httpx.Response) -> Iterator[dict[str, Any]]:
    """The server-sent events of a stream."""
    for line in response.iter_lines():
        if line.startswith("data: "):
            yield json.loads(line.removeprefix("data: "))


def load(server: ServerProcess, model: str) -> dict[str, float]:
    """An engine's gauges and counters."""
    found = {}
    for line in httpx.get(f"http://{server.addresses['metrics']}/metrics").text.splitlines():
        match = re.fullmatch(r"vllm:(\w+)\{(.*)\} (\S+)", line)
        if match is not None and f'model_name="{model}"' in match[2]:
            found[match[1]] = float(match[3])
    return found


def runs(server: ServerProcess, model: str = "endless", count: int = 1) -> bool:
    """Whether so many generations run, soon."""
    return eventually(lambda: load(server, model).get("num_requests_running") == count)


def is_free(server: ServerProcess, model: str = "endless") -> bool:
    """Whether nothing runs, waits or is in the cache, soon."""
    return eventually(lambda: [load(server, model).get(name) for name in _LOAD] == [0, 0, 0])
