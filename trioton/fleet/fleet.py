"""Composition root of a fleet: what there is, in which order it starts and ends.

sockets → control → HAProxy → supervisor → replicas        and back
"""

from __future__ import annotations

import logging
import socket
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import trio

from protocol.access.control import AccessControl
from protocol.access.restricted import GRPC_PROTOCOL, RestrictedApis
from protocol.errors import Unavailable
from protocol.failures import CallbackFailures
from protocol.http.connections import serve_app
from protocol.http.reply import Reply
from protocol.http.settings import ConnectionLimits
from protocol.limits.request_memory import RequestMemory
from protocol.metrics_text import MetricsText
from protocol.reactor.tls import TlsFiles
from trioton.fleet.balancer import Balancer, find_haproxy
from trioton.fleet.checks import check_settings
from trioton.fleet.control_grpc import ControlCalls, serve_control_grpc
from trioton.fleet.control_http import MAX_BODY_BYTES, ControlApp
from trioton.fleet.driver import CannotStart, Driver
from trioton.fleet.everywhere import Everywhere
from trioton.fleet.flags import DriverName, FleetFlags, Signal
from trioton.fleet.fleet_api import FleetApi
from trioton.fleet.fleet_metrics import fleet_series
from trioton.fleet.gpus import GpuShares, NoGpus, visible_gpus
from trioton.fleet.haproxy_config import SHARE_KEY, BalancerPlan, Certificates, Frontend
from trioton.fleet.http_call import Headers
from trioton.fleet.life import Lives
from trioton.fleet.local_driver import LocalDriver
from trioton.fleet.replicas import Registry
from trioton.fleet.scaler import Scaler
from trioton.fleet.supervisor import Supervisor
from trioton.fleet.words import ServerWords
from trioton.metrics.exposition import Exposition
from trioton.service_names import SERVICE_NAMES, address_text
from trioton.settings import ANY_ADDRESSES, Address, Settings

logger = logging.getLogger("trioton.fleet")

_SCRIPT = Path(__file__).with_name("sequence_id.lua")
_LOCAL = "127.0.0.1"
_BACKLOG = 1024
# So that HAProxy sees that a replica ends which was told so by somebody else, before it refuses requests.
LEAST_DRAIN_SECONDS = 3
# For one more while an update runs, for a canary, and for those that still drain.
_MORE_SLOTS = 4


class CannotListen(Exception):
    """An address is taken, or there is no such; the text says which."""


