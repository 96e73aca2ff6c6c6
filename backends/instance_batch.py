"""A batch in a model instance: its gather, run and scatter stages.

    gather (requests → arrays) → [the framework's run] → scatter (arrays → responses)

`backends.array_backend` says in which thread: the instance's own, or the one beside it while that computes.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from time import monotonic_ns
from typing import Any

from numpy.typing import NDArray

from backends.array_batch import Arrays, BatchLayout
from backends.interface import BatchResult, BatchTiming
from backends.padding import Padding
from protocol.errors import Cancelled, ServerError
from protocol.messages import InferenceRequest, InferenceResponse, Tensor
from repository.model_config import ModelConfig
from repository.shape_rules import DimRule


class InstanceBatch:
    """`is_unwanted`: all callers have gone. All else belongs to the thread that is at it."""

    def __init__(self, requests: Sequence[InferenceRequest]) -> None:
        self.requests = requests
        self.is_unwanted = False
        self.watch = Stopwatch()
        self.gathering = threading.Lock()  # for what follows, until it runs
        self.is_gathered = False
        self.padded = requests
        self.results: list[InferenceResponse | ServerError | None] = [None] * len(requests)
        # Those of each request whose inputs are in order, and the inputs of all of them as the first run takes them.
        self.arrays: dict[int, Arrays] = {}
        self.joined: Arrays | None = None
        self._gone: set[int] = set()

    def leave(self, request: InferenceRequest) -> bool:
        """The caller of a request has gone; whether it is one of these, and the last of them."""
        for index, each in enumerate(self.requests):
            if each is request:
                self._gone.add(index)
                return len(self._gone) == len(self.requests)
        return False


@dataclass(frozen=True, slots=True, eq=False)
class Ran:
    """What a run gave for some of a batch's requests, which brought so many `rows` each. `states` are the next states
    of each, where the instance holds them."""

    group: Sequence[int]
    rows: Sequence[int]
    outputs: Mapping[str, NDArray[Any]]
    states: Sequence[Sequence[Tensor]]


class HostWork:
    """Gathers and scatters the batches of one instance; for one thread."""

    def __init__(self, config: ModelConfig, layout: BatchLayout, padding: Padding | None, rule: DimRule | None) -> None:
        self._config = config
        self._layout = layout
        self._padding = padding
        self._rule = rule

    def gather(self, batch: InstanceBatch) -> None:
        """Make arrays of the requests, once. One whose inputs are broken has its error then."""
        if batch.is_gathered:
            return
        padding = self._padding
        if padding is not None:
            batch.padded = [padding.pad(request) for request in batch.requests]
        for index, request in enumerate(batch.padded):
            try:
                batch.arrays[index] = self._layout.arrays(request)
            except ServerError as error:
                batch.results[index] = error
        batch.is_gathered = True

    def groups(self, batch: InstanceBatch) -> list[list[int]]:
        """The requests of the batch that share a run."""
        return [list(batch.arrays)] if self._config.is_batching else [[index] for index in batch.arrays]

    def gather_ahead(self, batch: InstanceBatch) -> None:
        """Also join the inputs of the first run, and wait until they are there. What is raised leaves the batch as one
        that is to be gathered in its turn."""
        self.gather(batch)
        groups = self.groups(batch)
        if groups and groups[0] and batch.joined is None:
            rows = self.rows(batch, groups[0])
            try:
                joined = self.inputs(batch, groups[0], rows)
            finally:
                self._layout.complete()
            batch.joined = joined

    def rows(self, batch: InstanceBatch, group: Sequence[int]) -> list[int]:
        """How many rows each of these requests brings to a run."""
        return self._layout.rows([batch.arrays[index] for index in group])

    def inputs(self, batch: InstanceBatch, group: Sequence[int], rows: Sequence[int]) -> Arrays:
        """The inputs of one run of so many rows from each."""
        joined, batch.joined = batch.joined, None
        if joined is not None:
            return joined
        count = sum(rows)
        filled = None if self._rule is None else self._rule.padded(count)
        found = [batch.arrays[index] for index in group]
        inputs = self._layout.joined(found, 0 if filled is None else filled - count)
        inputs.update(self._layout.batch_inputs([batch.padded[index] for index in group]))
        return inputs

    def scatter(self, batch: InstanceBatch, ran: Ran) -> None:
        """Make responses of what a run gave."""
        responses = self._layout.responses(ran.outputs, [batch.padded[index] for index in ran.group], ran.rows)
        for response, next_states in zip(responses, ran.states, strict=False):  # none where none are held
            response.outputs += next_states
        padding = self._padding
        for index, response in zip(ran.group, responses, strict=True):
            batch.results[index] = response if padding is None else padding.trim(batch.requests[index], response)

    def finish(self, batch: InstanceBatch, ran: Ran | None) -> BatchResult:
        """Scatter the last run, if there was one, and answer."""
        if ran is not None:
            batch.watch.start()
            self.scatter(batch, ran)
            batch.watch.lap("output")
        gone = Cancelled("the request was cancelled while its batch ran")
        return BatchResult([gone if result is None else result for result in batch.results], batch.watch.timing())


class Stopwatch:
    """Adds the time since the last lap, or since it was started again, to one of the phases `input`, `infer` and
    `output`."""

    def __init__(self) -> None:
        self._last = monotonic_ns()
        self._sums = {"input": 0, "infer": 0, "output": 0}

    def start(self) -> None:
        self._last = monotonic_ns()

    def lap(self, phase: str) -> int:
        """What is added, in nanoseconds."""
        now = monotonic_ns()
        passed = now - self._last
        self._sums[phase] += passed
        self._last = now
        return passed

    def timing(self) -> BatchTiming:
        return BatchTiming(self._sums["input"], self._sums["infer"], self._sums["output"])
