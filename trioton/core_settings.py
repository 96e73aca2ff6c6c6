"""What the core is told of a server's settings.

Part of the composition root; `trioton.server` makes the core with it.
"""

from __future__ import annotations

from functools import partial

from actors.core.server_core import ControlMode, CoreSettings
from repository.layout import Repository
from repository.stores.store_repository import Stores
from repository.stores.urls import StoreUrl
from trioton.flags.server import BackendSetting, backend_settings
from trioton.flags.store import repository_place
from trioton.settings import Settings


def _open_repository(stores: Stores, text: str) -> Repository:
    place = repository_place(text)
    return stores.repository(place) if isinstance(place, StoreUrl) else place


def _python_settings(settings: Settings) -> tuple[BackendSetting, ...]:
    """What flags of their own say to the Python backend; a --backend-config wins."""
    return () if settings.worker_fork_server else (BackendSetting("python", "worker-fork-server", "false"),)


def core_settings(settings: Settings, stores: Stores) -> CoreSettings:
    """The settings of the core; `stores` open the repositories that lie in buckets."""
    return CoreSettings(
        repositories=settings.repositories(stores),
        open_repository=partial(_open_repository, stores),
        server_id=settings.id,
        control_mode=ControlMode(settings.model_control_mode),
        poll_seconds=settings.repository_poll_secs,
        load_models=settings.load_model,
        is_namespaced=settings.model_namespacing,
        adapter_folders=settings.openai_lora_path,
        strict_readiness=settings.strict_readiness,
        auto_complete_config=settings.auto_complete_config(),
        model_config_name=settings.model_config_name,
        backend_config=backend_settings((*_python_settings(settings), *settings.backend_config)),
        engine=settings.engine,
        model_load_thread_count=settings.model_load_thread_count,
        model_load_retry_count=settings.model_load_retry_count,
        model_memory_budget=settings.model_memory_budget,
        model_load_gpu_limits={limit.device_id: limit.fraction for limit in settings.model_load_gpu_limit},
        host_policies=settings.host_policies(),
        min_compute_capability=settings.min_supported_compute_capability,
        gpu_fallback=settings.gpu_fallback,
        restart_wait_seconds=settings.restart_wait_secs,
        scheduler_hold=settings.debug_delays.scheduler,
        latency_histograms=settings.histogram_detail(),
        summary_quantiles=settings.summary_quantiles(),
        rate_limit_resources=settings.rate_limit_resource if settings.rate_limit == "execution_count" else None,
        text_defaults=settings.text_defaults(),
        tracks_all_requests=settings.console,
    )
