"""Categories of API calls (Triton's restricted API names), and the groups of categories that a key grants.

Source: Triton, "Limit Endpoint Access". Every endpoint and rpc belongs to one category; both edges' tables name it.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum


class Category(StrEnum):
    """Triton's categories of calls, by their names in its flags, and `metrics`.

    What is ours and not Triton's falls in with its like: OpenAPI pages and gRPC reflection with `metadata`,
    `grpc.health.v1` with `health`.
    """

    HEALTH = "health"
    METADATA = "metadata"
    INFERENCE = "inference"
    SHARED_MEMORY = "shared-memory"
    MODEL_CONFIG = "model-config"
    MODEL_REPOSITORY = "model-repository"
    STATISTICS = "statistics"
    TRACE = "trace"
    LOGGING = "logging"
    METRICS = "metrics"


# What there is over gRPC.
RESTRICTABLE = tuple(category for category in Category if category is not Category.METRICS)

# What a person gives a key: each category is in one group, and all of them in the last.
GROUPS: Mapping[str, frozenset[Category]] = {
    "inference": frozenset({Category.INFERENCE}),
    "health": frozenset({Category.HEALTH}),
    "metadata": frozenset({Category.METADATA, Category.MODEL_CONFIG}),
    "model-control": frozenset({Category.MODEL_REPOSITORY}),
    "shared-memory": frozenset({Category.SHARED_MEMORY}),
    "metrics": frozenset({Category.METRICS, Category.STATISTICS}),
    "settings": frozenset({Category.TRACE, Category.LOGGING}),
    "all": frozenset(Category),
}


def group_of(category: Category) -> str:
    """The smallest group that allows the category."""
    return next(name for name, members in GROUPS.items() if category in members)
