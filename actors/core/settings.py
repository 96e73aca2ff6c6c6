"""Settings of the core, and the model manager that is made from them.

Flow: command line → [core settings] → core → model manager. Others have `CoreSettings` from `actors.core.server_core`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import trio

from actors.cache.response_cache import ResponseCache
from actors.instance.rate_limit_policy import RateLimitResource
from actors.instance.rate_limiter import RateLimiter
from actors.lifecycle.loader import ModelLoader
from actors.lifecycle.manager import ControlMode, ModelManager
from actors.metrics.latencies import HistogramDetail
from actors.scheduling.batching.held import NO_HOLD, SchedulerHold
from backends.devices.devices import Devices
from backends.registry import BackendRegistry
from backends.server_resources import ServerResources
from backends.services import BackendServices
from repository.agents.registry import AgentRegistry
from repository.instance_groups import MINIMUM_COMPUTE_CAPABILITY
from repository.layout import Repository
from repository.repositories import Repositories
from repository.text_models import NO_TEXT_DEFAULTS, TextDefaults


@dataclass(frozen=True, slots=True)
class CoreSettings:
    """What the core needs to know. `backend_config` maps a backend's name ("" for all) to its settings."""

    repositories: tuple[Repository, ...]
    server_id: str = "trioton"
    control_mode: ControlMode = ControlMode.NONE
    poll_seconds: float = 15.0
    load_models: tuple[str, ...] = ()
    is_namespaced: bool = False
    open_repository: Callable[[str], Repository] = Path
    strict_readiness: bool = True
    # Where adapters may lie that are added while a model is loaded; without any none are.
    adapter_folders: tuple[Path, ...] = ()
    auto_complete_config: bool = True
    model_config_name: str = ""
    backend_config: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    engine: str = ""
    model_load_thread_count: int = 4
    model_load_retry_count: int = 0
    model_memory_budget: int | None = None  # bytes
    # By device, and by the policy's name.
    model_load_gpu_limits: Mapping[int, float] = field(default_factory=dict)
    host_policies: Mapping[str, frozenset[int]] = field(default_factory=dict)
    min_compute_capability: float = MINIMUM_COMPUTE_CAPABILITY
    gpu_fallback: bool = False
    # How long requests wait while the last instance of their model is started again; 0 for not at all.
    restart_wait_seconds: float = 0.0
    # How many requests new schedulers wait for, in tests.
    scheduler_hold: SchedulerHold = NO_HOLD
    latency_histograms: HistogramDetail = HistogramDetail.FEW
    summary_quantiles: tuple[float, ...] = ()
    # Of models that say nothing of their texts themselves.
    text_defaults: TextDefaults = NO_TEXT_DEFAULTS
    # Requests without an id are listed too while they are in flight.
    tracks_all_requests: bool = False
    # None where the rate limiter is off.
    rate_limit_resources: tuple[RateLimitResource, ...] | None = None


def model_manager(
    settings: CoreSettings,
    registry: BackendRegistry,
    compute_capabilities: Sequence[str],
    limiter: RateLimiter | None,
    *,
    cache: ResponseCache | None,
    services: BackendServices,
    agents: AgentRegistry,
    devices: Devices,
    resources: ServerResources,
) -> ModelManager:
    """Not yet run. `compute_capabilities` has one for each GPU."""
    loader = ModelLoader(
        registry,
        compute_capabilities=compute_capabilities,
        auto_complete_config=settings.auto_complete_config,
        config_name=settings.model_config_name,
        histograms=settings.latency_histograms,
        summary_quantiles=settings.summary_quantiles,
        backend_config=settings.backend_config,
        engine=settings.engine,
        cache=cache,
        rate_limiter=limiter,
        services=services,
        agent_registry=agents,
        host_policies=settings.host_policies,
        gpu_limits=settings.model_load_gpu_limits,
        devices=devices,
        min_compute_capability=settings.min_compute_capability,
        gpu_fallback=settings.gpu_fallback,
        restart_wait_seconds=settings.restart_wait_seconds,
        scheduler_hold=settings.scheduler_hold,
        resources=resources,
        text_defaults=settings.text_defaults,
    )
    return ModelManager(
        Repositories(settings.repositories, is_namespaced=settings.is_namespaced, open_place=settings.open_repository),
        loader,
        control_mode=settings.control_mode,
        poll_seconds=settings.poll_seconds,
        load_models=settings.load_models,
        load_limit=trio.CapacityLimiter(settings.model_load_thread_count),
        load_retries=settings.model_load_retry_count,
        memory_budget=settings.model_memory_budget,
        failures=services.failures,
    )