class Fleet:
    """One fleet, good for one `run`.

    Raises:
        UsageError: flags of servers that a fleet cannot have.
    """

    def __init__(
        self, flags: FleetFlags, words: ServerWords, settings: Settings, environment: Mapping[str, str], key: str
    ) -> None:
        check_settings(settings, flags)
        self._flags = flags
        self._words = words
        self._settings = settings
        self._environment = environment
        self._key = key
        self._supervisor: Supervisor | None = None
        self._api: FleetApi | None = None
        self._metrics: MetricsText | None = None
        self._failures = CallbackFailures()
        self._gpus: GpuShares | None = None
        self._is_ending = False
        self.addresses: dict[str, Address] = {}

    def end(self) -> None:
        """Have all replicas end in order; `run` returns then."""
        self._is_ending = True
        if self._supervisor is not None:
            self._supervisor.end()

    async def run(self) -> None:
        """Until `end`. Cancelled: all processes are killed.

        Raises:
            CannotBalance, CannotListen, CannotServe, CannotStart: it has not come up.
        """
        executable = await find_haproxy(self._flags.haproxy)
        if self._flags.gpus_per_replica is not None and self._flags.driver is DriverName.LOCAL:
            self._split_gpus(self._flags.gpus_per_replica)
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="trioton-fleet-")))
            sockets = {word: stack.enter_context(_listen(*where)) for word, where in self._services().items()}
            for word, each in sockets.items():
                host, port, *_ = each.getsockname()
                self.addresses[word] = (host, port)
            async with trio.open_nursery() as nursery:
                await self._run(executable, folder, sockets, nursery)
                nursery.cancel_scope.cancel()

    def _split_gpus(self, per_replica: float) -> None:
        """Raises CannotStart: there are not enough for the first replicas."""
        shares = self._gpus = GpuShares(visible_gpus(self._environment), per_replica)
        try:
            shares.check(self._flags.replicas)
        except NoGpus as error:
            raise CannotStart(f"{error}; see --gpus-per-replica and --replicas") from None
        if self._flags.max_replicas > shares.most_replicas:
            logger.info("at most %d replicas, since there are GPUs for no more", shares.most_replicas)
            self._flags = replace(self._flags, max_replicas=shares.most_replicas)

    async def _run(
        self, executable: str, folder: Path, sockets: Mapping[str, socket.socket], nursery: trio.Nursery
    ) -> None:
        flags, slots = self._flags, 2 * self._flags.max_replicas + _MORE_SLOTS
        registry = Registry(slots)
        everywhere = Everywhere(registry, self._own_headers)
        control_http, control_grpc = await self._open_control(everywhere, nursery)
        balancer = Balancer(
            executable,
            self._plan(folder, sockets, slots, control_http, control_grpc),
            folder,
            [each.fileno() for each in sockets.values()],
        )
        supervisor = self._supervisor = Supervisor(
            registry,
            balancer,
            self._words,
            flags.replicas,
            ready_seconds=flags.start_timeout_secs,
            watch_seconds=flags.update_watch_secs,
        )
        lives = supervisor.lives = Lives(
            flags,
            registry,
            balancer,
            await self._driver(nursery),
            everywhere,
            self._own_headers,
            supervisor.is_watched,
            lambda: supervisor.is_ending,
            self._drain_secs + self._settings.exit_timeout_secs,
        )
        scaler = Scaler(flags, supervisor, lives.figures)
        self._metrics = MetricsText(Exposition([partial(fleet_series, supervisor, scaler)]).render)
        self._api = FleetApi(flags, supervisor, everywhere, scaler, self._environment, self._key)
        await nursery.start(balancer.run)
        if self._is_ending:
            return
        async with trio.open_nursery() as working:
            working.start_soon(self._tell_started, registry)
            working.start_soon(scaler.run)
            await supervisor.run()
            working.cancel_scope.cancel()

    async def _driver(self, nursery: trio.Nursery) -> Driver:
        """Raises CannotStart."""
        if self._flags.driver is DriverName.LOCAL:
            return LocalDriver(nursery, self._environment, self._replica_flags(), self._gpus)
        try:
            from trioton.ray.driver import RayDriver
        except ImportError as error:
            raise CannotStart(f"--driver=ray needs the extra 'ray' ({error}): pip install trioton[ray]") from None
        address = self._flags.ray_address
        return await RayDriver.connect(address, ray_options(self._flags), self._environment, self._replica_flags())

    async def _open_control(self, everywhere: Everywhere, nursery: trio.Nursery) -> tuple[Address, Address]:
        """Where it listens, over HTTP and gRPC."""
        app = ControlApp(everywhere, self._metrics_text, RequestMemory(MAX_BODY_BYTES), self._call)
        limits = ConnectionLimits()
        serve = partial(serve_app, app, self._flags.fleet_address, self._flags.fleet_port, limits, trio.Event())
        try:
            host, port, *_ = await nursery.start(partial(serve, failures=self._failures))
        except OSError as error:
            raise CannotListen(f"{error.strerror or error}; see --fleet-address and --fleet-port") from None
        self.addresses["fleet"] = (host, port)
        calls = ControlCalls(everywhere, self._restrictions)
        restricted = RestrictedApis(self._settings.grpc_restricted_protocol, GRPC_PROTOCOL)
        listeners = await trio.open_tcp_listeners(0, host=_LOCAL)
        handlers = calls.handlers(AccessControl(restricted))
        nursery.start_soon(serve_control_grpc, handlers, listeners, self._failures)
        return (_LOCAL if host in ANY_ADDRESSES else host, port), (_LOCAL, listeners[0].socket.getsockname()[1])

    async def _call(self, method: str, path: str, headers: Mapping[bytes, bytes], body: bytes) -> Reply | None:
        if self._api is None:
            raise Unavailable("the fleet is only starting")
        return await self._api(method, path, headers, body)

    async def _metrics_text(self) -> MetricsText:
        if self._metrics is None:
            raise Unavailable("the fleet is only starting")
        return self._metrics

    def _plan(
        self, folder: Path, sockets: Mapping[str, socket.socket], slots: int, http: Address, grpc: Address
    ) -> BalancerPlan:
        share_map = folder / "share.map"
        share_map.write_text(f"{SHARE_KEY} 0\n")
        tls = {"http": self._settings.http_tls(), "grpc": self._settings.grpc_tls()}
        tls["metrics"] = tls["http"] if self._settings.metrics_use_ssl else None
        fronts = {
            word: Frontend(each.fileno(), _certificates(tls[word], folder / word)) for word, each in sockets.items()
        }
        return BalancerPlan(
            slots=slots,
            http=fronts["http"],
            grpc=fronts["grpc"],
            metrics=fronts.get("metrics"),
            control_http=address_text(http),
            control_grpc=address_text(grpc),
            socket=folder / "admin.sock",
            script=_SCRIPT,
            share_map=share_map,
            sequences_from=self._flags.sequences_from,
            sequence_idle_secs=self._flags.sequence_idle_secs,
            slow_start_secs=self._flags.slow_start_secs,
            check_headers=[(name.decode(), value.decode()) for name, value in self._own_headers()],
        )

    async def _tell_started(self, registry: Registry) -> None:
        while len(registry.serving()) < self._flags.replicas:
            await registry.changed.wait()
        for word, address in self.addresses.items():
            logger.info("Started %s at %s", {**SERVICE_NAMES, "fleet": "Fleet Control"}[word], address_text(address))

    def _services(self) -> dict[str, Address]:
        services = dict(self._settings.services())
        return {word: services[word] for word in ("http", "grpc", "metrics") if word in services}

    @property
    def _drain_secs(self) -> int:
        return max(self._settings.drain_secs, LEAST_DRAIN_SECONDS)

    def _replica_flags(self) -> tuple[str, ...]:
        """Those that win over what was given."""
        own = [f"--drain-secs={self._drain_secs}", "--log-file="]
        if self._flags.scale_by is Signal.P99:
            own.append("--metrics-config=histogram_latencies=true")
        return tuple(own)

    def _own_headers(self) -> Headers:
        key = [(b"authorization", f"Bearer {self._key}".encode())] if self._key else []
        return [*key, *self._restrictions()]

    def _restrictions(self) -> Headers:
        """What the replicas' restricted APIs want to see."""
        return [(each.header.encode(), each.value.encode()) for each in self._settings.http_restricted_api]


def ray_options(flags: FleetFlags) -> Mapping[str, Any]:
    """Of each replica's actor."""
    given = flags.ray_options.values()
    return given if flags.gpus_per_replica is None else {**given, "num_gpus": flags.gpus_per_replica}


def _listen(host: str, port: int) -> socket.socket:
    """Raises CannotListen."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=_BACKLOG)
    except OSError as error:
        raise CannotListen(f"cannot listen on {host}:{port}: {error.strerror or error}") from None


def _certificates(files: TlsFiles | None, name: Path) -> Certificates | None:
    """HAProxy wants the key beside the certificate, by name: links to both."""
    if files is None:
        return None
    certificate = name.with_suffix(".pem")
    certificate.symlink_to(files.certificate.absolute())
    Path(f"{certificate}.key").symlink_to(files.key.absolute())
    roots = None if files.root_certificate is None else files.root_certificate.absolute()
    return Certificates(certificate, roots)
