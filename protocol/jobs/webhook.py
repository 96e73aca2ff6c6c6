"""Webhooks of jobs: where a client wants to be told that its job has come to a state, and the deliveries that this
makes. Those of batches are the same, told of a batch's end as of its job's. Pure.

A delivery is kept by the store from the moment its job is in that state, in the same transaction, until its receiver
has taken it or it is given up: it outlives the server, and the job.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from protocol.errors import InvalidArgument
from protocol.jobs.job import Job
from protocol.jobs.states import JobState

EVENT_STATES = (JobState.RUNNING, *(state for state in JobState if state.is_ended))
END_STATES = frozenset(state for state in JobState if state.is_ended)


@dataclass(frozen=True, slots=True)
class Webhook:
    """Attributes:
    url: http or https.
    host: what of the URL is one receiver to the bounds on deliveries: scheme, host and port.
    states: those that are told.
    """

    url: str
    host: str
    states: frozenset[JobState] = END_STATES


@dataclass(frozen=True, slots=True)
class Delivery:
    """One event for one receiver.

    Attributes:
        id: the same in every attempt.
        owner: that of the job.
        state: what the job came to, at the time `created`.
        job: as it was then.
        attempt: how often it was tried, this time included.
    """

    id: str
    owner: str
    url: str
    host: str
    state: JobState
    job: Job
    created: float
    attempt: int


@dataclass(frozen=True, slots=True)
class DeliveryRoom:
    """How many deliveries may be under way at the same time, and which are. `hosts` and `owners` count the latter."""

    total: int
    per_host: int
    per_owner: int
    hosts: Mapping[str, int] = field(default_factory=dict)
    owners: Mapping[str, int] = field(default_factory=dict)


def event_name(state: JobState) -> str:
    return f"job.{state}"


JOB_EVENTS: Mapping[str, JobState] = {event_name(state): state for state in EVENT_STATES}


def states_of(events: Sequence[str], known: Mapping[str, JobState] = JOB_EVENTS) -> frozenset[JobState]:
    """Raises InvalidArgument."""
    if not events or not known.keys() >= {*events}:
        raise InvalidArgument(f"'webhook': expected events out of {', '.join(known)}, got {list(events)!r:.200}")
    return frozenset([known[event] for event in events])


def new_delivery_id() -> str:
    return f"msg_{secrets.token_hex(16)}"
