"""Records of the sequence batcher: sequences, their steps and their slots.

Plain data; `actors.scheduling.sequence.policy` changes it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import TypeAlias

from actors.mail.messages import QueuedRequest, ShapeKey
from protocol.messages import InferenceRequest, Tensor

CorrelationId: TypeAlias = int | str
# A model instance, as a policy knows it: something to tell it from the others.
Instance: TypeAlias = Hashable


@dataclass(eq=False, slots=True)
class Slot:
    """A sequence's place on an instance. For the strategy `direct`, `index` is also its row in every batch.

    `running` is the step that runs there. It may be the last one of a sequence that has left the slot to another.
    """

    instance: Instance
    index: int
    sequence: LiveSequence | None = None
    running: Step | None = None


@dataclass(eq=False, slots=True)
class LiveSequence:
    """A sequence that has not ended. Without a slot it is in the backlog, or has been given up.

    At most one of its steps runs at a time. `is_open` says that more may come: its END has not been seen. `states` are
    its implicit states, as the next step gets them, and `correlation_id` the tensor that tells the model its id.
    """

    id: CorrelationId
    waiting: deque[Step] = field(default_factory=deque)
    running: Step | None = None
    slot: Slot | None = None
    is_open: bool = True
    is_offered: bool = False
    states: tuple[Tensor, ...] = ()
    correlation_id: Tensor | None = None


@dataclass(eq=False, slots=True)
class Step:
    """One request of a sequence; of an iterative one, the request itself, round after round.

    `request` and `shape_key` are as they came. `item.request` is what runs: with the tensors that the batcher adds.
    `states` are those that it has got, for a stream that fails. `first_started` is when its first round was handed
    over, `first_response` when a decoupled model's first response left, both in seconds of Trio's clock. `slot` is
    where it runs.
    """

    sequence: LiveSequence
    item: QueuedRequest
    request: InferenceRequest
    shape_key: ShapeKey
    is_start: bool
    is_end: bool
    states: tuple[Tensor, ...] = ()
    slot: Slot | None = None
    first_started: float | None = None
    first_response: float | None = None
