"""Flags for loading models and placing their instances. Part of `trioton.settings`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from trioton.flags.fields import UsageError, at_least, boolean, flag, integer, of_device, repeatable, seconds
from trioton.host_policies import HostPolicySetting, host_policy_setting, resolve_host_policies

LOADING = "Loading and placement of models"


@dataclass(frozen=True, slots=True)
class GpuLimit:
    """One `--model-load-gpu-limit`. `fraction` is from 0.0 to 1.0."""

    device_id: int
    fraction: float


def fraction(text: str) -> float:
    value = float(text)
    if not 0.0 <= value <= 1.0:
        raise ValueError("expected a fraction from 0.0 to 1.0")
    return value


gpu_limit = of_device(
    GpuLimit,
    fraction,
    "--model-load-gpu-limit option format is '<device>:<fraction>', the fraction from 0.0 to 1.0",
)


@dataclass(frozen=True, kw_only=True)  # without slots, so that a class may have several such parts
class LoadingFlags:
    """The part of the settings that is about loading."""

    engine: str = flag(
        "",
        str,
        group=LOADING,
        metavar="<backend>",
        help="The engine of language models whose configuration names none. Where absent, openvino_genai, or vllm for "
        "Hugging Face's files where there is a GPU and vLLM is installed.",
    )
    model_load_thread_count: int = flag(
        4, at_least(1), group=LOADING, metavar="<integer>", help="How many models may load at the same time."
    )
    model_load_retry_count: int = flag(
        0,
        at_least(0),
        group=LOADING,
        metavar="<integer>",
        help="How often the load of a model that has failed is tried again.",
    )
    model_load_gpu_limit: tuple[GpuLimit, ...] = repeatable(
        gpu_limit,
        group=LOADING,
        metavar="<device>:<fraction>",
        help="Load no model onto this GPU while more than this fraction of its memory is used. May be given several "
        "times.",
    )
    model_memory_budget: int | None = flag(
        None,
        integer(1),
        group=LOADING,
        metavar="<bytes>",
        help="The memory that all models may hold together. Above it those not used for longest are unloaded, "
        "and loaded again by the next request for them. Where absent, all stay loaded.",
    )
    restart_wait_secs: float = flag(
        5.0,
        seconds,
        group=LOADING,
        metavar="<seconds>",
        help="How long requests wait while the last instance of their model, which has died, is started again; 0 to "
        "refuse them at once. They wait in the model's queue, within its limits and timeouts.",
    )
    worker_fork_server: bool = flag(
        True,
        boolean,
        group=LOADING,
        metavar="<boolean>",
        help="Fork worker processes of model.py files from a process that has imported what all of them do, one for "
        "each interpreter; false starts each by itself.",
    )
    host_policy: tuple[HostPolicySetting, ...] = repeatable(
        host_policy_setting,
        group=LOADING,
        metavar="<policy>,<setting>=<value>",
        help="Where instances of this host policy run: cpu-cores=<cores, as in 0-3,8> or numa-node=<number>. Instances "
        "have the policy that their instance_group names, else cpu, gpu_<device> or model, after their kind. May be "
        "given several times.",
    )

    def host_policies(self) -> Mapping[str, frozenset[int]]:
        """The cores of each host policy. Raises UsageError where this machine does not have them."""
        try:
            return resolve_host_policies(self.host_policy)
        except ValueError as error:
            raise UsageError(f"--host-policy: {error}") from None
