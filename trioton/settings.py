"""All settings of a server, as one frozen typed object.

Names, defaults and units are those of Triton's flags. `trioton.cli` makes it from the command line and the environment,
a program that embeds a `trioton.server.Server` makes it directly; `trioton.server` hands each part of the server what
it needs of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias, cast

from actors.instance.rate_limit_policy import RateLimitResource
from actors.tracing.settings import TracerSettings
from protocol.reactor.drivers import PollerKind
from repository.layout import ModelDirectory, Repository
from repository.stores.store_repository import Stores
from repository.stores.urls import StoreUrl
from trioton.compatibility_flags import COMPATIBILITY, CompatibilityFlags
from trioton.debug_delays import DebugDelays
from trioton.device_flags import DEVICES, DeviceFlags
from trioton.flags import (
    BOOLEANS,
    UsageError,
    at_least,
    boolean,
    choice,
    filesystem_path,
    flag,
    integer,
    read_arguments,
    repeatable,
    rows,
    seconds,
    switch,
)
from trioton.grpc_flags import GRPC, GrpcFlags
from trioton.host_policies import resolve_host_policies
from trioton.http_flags import HTTP, HttpFlags
from trioton.loading_flags import LOADING, LoadingFlags
from trioton.machine import available_memory, core_count, default_request_memory, memory_size
from trioton.metrics_flags import MetricSetting, metric_setting, shows_metrics, skipped_quantiles, summary_quantiles
from trioton.scheduling_flags import (
    CacheChoice,
    CacheOption,
    cache_choice,
    cache_option,
    rate_limit_mode,
    rate_limit_resource,
)
from trioton.store_flags import STORES, StoreFlags, repository_place
from trioton.trace_flags import (
    TraceOption,
    trace_count,
    trace_level,
    trace_log_frequency,
    trace_option,
    trace_rate,
    tracer_settings,
)

Address: TypeAlias = tuple[str, int]
"""A host's name or address, and a port."""
LogFormat: TypeAlias = Literal["default", "ISO8601"]

ANY_ADDRESSES = frozenset({"0.0.0.0", "::", ""})

SERVER = "Server and model repository"
METRICS = "Metrics"
SCHEDULING = "Response cache and rate limiter"
LOGGING = "Logging"
TRACING = "Tracing"
DEMO = "Demo"
RUN = "Run"
TOOLS = "Command"
# The headings of the help text in its order, with the words that ask for one alone.
GROUPS = {
    TOOLS: "command",
    RUN: "run",
    SERVER: "server",
    STORES: "stores",
    LOADING: "loading",
    DEVICES: "gpus",
    HTTP: "http",
    GRPC: "grpc",
    METRICS: "metrics",
    SCHEDULING: "scheduling",
    LOGGING: "logging",
    TRACING: "tracing",
    DEMO: "demo",
    COMPATIBILITY: "compatibility",
}


@dataclass(frozen=True, slots=True)
class BackendSetting:
    """One `--backend-config`. An empty `backend` means a setting for all backends."""

    backend: str
    key: str
    value: str


def backend_setting(text: str) -> BackendSetting:
    head, equals, value = text.partition("=")
    backend, comma, key = head.partition(",")
    if not comma:
        backend, key = "", backend
    if not equals or not key or (comma and not backend):
        raise ValueError("--backend-config option format is '<backend name>,<setting>=<value>'")
    return BackendSetting(backend, key, value)


def backend_settings(settings: Sequence[BackendSetting]) -> dict[str, dict[str, str]]:
    """The settings of each backend, by its name ("" for all)."""
    made: dict[str, dict[str, str]] = {}
    for setting in settings:
        made.setdefault(setting.backend, {})[setting.key] = setting.value
    return made


def config_name(text: str) -> str:
    if not text or not text.isprintable() or any(mark in text for mark in " /\\"):
        raise ValueError("expected the name of a file in configs/, without .pbtxt, spaces and slashes")
    return text


def verbosity(text: str) -> int:
    """A level, or true and false for 1 and 0."""
    value = BOOLEANS.get(text.lower())
    return at_least(0)(text) if value is None else int(value)


