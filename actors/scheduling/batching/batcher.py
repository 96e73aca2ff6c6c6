"""Factory of schedulers for models without sequences: Triton's default scheduler or its dynamic batcher."""

from __future__ import annotations

from collections import Counter

from actors.metrics.statistics import FlushReason, VersionStatistics
from actors.scheduling.batching.adaptive import AdaptiveBatchingPolicy, AdaptiveTuning, read_adaptive_settings
from actors.scheduling.batching.dynamic import DynamicBatchingPolicy
from actors.scheduling.batching.held import NO_HOLD, HeldPolicy, SchedulerHold
from actors.scheduling.batching.policy import BatchingPolicy, DirectPolicy
from actors.scheduling.batching.queue_policy import QueuePolicies
from actors.scheduling.ordered_replies import OrderedReplies
from actors.scheduling.scheduler import Scheduler
from protocol.failures import CallbackFailures
from repository.model_config import ModelConfig


def build_scheduler(
    config: ModelConfig,
    statistics: VersionStatistics,
    *,
    can_run_ahead: bool,
    instances: int = 1,
    restart_wait: float = 0.0,
    hold: SchedulerHold = NO_HOLD,
    failures: CallbackFailures | None = None,
) -> Scheduler:
    """The scheduler that the configuration asks for, not yet running.

    Args:
        can_run_ahead: whether the model's backend can be given a batch while it runs one.
        instances: how many instances there are to be.
        restart_wait: how many seconds requests wait for an instance that is started again.
        hold: until when a dynamic batcher gives nothing out, in tests.
        failures: counts its defects.

    Raises:
        InvalidArgument: a parameter about batching is wrong.
    """
    batching = config.dynamic_batching
    policy: BatchingPolicy
    adaptive = read_adaptive_settings(config)
    tuning: AdaptiveTuning | None = None
    if batching is None:
        policy = DirectPolicy()
    elif adaptive is None:
        policy = DynamicBatchingPolicy(batching, max_batch_size=config.max_batch_size)
    else:
        tuning = AdaptiveTuning(adaptive, max_batch_size=config.max_batch_size, instances=instances)
        policy = AdaptiveBatchingPolicy(batching, max_batch_size=config.max_batch_size, tuning=tuning)
    if batching is not None and hold.requests:
        policy = HeldPolicy(policy, hold.requests)
    if batching is not None:
        statistics.flushes = Counter(dict.fromkeys(FlushReason, 0))
    return Scheduler(
        config.name,
        policy,
        statistics,
        ordered=OrderedReplies() if config.preserves_ordering and not config.is_decoupled else None,
        is_decoupled=config.is_decoupled,
        tuning=tuning,
        failures=failures or CallbackFailures(),
        runs_ahead=_runs_ahead(config, can_run_ahead=can_run_ahead),
        restart_wait=restart_wait,
    )


def _runs_ahead(config: ModelConfig, *, can_run_ahead: bool) -> bool:
    """Whether busy instances are given their next batch.

    Always with `eager_batching`. Else, as in Triton, for a dynamic batcher without timeouts, queue limits and priority
    levels, whose requests must stay in the queue for those to have their effect; and only where the backend makes use
    of it: it then goes from batch to batch without a wait for the server's loop.
    """
    if config.optimization is not None and config.optimization.eager_batching:
        return True
    batching = config.dynamic_batching
    if batching is None or config.is_decoupled or not can_run_ahead:
        return False
    policies = QueuePolicies(batching)
    return not (policies.has_timeouts or policies.has_limits or policies.levels > 1)
