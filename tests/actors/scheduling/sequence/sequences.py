"""What the tests of the sequence batcher share: configurations, and requests of sequences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import trio

from actors.mail.messages import QueuedRequest, ShapeKey
from actors.mail.reply_slot import Reply
from actors.scheduling.sequence.policy import SequencePolicy
from actors.scheduling.sequence.strategy import Rows
from protocol.datatypes import DataType
from protocol.messages import InferenceRequest
from repository.model_config import (
    Control,
    ControlInput,
    ControlKind,
    ModelConfig,
    ModelInput,
    ModelOutput,
    ModelSequenceBatching,
    SequenceState,
    StrategyDirect,
    StrategyOldest,
)
from tests.actors.fakes import tensor

START, END = True, True
IDLE_MICROSECONDS = 1_000_000


def config(
    *,
    max_batch_size: int = 4,
    direct: StrategyDirect | None = None,
    oldest: StrategyOldest | None = None,
    control_input: tuple[ControlInput, ...] = (),
    state: tuple[SequenceState, ...] = (),
    iterative: bool = False,
    idle_us: int = IDLE_MICROSECONDS,
) -> ModelConfig:
    """A model like the fake backend's; without a strategy it is `direct`."""
    return ModelConfig(
        name="m",
        backend="fake",
        max_batch_size=max_batch_size,
        input=(ModelInput(name="IN", data_type=DataType.FP32, dims=(2,)),),
        output=(ModelOutput(name="OUT", data_type=DataType.FP32, dims=(2,)),),
        sequence_batching=ModelSequenceBatching(
            direct=direct,
            oldest=oldest,
            max_sequence_idle_microseconds=idle_us,
            control_input=control_input,
            state=state,
            iterative_sequence=iterative,
        ),
    )


def id_control(data_type: DataType = DataType.UINT64) -> ControlInput:
    return ControlInput("CORRID", (Control(ControlKind.SEQUENCE_CORRID, data_type=data_type),))


class Caller:
    """A request of a sequence together with the end at which its answer arrives."""

    def __init__(
        self,
        sequence_id: int | str = 1,
        *,
        start: bool = False,
        end: bool = False,
        id: str = "",
        size: int = 1,
        arrival: float = 0.0,
        key: ShapeKey = None,
        timeout_us: int = 0,
        value: float = 0.0,
        outputs: tuple[str, ...] = (),
        buffered: int = 1,
    ) -> None:
        request = InferenceRequest(
            "m",
            [tensor(size, value=value)],
            id=id,
            requested_outputs=outputs,
            sequence_id=sequence_id,
            sequence_start=start,
            sequence_end=end,
            timeout_microseconds=timeout_us,
        )
        reply, self.answers = trio.open_memory_channel[Reply](buffered)
        self.item = QueuedRequest(request, size, key, arrival, reply)

    def answer(self) -> Reply | None:
        """The answer, if it is there."""
        try:
            return self.answers.receive_nowait()
        except trio.WouldBlock:
            return None


class Instances:
    """A policy and its instances: runs batches by hand, also several at once. Requests are known by their ids."""

    def __init__(self, policy: SequencePolicy, *names: str) -> None:
        self.policy = policy
        self._running: dict[str, list[Rows]] = {}
        for name in names:
            policy.add_instance(name)

    def begin(self, name: str = "a", *, now: float = 0.0) -> list[str | None] | None:
        """Give the instance its next batch: the rows' request ids."""
        found = self.policy.next_batch(name, now)
        if found is None:
            return None
        self._running.setdefault(name, []).append(found[0])
        return [None if step is None else step.item.request.id for step in found[0]]

    def end(self, name: str = "a", *, now: float = 0.0, again: Sequence[str] = ()) -> None:
        """End the batch that was begun first."""
        for step in self._running[name].pop(0):
            if step is not None:
                self.policy.finish(step, now, is_rescheduled=step.item.request.id in again)

    def batches(self, name: str = "a", *, now: float = 0.0) -> list[list[str | None]]:
        """All batches that the instance runs if each ends at once."""
        found = []
        while (batch := self.begin(name, now=now)) is not None:
            found.append(batch)
            self.end(name, now=now)
        return found


def instances(*names: str, max_batch_size: int = 4, **fields: Any) -> Instances:
    return Instances(SequencePolicy(config(max_batch_size=max_batch_size, **fields)), *(names or ("a",)))


def add(
    on: Instances,
    id: str,
    sequence_id: int | str = 1,
    *,
    start: bool = False,
    end: bool = False,
    now: float = 0.0,
    timeout_us: int = 0,
    size: int = 1,
) -> QueuedRequest:
    item = Caller(sequence_id, start=start, end=end, id=id, arrival=now, timeout_us=timeout_us, size=size).item
    on.policy.add(item, now)
    return item


def ids(items: Sequence[QueuedRequest]) -> list[str]:
    return [item.request.id for item in items]
