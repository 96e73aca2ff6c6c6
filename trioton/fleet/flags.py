"""Flags of `trioton fleet`, beside those of a server."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from trioton.flags.fields import (
    INTEGER,
    PATH,
    UsageError,
    choice,
    filesystem_path,
    flag,
    integer,
    port,
    repeatable,
    seconds,
)
from trioton.fleet.gpus import gpus_per_replica
from trioton.settings import FLEET

MOST_REPLICAS = 64
SECONDS = "<seconds>"


class Signal(StrEnum):
    """What the number of replicas follows. `QUEUE` and `IN_FLIGHT` are per replica, `P99` is in milliseconds."""

    NONE = "none"
    QUEUE = "queue"
    IN_FLIGHT = "in-flight"
    P99 = "p99"


class DriverName(StrEnum):
    """What runs the replicas: processes of this machine, or actors of a Ray cluster."""

    LOCAL = "local"
    RAY = "ray"


class SequenceSource(StrEnum):
    """Where HAProxy looks for the id of a sequence."""

    HEADER = "header"
    BODY = "body"


@dataclass(frozen=True, slots=True)
class Probe:
    """A request that a replica has to answer with 200: GET, or POST with the content of a file."""

    target: str
    file: Path | None = None

    @classmethod
    def parse(cls, text: str) -> Probe:
        """From `<path>[@<file>]`."""
        target, at, file = text.partition("@")
        if not target.startswith("/") or " " in target or (at and not file):
            raise ValueError("expected /<path> or /<path>@<file>")
        return cls(target, Path(file) if file else None)

    def __str__(self) -> str:
        return self.target if self.file is None else f"{self.target}@{self.file}"


def positive(text: str) -> float:
    value = seconds(text)
    if value <= 0:
        raise ValueError("expected a number above 0")
    return value


@dataclass(frozen=True, slots=True)
class ActorOptions:
    """Options of an actor of Ray, as JSON."""

    text: str = "{}"

    @classmethod
    def parse(cls, text: str) -> ActorOptions:
        try:
            is_object = isinstance(json.loads(text), dict)
        except ValueError:
            is_object = False
        if not is_object:
            raise ValueError("expected an object of JSON")
        return cls(text)

    def values(self) -> Mapping[str, Any]:
        values: Mapping[str, Any] = json.loads(self.text)
        return values

    def __str__(self) -> str:
        return self.text


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetFlags:
    """What `trioton fleet` takes besides a server's flags.

    Raises:
        UsageError: flags that contradict each other.
    """

    replicas: int = flag(
        2, integer(1, MOST_REPLICAS), group=FLEET, metavar=INTEGER, help="How many servers there are at the start."
    )
    min_replicas: int = flag(
        1, integer(1, MOST_REPLICAS), group=FLEET, metavar=INTEGER, help="The fewest that scaling leaves."
    )
    max_replicas: int = flag(
        8, integer(1, MOST_REPLICAS), group=FLEET, metavar=INTEGER, help="The most that there may be."
    )
    scale_by: Signal = flag(  # noqa: RUF009 (a field, as its neighbours)
        Signal.NONE,
        lambda text: Signal(choice(*Signal)(text)),
        group=FLEET,
        metavar=f"{{{','.join(Signal)}}}",
        help="What the number of replicas follows: requests that wait, requests in flight, or the 99th percentile of "
        "the duration of requests.",
    )
    scale_target: float = flag(
        4.0,
        positive,
        group=FLEET,
        metavar="<number>",
        help="What --scale-by is held at: requests for each replica, or with p99 milliseconds.",
    )
    scale_interval_secs: float = flag(
        2.0, positive, group=FLEET, metavar=SECONDS, help="How often the signal of --scale-by is read."
    )
    scale_up_cooldown_secs: float = flag(
        10.0, seconds, group=FLEET, metavar=SECONDS, help="How long after a change no replica is added."
    )
    scale_down_cooldown_secs: float = flag(
        120.0,
        seconds,
        group=FLEET,
        metavar=SECONDS,
        help="How long fewer replicas must have been enough, and the last change be past, before one is ended.",
    )
    driver: DriverName = flag(  # noqa: RUF009 (a field, as its neighbours)
        DriverName.LOCAL,
        lambda text: DriverName(choice(*DriverName)(text)),
        group=FLEET,
        metavar=f"{{{','.join(DriverName)}}}",
        help="What runs the replicas: processes of this machine, or actors of a Ray cluster.",
    )
    ray_address: str = flag(
        "auto", str, group=FLEET, metavar="<address>", help="The Ray cluster of --driver=ray, as ray.init takes it."
    )
    ray_options: ActorOptions = flag(  # noqa: RUF009 (a field, as its neighbours)
        ActorOptions(),
        ActorOptions.parse,
        group=FLEET,
        metavar="<json>",
        help='Options of the actor of each replica, as Ray has them: {"num_cpus": 2, "num_gpus": 0.5}.',
    )
    gpus_per_replica: float | None = flag(
        None,
        gpus_per_replica,
        group=FLEET,
        metavar="<number>",
        help="How many GPUs each replica has for itself; 0.5 for two replicas on each. Without it all replicas of "
        "--driver=local see all GPUs.",
    )
    fleet_address: str = flag(
        "127.0.0.1", str, group=FLEET, metavar="<address>", help="Where the fleet itself is controlled."
    )
    fleet_port: int = flag(
        8003, port, group=FLEET, metavar=INTEGER, help="The port on which the fleet itself is controlled, over HTTP."
    )
    fleet_key_file: Path | None = flag(  # noqa: RUF009 (a field, as its neighbours)
        None,
        filesystem_path,
        group=FLEET,
        metavar=PATH,
        help="A file with the bearer key by which the fleet calls its replicas; --auth-keys-file needs one. Who "
        "controls the fleet must come with it, too.",
    )
    sequences_from: SequenceSource = flag(  # noqa: RUF009 (a field, as its neighbours)
        SequenceSource.BODY,
        lambda text: SequenceSource(choice(*SequenceSource)(text)),
        group=FLEET,
        metavar=f"{{{','.join(SequenceSource)}}}",
        help="Where the balancer looks for the id of a sequence. header: in x-sequence-id alone; body: in the request, "
        "too.",
    )
    sequence_idle_secs: int = flag(
        600,
        integer(1, 86_400),
        group=FLEET,
        metavar=INTEGER,
        help="How long the balancer remembers the replica of a sequence without a request of it.",
    )
    slow_start_secs: int = flag(
        10,
        integer(0, 3600),
        group=FLEET,
        metavar=INTEGER,
        help="Over how long a new replica's share of the requests grows to that of the others.",
    )
    start_timeout_secs: float = flag(
        600.0, positive, group=FLEET, metavar=SECONDS, help="How long a replica may take until it is ready."
    )
    drain_timeout_secs: float = flag(
        60.0,
        seconds,
        group=FLEET,
        metavar=SECONDS,
        help="How long a replica that is to end may go on with its requests, streams and sequences.",
    )
    update_watch_secs: float = flag(
        10.0,
        seconds,
        group=FLEET,
        metavar=SECONDS,
        help="How long an updated replica must pass its probes before the next is updated.",
    )
    update_probe: tuple[Probe, ...] = repeatable(
        Probe.parse,
        group=FLEET,
        metavar="/<path>[@<file>]",
        help="A request that an updated replica must answer with 200, besides that for its readiness: GET, or POST "
        "with the content of a file.",
    )
    haproxy: str = flag("haproxy", str, group=FLEET, metavar=PATH, help="HAProxy's executable; 2.6 or newer, with Lua.")

    def __post_init__(self) -> None:
        if not self.min_replicas <= self.replicas <= self.max_replicas:
            raise UsageError(
                f"--replicas must lie within --min-replicas and --max-replicas, expected {self.min_replicas} to "
                f"{self.max_replicas}, got {self.replicas}"
            )
