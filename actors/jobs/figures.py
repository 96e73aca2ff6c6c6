"""What the jobs of a server count, for its metrics."""

from __future__ import annotations

from dataclasses import dataclass, field

from protocol.jobs.states import JobState
from protocol.jobs.store import StoreFigures


@dataclass(slots=True)
class WebhookFigures:
    """Since the start: deliveries that were taken, attempts that failed, and deliveries that were given up."""

    delivered: int = 0
    failures: int = 0
    abandoned: int = 0


@dataclass(slots=True)
class RunnerFigures:
    """What was counted since the start: items by how they ended, and attempts that were for nothing. `store` is how it
    was when it was last looked at; `webhooks` is there where the server sends any."""

    items: dict[JobState, int] = field(default_factory=dict)
    retries: int = 0
    store: StoreFigures | None = None
    webhooks: WebhookFigures | None = None
