"""The autoscaler: reads the signal of all replicas at intervals, and does what the policy decides."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any

import trio

from trioton.fleet.flags import FleetFlags, Signal
from trioton.fleet.replicas import Replica
from trioton.fleet.scaling import Bounds, ScalingPolicy
from trioton.fleet.signals import NAMES, Figures, SignalReader
from trioton.fleet.supervisor import Busy, Supervisor

logger = logging.getLogger("trioton.fleet")


class Scaler:
    """`figures` reads those of one replica. Without a signal it only watches what others change."""

    def __init__(
        self, flags: FleetFlags, supervisor: Supervisor, figures: Callable[[Replica], Awaitable[Figures | None]]
    ) -> None:
        self._flags = flags
        self._supervisor = supervisor
        self._figures = figures
        self._reader = SignalReader(flags.scale_by)
        self._policy: ScalingPolicy | None = None
        if flags.scale_by is not Signal.NONE:
            name, unit = NAMES[flags.scale_by]
            self._policy = ScalingPolicy(
                name,
                unit,
                flags.scale_target,
                Bounds(flags.min_replicas, flags.max_replicas),
                up_cooldown=flags.scale_up_cooldown_secs,
                down_cooldown=flags.scale_down_cooldown_secs,
            )
        self.signal: float | None = None
        self.last_reason = ""

    def note_change(self) -> None:
        """The number of replicas was changed by somebody else."""
        if self._policy is not None:
            self._policy.note_change(trio.current_time())

    def described(self) -> dict[str, Any] | None:
        """For the fleet's status; None where nothing scales."""
        if self._policy is None:
            return None
        return {
            "by": str(self._flags.scale_by),
            "target": self._flags.scale_target,
            "signal": self.signal,
            "last_reason": self.last_reason,
        }

    async def run(self) -> None:
        """For ever, or not at all."""
        if self._policy is None:
            return
        while True:
            await trio.sleep(self._flags.scale_interval_secs)
            await self._look(self._policy)

    async def _look(self, policy: ScalingPolicy) -> None:
        found: dict[str, Figures] = {}
        async with trio.open_nursery() as nursery:
            for replica in self._supervisor.registry.serving():
                nursery.start_soon(self._read, replica, found)
        self.signal = self._reader.read(found)
        if self.signal is None:
            return
        # While some are still to come, the mean of those that serve says more than the load of each later will be.
        serving = min(len(found), self._supervisor.count)
        if serving < self._supervisor.count:
            return
        change = policy.decide(self.signal, self._supervisor.count, trio.current_time())
        if change is None:
            return
        try:
            self._supervisor.scale(change.replicas)
        except Busy as error:
            logger.info("not %s: %s", change.reason, error)
            return
        self.last_reason = change.reason
        logger.info("%s", change.reason)

    async def _read(self, replica: Replica, found: dict[str, Figures]) -> None:
        figures = await self._figures(replica)
        if figures is not None:
            found[replica.name] = figures
