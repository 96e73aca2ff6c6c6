"""All settings of a server, as one frozen typed object.

Names, defaults and units are those of Triton's flags. `trioton.cli` makes it from the command line and the environment,
a program that embeds a `trioton.server.Server` makes it directly; `trioton.server` hands each part of the server what
it needs of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from trioton.debug_delays import DebugDelays
from trioton.flags.capture import CAPTURE, CaptureFlags
from trioton.flags.cloud import CLOUD, CloudFlags
from trioton.flags.compatibility import COMPATIBILITY, CompatibilityFlags
from trioton.flags.demo import DEMO
from trioton.flags.device import DEVICES, DeviceFlags
from trioton.flags.fields import UsageError, read_arguments, rows
from trioton.flags.grpc import GRPC, GrpcFlags
from trioton.flags.http import HTTP, HttpFlags
from trioton.flags.job import JOBS, JobFlags
from trioton.flags.job_webhook import JobWebhookFlags
from trioton.flags.loading import LOADING, LoadingFlags
from trioton.flags.logging import LOGGING, LoggingFlags
from trioton.flags.metrics import METRICS, MetricsFlags, skipped_quantiles
from trioton.flags.openai import OPENAI, OpenAIFlags
from trioton.flags.quota import QuotaFlags
from trioton.flags.scheduling import SCHEDULING, SchedulingFlags
from trioton.flags.server import SERVER, ServerFlags
from trioton.flags.store import STORES, StoreFlags
from trioton.flags.trace import TRACING, TraceFlags

Address: TypeAlias = tuple[str, int]
"""A host's name or address, and a port."""

ANY_ADDRESSES = frozenset({"0.0.0.0", "::", ""})

RUN = "Run"
BATCH = "Batch"
FLEET = "Fleet"
FRONTEND = "As Triton's OpenAI frontend"
TOOLS = "Command"
# The headings of the help text in its order, with the words that ask for one alone.
GROUPS = {
    TOOLS: "command",
    RUN: "run",
    BATCH: "batch",
    FLEET: "fleet",
    FRONTEND: "frontend",
    SERVER: "server",
    STORES: "stores",
    LOADING: "loading",
    DEVICES: "gpus",
    HTTP: "http",
    OPENAI: "openai",
    GRPC: "grpc",
    CLOUD: "cloud",
    METRICS: "metrics",
    SCHEDULING: "scheduling",
    JOBS: "jobs",
    LOGGING: "logging",
    TRACING: "tracing",
    CAPTURE: "capture",
    DEMO: "demo",
    COMPATIBILITY: "compatibility",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings(
    CaptureFlags,
    TraceFlags,
    LoggingFlags,
    JobFlags,
    JobWebhookFlags,
    QuotaFlags,
    SchedulingFlags,
    MetricsFlags,
    ServerFlags,
    CompatibilityFlags,
    LoadingFlags,
    DeviceFlags,
    StoreFlags,
    HttpFlags,
    OpenAIFlags,
    GrpcFlags,
    CloudFlags,
):
    """A server's settings: a keyword argument for each flag of `trioton serve`, with its name, default and unit.

    `--http-port` is `http_port`. Values are numbers, booleans, texts and paths; a flag that may be given several times
    takes a tuple. Those whose texts have a form of their own, as `--cache-config`, are read by `from_flags`. Port 0
    lets the system choose. An empty `metrics_address` means that of HTTP.

    Raises:
        UsageError: settings that contradict each other.
    """

    # No flags, as in Triton: the environment variables TRITONSERVER_DELAY_… set them.
    debug_delays: DebugDelays = DebugDelays()  # noqa: RUF009 (frozen)

    @classmethod
    def from_flags(cls, words: Sequence[str]) -> Settings:
        """Settings from flags as `trioton serve` takes them, such as
        `["--model-repository=models", "--cache-config=local,size=1048576"]`. The environment is not looked at.

        Raises:
            UsageError: a flag is unknown, its value cannot be read, or settings contradict each other.
        """
        return cls(**read_arguments(rows(cls), words))

    def __post_init__(self) -> None:
        if not (self.model_repository or self.folders or self.model):
            raise UsageError("--model-repository is required: the directory that holds the models")
        if self.load_model and self.model_control_mode != "explicit":
            raise UsageError("Error: Use of '--load-model' requires setting '--model-control-mode=explicit' as well.")
        if "*" in self.load_model and len(set(self.load_model)) > 1:
            raise UsageError("Error: Wildcard '*' in '--load-model' must be the only value of that flag.")
        _refuse_shared_ports(self.services())
        self.check_grpc()
        self.check_http()
        self.check_openai()
        self.check_cloud(self.services())
        self.check_webhooks()
        self.check_quotas(self.auth_keys_file)
        if self.metrics_use_ssl and not self.http_use_ssl:
            raise UsageError("--metrics-use-ssl needs --http-use-ssl=true, whose certificates it serves with")
        self.tracing()
        self.cache()
        self.host_policies()

    def notices(self) -> list[str]:
        """What was given and is not followed, as sentences for the log."""
        notices = [*skipped_quantiles(self.metrics_config), *self.compatibility_notices()]
        return [*notices, *self.debug_delays.notices()]

    def services(self) -> dict[str, Address]:
        """The addresses asked for, by the word in their flags; in the order in which they open."""
        wanted = {
            "grpc": (self.allow_grpc, self.grpc_address, self.grpc_port),
            "http": (self.allow_http, self.http_address, self.http_port),
            "openai": (self.openai_port is not None, self.openai_address or self.http_address, self.openai_port or 0),
            **self.cloud_services(),
            "metrics": (self.allow_metrics, self.metrics_address or self.http_address, self.metrics_port),
        }
        return {word: (address, port) for word, (allowed, address, port) in wanted.items() if allowed}


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