def log_format(text: str) -> LogFormat:
    return cast(LogFormat, choice("default", "ISO8601")(text))


def _poller_kind(text: str) -> PollerKind:
    return cast(PollerKind, choice("inline", "task")(text))


_PORT = integer(0, 65535)
BUSY_POLL_SECONDS = 200e-6
_BOOL = "<boolean>"
_INT = "<integer>"
_TEXT = "<string>"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings(CompatibilityFlags, LoadingFlags, DeviceFlags, StoreFlags, HttpFlags, GrpcFlags):
    """A server's settings: a keyword argument for each flag of `trioton serve`, with its name, default and unit.

    `--http-port` is `http_port`. Values are numbers, booleans, texts and paths; a flag that may be given several times
    takes a tuple. Those whose texts have a form of their own, as `--cache-config`, are read by `from_flags`. Port 0
    lets the system choose. An empty `metrics_address` means that of HTTP.

    Raises:
        UsageError: settings that contradict each other.
    """

    model_repository: tuple[Path | StoreUrl, ...] = repeatable(
        repository_place,
        group=SERVER,
        metavar="<path>",
        aliases=("model-store",),
        help="A directory of models, or one in an object store: s3://bucket/path, gs://bucket/path, "
        "as://account/container/path. May be given several times; all are served together.",
    )
    # No flags: `trioton run` sets them. One model to serve besides the repositories, and whether it is loaded again
    # when its files change (which takes `model_control_mode` explicit).
    model: ModelDirectory | None = None
    reload: bool = False
    id: str = flag(
        "trioton", str, group=SERVER, metavar=_TEXT, help="The server's name in the answer to a metadata request."
    )
    model_control_mode: str = flag(
        "none",
        choice("none", "poll", "explicit"),
        group=SERVER,
        metavar="{none,poll,explicit}",
        help="none: load all models at start, and leave it at that. poll: as none, and follow the changes of the "
        "repositories. explicit: load those named by --load-model, and let clients load and unload.",
    )
    repository_poll_secs: float = flag(
        15.0,
        seconds,
        group=SERVER,
        metavar="<seconds>",
        help="In poll mode, how often to look at the repositories; 0 for never.",
    )
    model_namespacing: bool = flag(
        False,
        boolean,
        group=SERVER,
        metavar=_BOOL,
        help="Serve models of one name from several repositories, told apart by their repository's path.",
    )
    load_model: tuple[str, ...] = repeatable(
        str,
        group=SERVER,
        metavar="<name>",
        help="A model to load at start in explicit mode. May be given several times; `*` alone means all.",
    )
    exit_on_error: bool = flag(
        True, boolean, group=SERVER, metavar=_BOOL, help="Stop if a model fails to load at start."
    )
    strict_readiness: bool = flag(
        True, boolean, group=SERVER, metavar=_BOOL, help="Be ready only while every model that was asked for is."
    )
    disable_auto_complete_config: bool = switch(
        group=SERVER, help="Require complete configurations; fill in nothing from the models."
    )
    strict_model_config: bool = flag(
        False, boolean, group=SERVER, metavar=_BOOL, help="Deprecated: --disable-auto-complete-config."
    )
    model_config_name: str = flag(
        "",
        config_name,
        group=SERVER,
        metavar="<name>",
        help="Take the configuration of each model that has configs/<name>.pbtxt in its directory from there.",
    )
    backend_config: tuple[BackendSetting, ...] = repeatable(
        backend_setting,
        group=SERVER,
        metavar="<backend>,<setting>=<value>",
        help="A setting for a backend. May be given several times.",
    )
    backend_directory: tuple[Path, ...] = repeatable(
        filesystem_path,
        group=SERVER,
        metavar="<path>",
        help="A directory of Python-based backends, each a folder <name>/model.py. May be given several times.",
    )
    allow_client_shm: bool = flag(
        False,
        boolean,
        group=SERVER,
        metavar=_BOOL,
        help="Let clients on this machine register shared memory and pass tensors in it.",
    )
    auth_keys_file: Path | None = flag(  # noqa: RUF009 (a field, as its neighbours)
        None,
        filesystem_path,
        group=SERVER,
        metavar="<path>",
        help="A TOML file of bearer keys; every call then needs one that allows it. Read again when it changes.",
    )
    max_request_memory: int | None = flag(
        None,
        integer(1),
        group=SERVER,
        metavar=_INT,
        help="The most bytes that the bodies of all requests in flight hold, over HTTP and gRPC, with the responses "
        "that wait for their clients to read; others are refused. "
        "Where absent, a quarter of the memory that is available once the models are loaded, in this machine or its "
        "control group.",
    )
    busy_poll_microseconds: int | None = flag(
        None,
        integer(0, 10_000),
        group=SERVER,
        metavar=_INT,
        help="How long to look for requests and for answers of workers before sleeping, where they have come sooner "
        "than that lately; 0 for never. It answers quick requests sooner, and takes as much of one core. Where absent, "
        "200, or 0 where the server has less than two cores.",
    )
    poller: PollerKind = flag(  # noqa: RUF009 (a field, as its neighbours)
        "inline",
        _poller_kind,
        group=SERVER,
        metavar="{inline,task}",
        help="How sockets of clients and workers are waited for. inline: in place of Trio's own wait for I/O, with one "
        "private attribute of Trio's. task: by a task, with Trio's public interface only; it takes more processor time "
        "for each request, and does not busy-poll. Where the attribute is missing, it is task.",
    )
    drain_secs: int = flag(
        0,
        integer(0),
        group=SERVER,
        metavar=_INT,
        help="How long a server that was told to stop goes on taking requests while it says that it is not ready, so "
        "that load balancers look elsewhere.",
    )
    exit_timeout_secs: int = flag(
        30, at_least(0), group=SERVER, metavar=_INT, help="How long requests in flight may take to end at exit."
    )

    allow_metrics: bool = flag(True, boolean, group=METRICS, metavar=_BOOL, help="Serve metrics.")
    metrics_address: str = flag(
        "", str, group=METRICS, metavar=_TEXT, help="The address to listen on; where absent, that of HTTP."
    )
    metrics_port: int = flag(8002, _PORT, group=METRICS, metavar=_INT, help="The port to listen on.")
    metrics_use_ssl: bool = flag(
        False,
        boolean,
        group=METRICS,
        metavar=_BOOL,
        help="Serve metrics over HTTPS, with the certificates of HTTP; needs --http-use-ssl=true.",
    )
    metrics_interval_ms: int = flag(
        2000, integer(0), group=METRICS, metavar=_INT, help="How old the readings of the machine's load may be."
    )
    allow_cpu_metrics: bool = flag(
        True, boolean, group=METRICS, metavar=_BOOL, help="Show how busy the processors are, and the machine's memory."
    )
    allow_gpu_metrics: bool = flag(
        True, boolean, group=METRICS, metavar=_BOOL, help="Show the same of NVIDIA's GPUs, where there are any."
    )

    metrics_config: tuple[MetricSetting, ...] = repeatable(
        metric_setting,
        group=METRICS,
        metavar="<setting>=<value>",
        help="counter_latencies, histogram_latencies (both on) and summary_latencies (off): whether these groups of "
        "metrics are shown. summary_quantiles=<quantile>:<error>,… : those of the summaries, 0.5, 0.9, 0.95, 0.99 and "
        "0.999 where absent. May be given several times.",
    )

    cache_config: tuple[CacheOption, ...] = repeatable(
        cache_option,
        group=SCHEDULING,
        metavar="<cache>,<setting>=<value>",
        help="Keep responses of models with response_cache { enable: true }. local,size=<bytes>: in memory. "
        "redis,host=<name>: in a Redis server. May be given several times, for one cache.",
        is_secret=True,
    )
    response_cache_byte_size: int = flag(
        0, integer(0), group=SCHEDULING, metavar=_INT, help="Deprecated: --cache-config local,size=<integer>."
    )
    rate_limit: str = flag(
        "off",
        rate_limit_mode,
        group=SCHEDULING,
        metavar="{off,execution_count}",
        help="execution_count: a model instance runs only while the resources of its rate_limiter are free.",
    )
    rate_limit_resource: tuple[RateLimitResource, ...] = repeatable(
        rate_limit_resource,
        group=SCHEDULING,
        metavar="<resource>:<count>[:<device>]",
        help="How many units of a resource there are; where absent, as many as the instance that needs most. May be "
        "given several times.",
    )

    log_verbose: int = flag(
        0, verbosity, group=LOGGING, metavar=_INT, help="Show verbose messages up to this level; 0 shows none."
    )
    log_info: bool = flag(True, boolean, group=LOGGING, metavar=_BOOL, help="Show messages of level info.")
    log_warning: bool = flag(True, boolean, group=LOGGING, metavar=_BOOL, help="Show messages of level warning.")
    log_error: bool = flag(True, boolean, group=LOGGING, metavar=_BOOL, help="Show messages of level error.")
    log_format: LogFormat = flag(  # noqa: RUF009 (a field, as its neighbours)
        "default", log_format, group=LOGGING, metavar="{default,ISO8601}", help="The layout of log lines."
    )
    log_file: str = flag(
        "", str, group=LOGGING, metavar="<path>", help="Append all messages to this file, not to the console."
    )
    # No flag, as in Triton: the environment variable TRITON_SERVER_ESCAPE_LOG_MESSAGES sets it.
    log_escape: bool = True
    # Neither have these: the environment variables TRITONSERVER_DELAY_… set them.
    debug_delays: DebugDelays = DebugDelays()  # noqa: RUF009 (frozen)

    trace_config: tuple[TraceOption, ...] = repeatable(
        trace_option,
        group=TRACING,
        metavar="[<mode>,]<setting>=<value>",
        help="A setting of tracing. May be given several times. For all modes: level (off, timestamps, tensors), rate, "
        "count, mode (triton, opentelemetry). For triton: file, log-frequency. For opentelemetry: url, "
        "resource=<key>=<value>, bsp_max_queue_size, bsp_schedule_delay, bsp_max_export_batch_size.",
    )
    trace_file: str = flag(
        "", str, group=TRACING, metavar="<path>", help="Deprecated: --trace-config triton,file=<path>."
    )
    trace_level: tuple[str, ...] = repeatable(
        trace_level, group=TRACING, metavar="<level>", help="Deprecated: --trace-config level=<level>."
    )
    trace_rate: int | None = flag(
        None, trace_rate, group=TRACING, metavar=_INT, help="Deprecated: --trace-config rate=<integer>."
    )
    trace_count: int | None = flag(
        None, trace_count, group=TRACING, metavar=_INT, help="Deprecated: --trace-config count=<integer>."
    )
    trace_log_frequency: int | None = flag(
        None,
        trace_log_frequency,
        group=TRACING,
        metavar=_INT,
        help="Deprecated: --trace-config triton,log-frequency=<integer>.",
    )

    @classmethod
    def from_flags(cls, words: Sequence[str]) -> Settings:
        """Settings from flags as `trioton serve` takes them, such as
        `["--model-repository=models", "--cache-config=local,size=1048576"]`. The environment is not looked at.

        Raises:
            UsageError: a flag is unknown, its value cannot be read, or settings contradict each other.
        """
        return cls(**read_arguments(rows(cls), words))

    def __post_init__(self) -> None:
        if not self.model_repository and self.model is None:
            raise UsageError("--model-repository is required: the directory that holds the models")
        if self.load_model and self.model_control_mode != "explicit":
            raise UsageError("Error: Use of '--load-model' requires setting '--model-control-mode=explicit' as well.")
        if "*" in self.load_model and len(set(self.load_model)) > 1:
            raise UsageError("Error: Wildcard '*' in '--load-model' must be the only value of that flag.")
        _refuse_shared_ports(self.services())
        self.check_grpc()
        self.check_http()
        self.check_compatibility()
        if self.metrics_use_ssl and not self.http_use_ssl:
            raise UsageError("--metrics-use-ssl needs --http-use-ssl=true, whose certificates it serves with")
        self.tracing()
        self.cache()
        self.host_policies()

    def repositories(self, stores: Stores) -> tuple[Repository, ...]:
        """Where models are looked for."""
        given = dict.fromkeys(self.model_repository)  # one that is given twice is one
        places = [stores.repository(place) if isinstance(place, StoreUrl) else place for place in given]
        return tuple(places) if self.model is None else (self.model, *places)

    def auto_complete_config(self) -> bool:
        """Whether configurations are filled up from the models."""
        return not (self.disable_auto_complete_config or self.strict_model_config)

    def host_policies(self) -> Mapping[str, frozenset[int]]:
        """The cores of each host policy. Raises UsageError where this machine does not have them."""
        try:
            return resolve_host_policies(self.host_policy)
        except ValueError as error:
            raise UsageError(f"--host-policy: {error}") from None

    def request_memory(self) -> int:
        """As given, or what suits the memory that is available now: to be asked when the models are loaded."""
        return self.max_request_memory or default_request_memory(memory_size(), available_memory())

    def busy_poll_seconds(self) -> float:
        if self.busy_poll_microseconds is not None:
            return self.busy_poll_microseconds / 1e6
        return BUSY_POLL_SECONDS if core_count() >= 2 else 0.0  # of one core, its workers need what it would take

    def shows_metrics(self, group: str) -> bool:
        """Whether a group of metrics is shown."""
        return shows_metrics(self.metrics_config, group)

    def summary_quantiles(self) -> tuple[float, ...]:
        """The quantiles of the latency summaries; none where there are no summaries."""
        return summary_quantiles(self.metrics_config)

    def cache(self) -> CacheChoice | None:
        """The response cache, if there is to be one. Raises UsageError."""
        return cache_choice(self.cache_config, self.response_cache_byte_size)

    def tracing(self) -> TracerSettings:
        """What all the trace flags say together; `--trace-config` wins over the older ones.

        Raises:
            UsageError: tracing is asked for, but cannot be.
        """
        older = {
            ("", "rate"): self.trace_rate,
            ("", "count"): self.trace_count,
            ("triton", "log-frequency"): self.trace_log_frequency,
            ("triton", "file"): self.trace_file or None,
        }
        return tracer_settings(
            [
                *(TraceOption("", "level", level) for level in self.trace_level),
                *(TraceOption(*key, value) for key, value in older.items() if value is not None),
                *self.trace_config,
            ]
        )

    def notices(self) -> list[str]:
        """What was given and is not followed, as sentences for the log."""
        notices = [*skipped_quantiles(self.metrics_config), *self.compatibility_notices()]
        return [*notices, *self.debug_delays.notices()]

    def services(self) -> dict[str, Address]:
        """The addresses asked for, by the word in their flags; in the order in which they open."""
        wanted = {
            "grpc": (self.allow_grpc, self.grpc_address, self.grpc_port),
            "http": (self.allow_http, self.http_address, self.http_port),
            "metrics": (self.allow_metrics, self.metrics_address or self.http_address, self.metrics_port),
        }
        return {word: (address, port) for word, (allowed, address, port) in wanted.items() if allowed}


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoSettings:
    """What `trioton demo` can be told."""

    once: bool = switch(group=DEMO, help="End by itself, with exit code 0 only if all answers were right.")
    repository: Path | None = flag(  # noqa: RUF009 (a field, as its neighbours)
        None,
        filesystem_path,
        group=DEMO,
        metavar="<path>",
        help="Where to build the models; where absent, ./.demo/models.",
    )
    http_port: int = flag(8000, _PORT, group=DEMO, metavar=_INT, help="The port for HTTP.")
    grpc_port: int = flag(8001, _PORT, group=DEMO, metavar=_INT, help="The port for gRPC.")
    metrics_port: int = flag(8002, _PORT, group=DEMO, metavar=_INT, help="The port for metrics.")


def _refuse_shared_ports(services: dict[str, Address]) -> None:
    taken: list[tuple[str, Address]] = []
    for word, (address, port) in services.items():
        for other, (other_address, other_port) in taken:
            overlaps = address == other_address or not ANY_ADDRESSES.isdisjoint((address, other_address))
            if port and port == other_port and overlaps:
                raise UsageError(
                    f"--{other}-port and --{word}-port are both {port} on {address}: each needs a port of its own"
                )
        taken.append((word, (address, port)))
