"""The life of one replica: started, brought up to date, served, drained, ended.

    driver.start → ready → the models of the others → balancer.place → … → balancer.drain → SIGTERM → gone

A task of the supervisor's for each replica. Cancelled, it kills the replica.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

import trio

from trioton.fleet.balancer import Balancer
from trioton.fleet.driver import CannotStart, Driver, Running
from trioton.fleet.everywhere import Everywhere
from trioton.fleet.flags import FleetFlags, Probe
from trioton.fleet.haproxy_config import READINESS
from trioton.fleet.http_call import Answer, CallFailed, Headers, call
from trioton.fleet.replicas import Phase, Registry, Replica
from trioton.fleet.signals import Figures, read_figures

logger = logging.getLogger("trioton.fleet")

_LIVE = "/v2/health/live"
_POLL_SECONDS = 0.2
_PROBE_SECONDS = 1.0
_CALL_SECONDS = 10.0
_LIVE_SECONDS, _MOST_MISSED = 5.0, 6
# More than a server's own exit timeout, which ends it in order.
_KILL_GRACE_SECONDS = 10.0
_CLEAN_UP_SECONDS = 5.0


class ReplicaFailed(Exception):
    """It cannot serve, or not any more; the text says why."""


@dataclass(frozen=True, slots=True)
class Lives:
    """What all lives of a fleet need.

    Attributes:
        own_headers: those of the fleet's own calls.
        is_watched: whether a replica has to pass the probes of an update now.
        is_ending: whether the whole fleet ends.
        exit_seconds: what a server takes at most to end after SIGTERM.
    """

    flags: FleetFlags
    registry: Registry
    balancer: Balancer
    driver: Driver
    everywhere: Everywhere
    own_headers: Callable[[], Headers]
    is_watched: Callable[[Replica], bool]
    is_ending: Callable[[], bool]
    exit_seconds: float

    async def run(self, replica: Replica) -> str:
        """Returns when it has ended: empty if it was told to, or what has gone wrong."""
        failure = ""
        try:
            running = replica.running = await self.driver.start(replica.name, replica.generation.words)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_note_end, running, replica, nursery.cancel_scope)
                try:
                    await self._serve(replica, running)
                except ReplicaFailed as error:
                    failure = str(error)
                    running.kill()
                    await running.wait()
                nursery.cancel_scope.cancel()
        except CannotStart as error:
            failure = str(error)
        finally:
            if replica.running is not None and not replica.ended:
                replica.running.kill()
            with trio.move_on_after(_CLEAN_UP_SECONDS, shield=True):
                await self.balancer.remove(replica.slot)
            self.registry.remove(replica)
        if not failure and not replica.stop.is_set():
            failure = f"it has ended by itself: {replica.ended}"
        return failure

    async def _serve(self, replica: Replica, running: Running) -> None:
        await self._until_ready(replica)
        if not replica.stop.is_set():
            async with self.everywhere.lock:
                if text := await self.everywhere.catch_up(replica):
                    raise ReplicaFailed(f"it did not get the models of the others: {text}")
                await self.balancer.place(replica.slot, running.address, replica.role)
                replica.serving_since = trio.current_time()
                self.registry.advance(replica, Phase.SERVING)
            logger.info("%s serves (%s)", replica.name, running.about)
            await self._until_stopped(replica)
            self.registry.advance(replica, Phase.DRAINING)
            if self.is_ending():  # there is no other: it says that it is not ready, and goes on for its --drain-secs
                await self.balancer.trust(replica.slot)
            else:
                logger.info("%s drains", replica.name)
                await self.balancer.drain(replica.slot)
                await self._until_drained(replica)
                await self.balancer.remove(replica.slot)
        running.stop()
        with trio.move_on_after(self.exit_seconds + _KILL_GRACE_SECONDS):
            await running.wait()
            return
        logger.error("%s has not ended within %g s, and is killed", replica.name, self.exit_seconds)
        running.kill()
        await running.wait()

    async def _until_ready(self, replica: Replica) -> None:
        """Returns as well when it is told to stop."""
        with trio.move_on_after(self.flags.start_timeout_secs):
            while await self._refusal(replica, Probe(READINESS)):
                with trio.move_on_after(_POLL_SECONDS):
                    await replica.stop.wait()
                    return
            return
        raise ReplicaFailed(f"it was not ready within {self.flags.start_timeout_secs:g} s; see --start-timeout-secs")

    async def _until_stopped(self, replica: Replica) -> None:
        """Raises ReplicaFailed: it hangs, or fails the probes of an update."""
        failure: ReplicaFailed | None = None
        async with trio.open_nursery() as nursery:

            async def until(check: Callable[[Replica], object]) -> None:
                nonlocal failure
                try:
                    await check(replica)  # type: ignore[misc]  # both are coroutines
                except ReplicaFailed as error:
                    failure = error
                    nursery.cancel_scope.cancel()

            nursery.start_soon(until, self._watch_live)
            nursery.start_soon(until, self._watch_probes)
            await replica.stop.wait()
            nursery.cancel_scope.cancel()
        if failure is not None and not replica.stop.is_set():
            raise failure

    async def _watch_live(self, replica: Replica) -> None:
        missed = 0
        while missed < _MOST_MISSED:
            await trio.sleep(_LIVE_SECONDS)
            outcome = await self._called(replica, Probe(_LIVE))
            missed = missed + 1 if isinstance(outcome, CallFailed) else 0
        raise ReplicaFailed(f"it has not answered {_MOST_MISSED} times in a row whether it lives")

    async def _watch_probes(self, replica: Replica) -> None:
        while True:
            if self.is_watched(replica):
                for probe in (Probe(READINESS), *self.flags.update_probe):
                    if refusal := await self._refusal(replica, probe):
                        raise ReplicaFailed(f"it fails the probe {probe}: {refusal}")
            await trio.sleep(_PROBE_SECONDS)

    async def _refusal(self, replica: Replica, probe: Probe) -> str:
        """Empty where it answers with 200."""
        outcome = await self._called(replica, probe)
        if isinstance(outcome, CallFailed):
            return str(outcome)
        return "" if outcome.is_ok else f"status {outcome.status}: {outcome.body[:300].decode(errors='replace')}"

    async def _called(self, replica: Replica, probe: Probe) -> Answer | CallFailed:
        assert replica.address is not None
        method, body = "GET", b""
        try:
            if probe.file is not None:
                method, body = "POST", await trio.Path(probe.file).read_bytes()
            return await call(
                replica.address.host,
                replica.address.http_port,
                method,
                probe.target,
                headers=self.own_headers(),
                body=body,
                seconds=_CALL_SECONDS,
            )
        except CallFailed as error:
            return error
        except OSError as error:
            return CallFailed(f"'{probe.file}' cannot be read: {error.strerror}")

    async def _until_drained(self, replica: Replica) -> None:
        """Nothing is under way there, and no sequence is open; or the time is over."""
        with trio.move_on_after(self.flags.drain_timeout_secs):
            while True:
                if not await self._is_busy(replica):
                    await self.balancer.refuse_sequences(replica.slot)
                    if not await self._is_busy(replica):  # nor has one begun at the last moment
                        return
                    await self.balancer.keep_sequences(replica.slot)
                await trio.sleep(_POLL_SECONDS)
        logger.warning(
            "%s has requests, streams or sequences after %g s, and ends; see --drain-timeout-secs",
            replica.name,
            self.flags.drain_timeout_secs,
        )

    async def _is_busy(self, replica: Replica) -> bool:
        try:
            status = (await self.balancer.statuses()).get(replica.slot)
        except (OSError, ValueError, trio.TooSlowError):
            return True
        figures = await self.figures(replica)
        return (status is not None and status.sessions > 0) or (figures is not None and figures.sequences > 0)

    async def figures(self, replica: Replica) -> Figures | None:
        """What its metrics say; None where they cannot be read."""
        address = replica.address
        if address is None:
            return None
        try:
            answer = await call(
                address.host, address.metrics_port, "GET", "/metrics", headers=self.own_headers(), seconds=_CALL_SECONDS
            )
        except CallFailed:
            return None
        return read_figures(answer.body.decode(errors="replace")) if answer.is_ok else None


async def _note_end(running: Running, replica: Replica, scope: trio.CancelScope) -> None:
    replica.ended = await running.wait()
    scope.cancel()
