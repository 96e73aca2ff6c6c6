"""Opens the services of a server in front of its parts, before the models are loaded.

Part of the composition root; `trioton.server` calls it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import trio

from protocol.reactor.arrivals import Arrivals
from trioton.edges import Edge, edges
from trioton.quota_service import UnusableQuotaStore, quota_exchange
from trioton.server_parts import ServerParts
from trioton.service_names import SERVICE_NAMES, address_text, listening
from trioton.settings import Address
from trioton.start_checks import StartError
from trioton.start_files import StartFiles

if TYPE_CHECKING:
    from trioton.edge_processes.edges import EdgeProcesses
    from trioton.metrics.export import MetricsExport

logger = logging.getLogger("trioton.server")


class Opening:
    """The services of one server, each of which ends when its event is set: `close` for most, `close_metrics` later.

    `export` sends the metrics elsewhere, if that was asked for.
    """

    def __init__(self, parts: ServerParts) -> None:
        self.export: MetricsExport | None = None
        self.close = trio.Event()
        self.close_metrics = trio.Event()
        self._close_relayed = trio.Event()  # the edges behind edge processes
        self._parts = parts

    async def open(
        self, files: StartFiles, nursery: trio.Nursery, metrics: trio.Nursery, background: trio.Nursery
    ) -> None:
        """Before the models are loaded, so that whoever watches the server sees that it lives, and how far it is.

        Raises:
            StartError: a port or a store cannot be had, or a package is missing.
        """
        parts, settings = self._parts, self._parts.settings
        if parts.gpus is not None and settings.allow_metrics:
            await background.start(parts.gpus.run)
        parts.keys = files.keys
        if settings.allow_metrics or settings.metrics_export_url:
            background.start_soon(parts.lag.run)
        if settings.metrics_export_url:
            self.export = self._metrics_export()
            background.start_soon(self.export.run)
        if files.keys is not None:
            background.start_soon(files.keys.watch, parts.failures)
        await self._start_quotas(background)
        background.start_soon(parts.responses.run)
        if parts.console is not None:
            background.start_soon(parts.console.sampler.run, parts.leaving)
        relayed = await self._open_edge_processes(nursery)
        opening = edges(settings, replace(parts.shared(), relayed=relayed), files.tls)
        for word, edge in opening.items():
            is_metrics = word == "metrics"
            close = self._close_relayed if word in relayed else self.close
            close = self.close_metrics if is_metrics else close
            parts.addresses[word] = await self._open_one(word, edge, metrics if is_metrics else nursery, close)
        if opening:
            places = (f"{SERVICE_NAMES[word]} at {address_text(address)}" for word, address in parts.addresses.items())
            logger.info("Listening, and not ready until the models are loaded: %s", ", ".join(places))

    async def wait_for_edge_processes(self) -> None:
        """Nobody is told that the server is ready before it can be reached. Raises StartError."""
        if self._parts.edge_processes is None:
            return
        from trioton.edge_processes.edges import EdgeStartError

        try:
            await self._parts.edge_processes.wait_serving()
        except EdgeStartError as error:
            raise StartError(f"{error}; see --edge-processes") from None

    async def _open_one(self, word: str, edge: Edge, nursery: trio.Nursery, close: trio.Event) -> Address:
        with listening(word, self._parts.settings.services()[word]):
            # Only the two that a client sees matter; an IPv6 address has more parts.
            host, port, *_ = await nursery.start(edge, close)
        return host, port

    async def _open_edge_processes(self, nursery: trio.Nursery) -> Mapping[str, Arrivals]:
        """Listen for what edge processes serve, and start them: where their connections to the core come from."""
        parts, processes = self._parts, self._parts.edge_processes
        if processes is None:
            return {}
        from trioton.edge_processes.edges import OWN_WORDS

        found: dict[str, Arrivals] = {}
        for word, address in parts.settings.services().items():
            if word not in OWN_WORDS:
                with listening(word, address):
                    await processes.open(word, address)
                found[word] = processes.relayed(word)
        parts.core.models_changed = processes.models_changed
        if parts.keys is not None:
            processes.take_keys(parts.keys)
            parts.keys.on_change = processes.keys_changed
        nursery.start_soon(self._run_edge_processes, processes)
        return found

    async def _run_edge_processes(self, processes: EdgeProcesses) -> None:
        try:
            await processes.run(self._parts.leaving, self.close)
        finally:
            self._close_relayed.set()

    async def _start_quotas(self, background: trio.Nursery) -> None:
        parts = self._parts
        try:
            parts.quotas = quota_exchange(parts.settings, parts.keys, parts.failures)
        except UnusableQuotaStore as error:
            raise StartError(f"{error}; see --quota-store") from None
        if parts.quotas is not None:
            await background.start(parts.quotas.run)

    def _metrics_export(self) -> MetricsExport:
        try:
            from trioton.metrics.export import MetricsExport
        except ImportError as error:
            raise StartError(
                f"--metrics-export-url needs the extra 'trace' ({error}): pip install trioton[trace]"
            ) from None
        settings = self._parts.settings
        interval = settings.metrics_export_interval_ms / 1000
        return MetricsExport(self._parts.metrics.sources, settings.metrics_export_url, interval)
