"""Everything that can be configured, as one frozen typed object.

Names, defaults and units are those of Triton's flags. `trioton.cli` makes it from the command line and the
environment, a program that embeds a `trioton.server.Server` makes it directly; `trioton.server` hands each part of the
server what it needs of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Literal, TypeAlias, cast

from protocol.access.forwarding import HeaderForwarding
from protocol.access.restricted import GRPC_PROTOCOL, HTTP_API, Restriction
from trioton.flags import UsageError, boolean, choice, flag, integer, repeatable, switch

Address: TypeAlias = tuple[str, int]
LogFormat: TypeAlias = Literal["default", "ISO8601"]

ANY_ADDRESSES = frozenset({"0.0.0.0", "::", ""})

SERVER = "Server and model repository"
HTTP = "HTTP"
GRPC = "gRPC"
METRICS = "Metrics"
LOGGING = "Logging"
DEMO = "Demo"


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


@dataclass(frozen=True, slots=True)
class MetricSetting:
    """One `--metrics-config`: whether a group of metrics is shown."""

    group: str
    is_shown: bool


def metric_setting(text: str) -> MetricSetting:
    group, equals, value = text.partition("=")
    if not equals:
        raise ValueError("--metrics-config option format is <setting>=<value>")
    if group in ("summary_latencies", "summary_quantiles"):
        if group == "summary_latencies" and not boolean(value):
            return MetricSetting(group, False)
        raise ValueError(f"{group} is not supported; histogram_latencies, which is on, lets you compute any quantile")
    if group not in ("counter_latencies", "histogram_latencies"):
        raise ValueError("unknown setting of --metrics-config; expected counter_latencies or histogram_latencies")
    return MetricSetting(group, boolean(value))


def control_mode(text: str) -> str:
    if text == "poll":
        raise ValueError("model control mode 'poll' is not supported yet; expected none or explicit")
    return choice("none", "explicit")(text)


def verbosity(text: str) -> int:
    """A level, or true and false for 1 and 0."""
    match text.lower():
        case "true" | "on":
            return 1
        case "false" | "off":
            return 0
    return integer(0)(text)


def log_format(text: str) -> LogFormat:
    return cast(LogFormat, choice("default", "ISO8601")(text))


_PORT = integer(0, 65535)
_BOOL = "<boolean>"
_INT = "<integer>"
_TEXT = "<string>"


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """A server's settings.

    Ports: 0 lets the system choose. An empty `metrics_address` means that of HTTP.

    Raises:
        UsageError: settings that contradict each other.
    """

    model_repository: tuple[Path, ...] = repeatable(
        Path,
        group=SERVER,
        metavar="<path>",
        aliases=("model-store",),
        help="A directory of models. May be given several times; all are served together.",
    )
    id: str = flag(
        "trioton", str, group=SERVER, metavar=_TEXT, help="The server's name in the answer to a metadata request."
    )
    model_control_mode: str = flag(
        "none",
        control_mode,
        group=SERVER,
        metavar="{none,explicit}",
        help="none: load all models at start, and leave it at that. explicit: load those named by --load-model, "
        "and let clients load and unload.",
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
    model_load_thread_count: int = flag(
        4, integer(1), group=SERVER, metavar=_INT, help="How many models may load at the same time."
    )
    backend_config: tuple[BackendSetting, ...] = repeatable(
        backend_setting,
        group=SERVER,
        metavar="<backend>,<setting>=<value>",
        help="A setting for a backend. May be given several times.",
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
        Path,
        group=SERVER,
        metavar="<path>",
        help="A TOML file of bearer keys; every call then needs one that allows it. Read again when it changes.",
    )
    exit_timeout_secs: int = flag(
        30, integer(0), group=SERVER, metavar=_INT, help="How long requests in flight may take to end at exit."
    )

    allow_http: bool = flag(True, boolean, group=HTTP, metavar=_BOOL, help="Serve HTTP.")
    http_address: str = flag("0.0.0.0", str, group=HTTP, metavar=_TEXT, help="The address to listen on.")
    http_port: int = flag(8000, _PORT, group=HTTP, metavar=_INT, help="The port to listen on.")
    http_max_input_size: int = flag(
        67108864,
        integer(1),
        group=HTTP,
        metavar=_INT,
        help="The most bytes of a request's JSON part, of a tensor given as JSON, and of a decompressed body.",
    )
    http_max_body_size: int = flag(
        2**31,
        integer(1),
        group=HTTP,
        metavar=_INT,
        help="The most bytes of a whole request body, binary tensors included.",
    )
    http_restricted_api: tuple[Restriction, ...] = repeatable(
        partial(Restriction.parse, dialect=HTTP_API),
        group=HTTP,
        metavar="<api>[,<api>]:<header>=<value>",
        help="Calls that need a header with this value. May be given several times.",
        is_secret=True,
    )
    http_header_forward_pattern: HeaderForwarding | None = flag(  # noqa: RUF009 (a field, as its neighbours)
        None,
        HeaderForwarding,
        group=HTTP,
        metavar="<regular expression>",
        help="Request headers whose names it matches become parameters of the inference request.",
    )

    allow_grpc: bool = flag(True, boolean, group=GRPC, metavar=_BOOL, help="Serve gRPC.")
    grpc_address: str = flag("0.0.0.0", str, group=GRPC, metavar=_TEXT, help="The address to listen on.")
    grpc_port: int = flag(8001, _PORT, group=GRPC, metavar=_INT, help="The port to listen on.")
    grpc_restricted_protocol: tuple[Restriction, ...] = repeatable(
        partial(Restriction.parse, dialect=GRPC_PROTOCOL),
        group=GRPC,
        metavar="<protocol>[,<protocol>]:<key>=<value>",
        help="Calls that need the metadata triton-grpc-protocol-<key> with this value. May be given several times.",
        is_secret=True,
    )
    grpc_header_forward_pattern: HeaderForwarding | None = flag(  # noqa: RUF009 (a field, as its neighbours)
        None,
        HeaderForwarding,
        group=GRPC,
        metavar="<regular expression>",
        help="Request metadata whose keys it matches become parameters of the inference request.",
    )

    allow_metrics: bool = flag(True, boolean, group=METRICS, metavar=_BOOL, help="Serve metrics.")
    metrics_address: str = flag(
        "", str, group=METRICS, metavar=_TEXT, help="The address to listen on; where absent, that of HTTP."
    )
    metrics_port: int = flag(8002, _PORT, group=METRICS, metavar=_INT, help="The port to listen on.")
    metrics_interval_ms: int = flag(
        2000, integer(1), group=METRICS, metavar=_INT, help="How old the readings of the machine's load may be."
    )

    metrics_config: tuple[MetricSetting, ...] = repeatable(
        metric_setting,
        group=METRICS,
        metavar="<setting>=<boolean>",
        help="counter_latencies and histogram_latencies: whether these groups of metrics are shown; both are on. May "
        "be given several times.",
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

    def __post_init__(self) -> None:
        if not self.model_repository:
            raise UsageError("--model-repository is required: the directory that holds the models")
        if self.load_model and self.model_control_mode != "explicit":
            raise UsageError("Error: Use of '--load-model' requires setting '--model-control-mode=explicit' as well.")
        if "*" in self.load_model and len(self.load_model) > 1:
            raise UsageError("Error: Wildcard '*' in '--load-model' must be the only value of that flag.")
        _refuse_shared_ports(self.services())

    def shows_metrics(self, group: str) -> bool:
        """Whether a group of metrics is shown: as the last `--metrics-config` about it says, else yes."""
        return next((given.is_shown for given in reversed(self.metrics_config) if given.group == group), True)

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
        None, Path, group=DEMO, metavar="<path>", help="Where to build the models; where absent, ./.demo/models."
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


# Flags of Triton's that are not built, each with what to use in its place.
UNBUILT_FLAGS: dict[str, str] = dict.fromkeys(
    """
    repository-poll-secs model-config-name model-load-retry-count model-namespacing enable-peer-access
    reuse-http-port http-thread-count
    reuse-grpc-port grpc-infer-thread-count grpc-infer-allocation-pool-size grpc-max-response-pool-size
    grpc-infer-response-compression-level grpc-use-ssl grpc-use-ssl-mutual grpc-server-cert grpc-server-key
    grpc-root-cert grpc-keepalive-time grpc-keepalive-timeout grpc-keepalive-permit-without-calls
    grpc-http2-max-pings-without-data grpc-http2-min-recv-ping-interval-without-data grpc-http2-max-ping-strikes
    grpc-max-connection-age grpc-max-connection-age-grace
    allow-gpu-metrics allow-cpu-metrics
    trace-config trace-file trace-level trace-rate trace-count trace-log-frequency
    cache-config cache-directory response-cache-byte-size rate-limit rate-limit-resource
    pinned-memory-pool-byte-size cuda-memory-pool-byte-size cuda-virtual-address-size
    min-supported-compute-capability buffer-manager-thread-count host-policy model-load-gpu-limit
    backend-directory repoagent-directory
    allow-sagemaker sagemaker-port sagemaker-safe-port-range sagemaker-thread-count
    allow-vertex-ai vertex-ai-port vertex-ai-thread-count vertex-ai-default-model
    """.split(),  # noqa: SIM905 (a word list reads better than fifty quoted strings)
    "",
) | {"strict-model-config": "; --disable-auto-complete-config does what --strict-model-config=true did"}
