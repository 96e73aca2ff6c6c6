"""Metrics export: sends the metrics to an OpenTelemetry collector, by OTLP over HTTP, at every interval.

Flow: sources of metrics → [metrics export] → collector. Runs from the server's start to its end, when it sends what
there was when the server was told to stop. A collector that cannot be reached costs a line of the log, and what it was
to be sent.
"""

from __future__ import annotations

import gzip
import logging
import os
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import trio
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.util.re import parse_env_headers

from protocol.sync.sliced import run_sliced
from trioton.metrics.families import Source
from trioton.metrics.otlp import export_request

logger = logging.getLogger(__name__)

DEFAULT_SERVICE_NAME = "triton-inference-server"
_SEND_SECONDS = 10.0
_LAST_SECONDS = 3.0
# OpenTelemetry's own variables; the second is for metrics alone.
_HEADERS = ("OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_METRICS_HEADERS")


class MetricsExport:
    """Attributes:
    lost_count: requests that the collector has not taken.
    """

    def __init__(
        self, sources: Sequence[Source], url: str, interval: float, environment: Mapping[str, str] = os.environ
    ) -> None:
        self.lost_count = 0
        self._last = b""
        self._sources = sources
        self._url = url
        self._interval = interval
        self._started_ns = time.time_ns()
        self._headers = {
            name: value
            for variable in _HEADERS
            for name, value in parse_env_headers(environment.get(variable, "")).items()
        }
        attributes = Resource.create().attributes
        self._resource = [(name, str(value)) for name, value in attributes.items() if name != SERVICE_NAME]
        name = str(attributes[SERVICE_NAME])
        self._resource.append((SERVICE_NAME, DEFAULT_SERVICE_NAME if name.startswith("unknown_service") else name))
        self._one = trio.CapacityLimiter(1)  # a send that hangs is the only one

    async def run(self) -> None:
        """Until cancelled; then what `collect` has left is sent."""
        try:
            while True:
                await trio.sleep(self._interval)
                with trio.move_on_after(_SEND_SECONDS + 1), self._told():
                    await self._send(await self._collected())
        finally:
            if self._last:
                with trio.move_on_after(_LAST_SECONDS, shield=True), self._told():
                    await self._send(self._last)

    async def collect(self) -> None:
        """The server stops, and its models with their metrics will be gone: keep them to be sent at the end."""
        with self._told():
            self._last = await self._collected()

    async def _collected(self) -> bytes:
        work = export_request(self._sources, self._resource, started_ns=self._started_ns, now_ns=time.time_ns())
        return await run_sliced(work)

    async def _send(self, request: bytes) -> None:
        await trio.to_thread.run_sync(self._post, request, abandon_on_cancel=True, limiter=self._one)

    @contextmanager
    def _told(self) -> Iterator[None]:
        """An export that fails must not take the server down."""
        try:
            yield
        except Exception as error:
            self.lost_count += 1
            if self.lost_count & (self.lost_count - 1) == 0:  # 1, 2, 4, 8, …
                logger.error("metrics were not exported to %s, %d times so far: %s", self._url, self.lost_count, error)

    def _post(self, request: bytes) -> None:
        """Blocks, in a thread, which mostly waits: compression and the network let the loop run."""
        headers = {"content-type": "application/x-protobuf", "content-encoding": "gzip", **self._headers}
        call = urllib.request.Request(self._url, gzip.compress(request, 1), headers, method="POST")
        with urllib.request.urlopen(call, timeout=_SEND_SECONDS) as answer:
            answer.read()
