"""Candidates, trials and outcomes: what a search is about."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import msgspec


@dataclass(frozen=True, slots=True)
class Candidate:
    """A way to configure the model.

    Attributes:
        key: what tells it from all others; settings as text. Empty for the default, which changes nothing.
        changes: how many settings differ from the default.
        predicted: the greatest rate by the formula; None where it says nothing.
    """

    key: str
    changes: int = 0
    predicted: float | None = None


class Space(Protocol):
    """All candidates."""

    def first(self) -> Sequence[Candidate]:
        """Those to begin with, the default first, the most promising next."""

    def neighbours(self, candidate: Candidate) -> Sequence[Candidate]:
        """Those that differ in one setting, the most promising first."""


@dataclass(frozen=True, slots=True)
class Trial:
    """One measurement: a candidate is offered a rate, for so many seconds."""

    candidate: str
    rate: float
    seconds: float
    stage: str


class Stages(msgspec.Struct, frozen=True):
    """Mean seconds of a request in each part of its way through the server."""

    queue: float = 0.0
    input: float = 0.0
    infer: float = 0.0
    output: float = 0.0


class Outcome(msgspec.Struct, frozen=True):
    """What a trial has shown.

    Attributes:
        achieved: requests a second that were answered.
        latency: of the percentile that is bounded, in seconds; None where nothing was answered.
        cost: how long all of it took, the load of the candidate included.
        memory: bytes of all processes of the server.
        processor: seconds of processors for a request, of all processes of the server.
        failure: why the candidate is out of the question: it does not load, or answers otherwise than the default.
    """

    achieved: float = 0.0
    latency: float | None = None
    margin: float | None = None
    error_share: float = 0.0
    cost: float = 0.0
    memory: int = 0
    device_memory: int = 0
    processor: float = 0.0
    mean_batch: float = 0.0
    percentiles: dict[str, float] = {}
    stages: Stages | None = None
    limits: tuple[str, ...] = ()
    failure: str = ""


@dataclass(frozen=True, slots=True)
class Measured:
    """A trial with its outcome."""

    trial: Trial
    outcome: Outcome


@dataclass(slots=True)
class Record:
    """All that was measured of one candidate."""

    candidate: Candidate
    measured: list[Measured] = field(default_factory=list)

    @property
    def failure(self) -> str:
        return next((each.outcome.failure for each in self.measured if each.outcome.failure), "")

    @property
    def memory(self) -> int:
        """The most that was seen."""
        return max((each.outcome.memory for each in self.measured), default=0)
