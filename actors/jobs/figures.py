"""What the jobs of a server count, for its metrics."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class WebhookFigures:
    """Since the start: deliveries that were taken, attempts that failed, and deliveries that were given up."""

    delivered: int = 0
    failures: int = 0
    abandoned: int = 0
