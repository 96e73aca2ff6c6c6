"""Facts that decide which settings can be tried: of the machine, the server, the data and the bound."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from repository.model_config import ModelConfig
from trioton.analyze.space.axes import Axis


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is known beside the configuration.

    Attributes:
        cores: that the server may use.
        bound: of the latency, in seconds.
        largest_request: rows of the largest request that clients send. No smaller batch size is tried, as such a
            request would be refused.
        has_cache: the server has a response cache, and the data repeats as that of clients does.
        allows_in_process: the operator allows models in the server's process.
        host_policies: names of those that the server has.
        shape_rules: rules that fit the shapes of the data, as JSON; empty where there is nothing to pad.
    """

    cores: int
    bound: float = math.inf
    largest_request: int = 1
    has_cache: bool = False
    allows_in_process: bool = False
    host_policies: tuple[str, ...] = ()
    shape_rules: str = ""


@dataclass(frozen=True, slots=True)
class Setting:
    """An axis, and what an option of it makes of a configuration."""

    axis: Axis
    apply: Callable[[ModelConfig, str], ModelConfig]
