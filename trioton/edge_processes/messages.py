"""Messages between the core's process and one edge process, over their socket pair; some come with a socket."""

from __future__ import annotations

from typing import TypeAlias

import msgspec


class Connect(msgspec.Struct, frozen=True, tag=True):
    """With a socket: a client has connected to the service of that word. One too many is to be refused."""

    word: str
    is_too_many: bool = False


class Leave(msgspec.Struct, frozen=True, tag=True):
    """The server was told to stop: clients are sent away, new ones are still served."""


class Stop(msgspec.Struct, frozen=True, tag=True):
    """No more connections come: finish what there is, and end."""


class KeysChanged(msgspec.Struct, frozen=True, tag=True):
    """Other keys of clients are in force, to be asked for by the link."""


class Ping(msgspec.Struct, frozen=True, tag=True):
    """To be answered by `Figures`."""


class Ready(msgspec.Struct, frozen=True, tag=True):
    """The edge takes connections."""


class Progress(msgspec.Struct, frozen=True, tag=True):
    """Since the last one: connections that were taken over, and those that have ended, by the words of services. For
    `lost` of them the edge had no descriptor left."""

    taken: int
    ended: dict[str, int]
    lost: int = 0


class Upstream(msgspec.Struct, frozen=True, tag=True):
    """With a socket: requests to the core's edge of that word, all of them from one client."""

    word: str
    client: str


class LogLine(msgspec.Struct, frozen=True, tag=True):
    """A line for the server's log. `lost` lines before it could not be sent."""

    logger: str
    level: int
    text: str
    tags: dict[str, str] = {}
    lost: int = 0


class AccessLines(msgspec.Struct, frozen=True, tag=True):
    """Lines of the access log, with their ends, of requests that the edge has answered. `lost` ones before them could
    not be sent."""

    data: bytes
    lost: int = 0


class FailedCall(msgspec.Struct, frozen=True, tag=True):
    """An inference request that the edge has answered with an error, for the console, which cuts texts."""

    call: str
    status: str
    kind: str
    text: str
    model: str
    version: str
    id: str


class KeyUse(msgspec.Struct, frozen=True, tag=True):
    """What was used of keys since the last one: requests that have ended, bytes, and how many more are running, by the
    names that the ledger shows them under."""

    used: dict[str, tuple[int, float, int]]


class Figures(msgspec.Struct, frozen=True, tag=True):
    """What has been counted since the last ones, and requests under way on connections of HTTP/2 now.

    `limits` are refusals by protocol and limit, `failures` defects by their place, `lags` observations of the loop's
    lag by bucket, with their sum in seconds, `relayed` requests that the core's own edge was to answer.
    """

    limits: list[tuple[str, str, int]]
    failures: dict[str, int]
    lags: list[int]
    lag_seconds: float
    streams: dict[str, int]
    relayed: int = 0


ToEdge: TypeAlias = Connect | Leave | Stop | KeysChanged | Ping
ToCore: TypeAlias = Ready | Progress | Upstream | LogLine | AccessLines | FailedCall | KeyUse | Figures
