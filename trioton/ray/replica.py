"""A replica: it supervises one server process, and reports it to the directory.

Its methods run on the event loop of an actor of Ray, where nothing may block: what does runs in threads.
"""

from __future__ import annotations

import asyncio
import json
import logging
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, cast
from urllib.parse import quote

from trioton.fleet.driver import Address
from trioton.fleet.listening import THIS_INSTALLATION, free_address, listening
from trioton.fleet.signals import Figures, quantile, read_figures
from trioton.ray.entries import REPORT_SECONDS, Entry
from trioton.ray.options import ServerOptions
from trioton.ray.scaling import IN_FLIGHT, P99_MS, QUEUE
from trioton.ray.server_process import ServerFailed, ServerProcess

logger = logging.getLogger("trioton.ray")

_LOAD_SECONDS = 600.0


class Place(Protocol):
    """Where a replica runs, as Ray tells it."""

    node: str
    application: str
    host: str

    def report(self, entry: Entry) -> None:
        """To the directory. Blocks."""

    def leave(self, replica: str) -> None:
        """It begins to drain. Blocks."""

    def remove(self, replica: str) -> None:
        """It has ended. Blocks."""

    def give_up(self) -> None:
        """End this replica at once, so that Serve replaces it without waiting for checks to fail. Need not return."""


class Replica:
    """A server process and its entry in the directory.

    Args:
        options: see `ServerOptions`.
        place: where this runs.
        report_secs: how often it reports to the directory.
    """

    def __init__(self, options: ServerOptions, place: Place, report_secs: float = REPORT_SECONDS) -> None:
        self._options = options
        self._place = place
        self._report_secs = report_secs
        self._name = uuid.uuid4().hex
        self._process: ServerProcess | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._figures = Figures()
        self._configured: frozenset[str] = frozenset()

    async def start(self) -> None:
        """Return when the server is ready, and in the directory. Cancelled, it leaves none.

        Raises:
            ServerFailed: it did not start, or was not ready in time.
        """
        process = await asyncio.to_thread(self._start)
        self._process = process
        try:
            await asyncio.to_thread(process.wait_ready, self._options.start_timeout_secs)
            await asyncio.to_thread(self._place.report, self.entry())
        except BaseException:
            process.kill()
            self._process = None
            raise
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._report()), loop.create_task(self._watch(process))]

    async def stop(self) -> None:
        """Leave the directory, drain and end the server. Nothing, where it has been."""
        process = self._process
        if process is None:
            return
        for task in self._tasks:
            task.cancel()
        options = self._options
        logger.info("draining for %d s, then %d s for what is under way", options.drain_secs, options.exit_timeout_secs)
        await asyncio.to_thread(self._tell, self._place.leave)
        how = await asyncio.to_thread(process.stop, options.end_secs + 5.0)
        self._process = None
        logger.info("the server has ended: %s", how)
        await asyncio.to_thread(self._tell, self._place.remove)

    def _start(self) -> ServerProcess:
        options = self._options
        try:
            address = free_address(
                options.address or self._place.host, options.http_port, options.grpc_port, options.metrics_port
            )
        except OSError as error:
            raise ServerFailed(f"no ports of '{options.address or self._place.host}': {error.strerror}") from None
        return ServerProcess(command_of(options, address), address, options.environment)

    async def check(self) -> None:
        """Raises ServerFailed: it has ended, or does not answer."""
        await asyncio.to_thread(self._server().check)

    async def figures(self) -> dict[str, float]:
        """What `trioton.ray.scaling` decides by: of all models together, the 99th percentile since the last call. All 0
        where the server does not answer."""
        server = self._server()
        try:
            answer = await asyncio.to_thread(server.get, "/metrics", port=server.address.metrics_port)
        except OSError:
            return {QUEUE: 0.0, IN_FLIGHT: 0.0, P99_MS: 0.0}
        before, self._figures = self._figures, read_figures(answer.text)
        recent = {
            bound: max(count - before.durations.get(bound, 0.0), 0.0)
            for bound, count in self._figures.durations.items()
        }
        return {QUEUE: self._figures.queued, IN_FLIGHT: self._figures.in_flight, P99_MS: quantile(recent, 0.99) or 0.0}

    async def load_only(self, wanted: Sequence[str]) -> None:
        """Load these models, and unload those of an earlier call.

        Raises:
            ServerFailed: a model could not be loaded or unloaded; those before it were.
        """
        surplus = sorted(self._configured - set(wanted))
        for name in wanted:
            await self._change(name, "load")
            self._configured |= {name}
        for name in surplus:
            await self._change(name, "unload")
            self._configured -= {name}

    async def _change(self, name: str, what: str) -> None:
        key = await asyncio.to_thread(self._options.key)
        path = f"/v2/repository/models/{quote(name, safe='')}/{what}"
        try:
            answer = await asyncio.to_thread(self._server().post, path, {}, key=key, seconds=_LOAD_SECONDS)
        except OSError as error:
            raise ServerFailed(f"could not {what} model '{name}': {error}") from None
        if answer.status != 200:
            raise ServerFailed(f"could not {what} model '{name}': {answer.status} {answer.text[:500]}")
        logger.info("%sed model '%s'", what, name)

    def _tell(self, what: Callable[[str], None]) -> None:
        try:
            what(self._name)
        except Exception:  # of Ray, in a cluster that ends: the entry grows old by itself
            logger.warning("the directory could not be told", exc_info=True)

    async def _watch(self, process: ServerProcess) -> None:
        how = await asyncio.to_thread(process.wait)
        logger.error("the server has ended: %s", how)
        await asyncio.to_thread(self._tell, self._place.remove)
        self._place.give_up()

    async def _report(self) -> None:
        while True:
            await asyncio.sleep(self._report_secs)
            try:
                if not self._server().end():
                    await asyncio.to_thread(self._place.report, self.entry())
            except Exception:  # of Ray: the directory restarts
                logger.warning("the directory was not reached", exc_info=True)

    def entry(self) -> Entry:
        at = self._server().address
        return Entry(
            self._name, at.host, at.http_port, at.grpc_port, at.metrics_port, self._place.node, self._place.application
        )

    def _server(self) -> ServerProcess:
        if self._process is None:
            raise ServerFailed("the server has ended")
        return self._process


def command_of(options: ServerOptions, address: Address) -> list[str]:
    """What runs the server; the last of a flag counts."""
    return [
        *(options.command or THIS_INSTALLATION),
        *options.words(),
        *listening(address),
        f"--drain-secs={options.drain_secs}",
        f"--exit-timeout-secs={options.exit_timeout_secs}",
    ]


def models_of(user_config: Mapping[str, Any]) -> Sequence[str]:
    """The models that are to be loaded. Raises ValueError."""
    others = user_config.keys() - {"models"}
    if others:
        raise ValueError(f"user_config takes 'models' only, got {json.dumps(sorted(others))}")
    models = user_config.get("models", [])
    if not isinstance(models, list | tuple) or not all(isinstance(each, str) and each for each in models):
        raise ValueError(f"'models' of user_config is a list of names, got {json.dumps(models, default=str)}")
    return list(dict.fromkeys(cast("Sequence[str]", models)))
