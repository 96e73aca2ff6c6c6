"""Keepalive and connection age: when to PING, retire or close a connection, and how many PINGs a peer may send.

Plain policies that take `now` in seconds. Source: gRPC's keepalive and connection age, with the names and defaults of
its server options.
"""

from __future__ import annotations

import enum
import math

from protocol.grpc.settings import ConnectionLimits, Keepalive

# How long calls that a peer began before it saw the GOAWAY may still come.
RETIRING_SECONDS = 5.0

# More often than this no peer is asked.
MIN_KEEPALIVE_TIME = 1.0

# Between PINGs of a peer without calls, where such PINGs are not permitted.
_INTERVAL_WITHOUT_CALLS = 7200.0


class Due(enum.Enum):
    """What a connection has to do now."""

    PING = enum.auto()  # ask for a sign of life
    END_IDLE = enum.auto()  # take no new calls, as none have come for long
    END_OLD = enum.auto()  # take no new calls, as it is old enough
    REFUSE_CALLS = enum.auto()  # whoever has not seen that it ends has had the time for it
    CLOSE = enum.auto()  # its calls have had their grace
    CLOSE_DEAD = enum.auto()  # there was no sign of life


class Lifetime:
    """One connection's timers. `age_factor` spreads the ends of connections that began together (gRPC: 0.9 to 1.1).
    Who begins and ends its calls notes `idle_since`: infinite while there are any."""

    __slots__ = (
        "_end_of_age",
        "_keepalive",
        "_limits",
        "_pinged",
        "_pings_without_data",
        "_received",
        "_refuses",
        "_retired",
        "idle_since",
    )

    def __init__(self, limits: ConnectionLimits, now: float, *, age_factor: float) -> None:
        self._limits = limits
        self._keepalive = limits.keepalive
        self._end_of_age = now + limits.max_connection_age * age_factor
        self._received = now
        self._pinged = math.inf
        self._pings_without_data = 0
        self.idle_since = now
        self._retired = math.inf
        self._refuses = False

    def on_received(self, now: float) -> None:
        """Any byte is a sign of life: restart the keepalive timer."""
        self._received = now
        self._pinged = math.inf

    def on_data_sent(self) -> None:
        self._pings_without_data = 0

    def on_retired(self, now: float) -> None:
        self._retired = now

    def due(self, now: float) -> Due | None:
        """The next action that is due, one at a time."""
        limits = self._limits
        if now >= self._pinged + self._keepalive.timeout:
            return Due.CLOSE_DEAD
        if self._retired < math.inf:
            if now >= self._retired + limits.max_connection_age_grace:
                return Due.CLOSE
            if now >= self._retired + RETIRING_SECONDS and not self._refuses:
                self._refuses = True
                return Due.REFUSE_CALLS
        elif now >= self._end_of_age:
            self._retired = now
            return Due.END_OLD
        elif now >= self.idle_since + limits.max_connection_idle:
            self._retired = now
            return Due.END_IDLE
        if now >= self._next_ping():
            self._received = now  # the next one, if this one may not be sent, in as much time again
            if self._may_ping():
                self._pinged = now
                self._pings_without_data += 1
                return Due.PING
        return None

    def wake_at(self, now: float) -> float:
        """When to call `due` again. Nothing is due before, whatever happens meanwhile but `on_retired`."""
        limits = self._limits
        if self._retired < math.inf:
            grace = limits.max_connection_age_grace
            retiring = self._retired + (grace if self._refuses else min(grace, RETIRING_SECONDS))
        else:
            retiring = min(self._end_of_age, min(now, self.idle_since) + limits.max_connection_idle)
        return min(retiring, self._next_ping(), self._pinged + self._keepalive.timeout)

    def _next_ping(self) -> float:
        return math.inf if self._pinged < math.inf else self._received + max(MIN_KEEPALIVE_TIME, self._keepalive.time)

    def _may_ping(self) -> bool:
        keepalive = self._keepalive
        has_calls = self.idle_since == math.inf
        limit = keepalive.max_pings_without_data
        return (has_calls or keepalive.permit_without_calls) and (not limit or self._pings_without_data < limit)


class PingPolice:
    """Counts a peer's PINGs that follow one another sooner than allowed, unless the server sends data between."""

    __slots__ = ("_keepalive", "_last", "_strikes")

    def __init__(self, keepalive: Keepalive) -> None:
        self._keepalive = keepalive
        self._last = -math.inf
        self._strikes = 0

    def on_data_sent(self) -> None:
        self._last = -math.inf
        self._strikes = 0

    def on_ping(self, now: float, *, has_calls: bool) -> bool:
        """Whether the connection is to be closed for it."""
        keepalive = self._keepalive
        is_idle = not has_calls and not keepalive.permit_without_calls
        interval = _INTERVAL_WITHOUT_CALLS if is_idle else keepalive.min_recv_ping_interval_without_data
        is_early = now < self._last + interval
        self._last = now
        if not is_early:
            return False
        self._strikes += 1
        return 0 < keepalive.max_ping_strikes < self._strikes
