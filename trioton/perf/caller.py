"""Callers: what sends prepared requests to a model, and the records that pass between data, loops and callers.

Flow: `Data` → `Source` → [loop: `Call`] → `Caller` → the server → `Result` → the loop → recorder and `Source`

A loop calls `Caller.send`, which never waits: the one `Result` of the call is handed to a function, within the call or
later, in the same Trio run. So a small request costs no task switch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

import msgspec

from protocol.core import ModelStatistics, TensorMetadata
from protocol.messages import ParameterValue, Tensor


@dataclass(frozen=True, slots=True)
class Region:
    """A part of a registered shared memory region."""

    name: str
    byte_size: int
    offset: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Payload:
    """What a request says, in no wire format.

    Attributes:
        inputs: with their batch dimension; the data of those in `input_regions` is not sent.
        outputs: those that are wanted; all where it is empty.
        body: the JSON object of a request to the generate extension or to OpenAI's routes; `inputs` is empty then.
        inferences: the size of the batch.
    """

    inputs: Sequence[Tensor] = ()
    outputs: Sequence[str] = ()
    parameters: Mapping[str, ParameterValue] = field(default_factory=dict)
    id: str = ""
    sequence_id: int | str = 0
    sequence_start: bool = False
    sequence_end: bool = False
    priority: int = 0
    timeout_microseconds: int = 0
    input_regions: Mapping[str, Region] = field(default_factory=dict)
    output_regions: Mapping[str, Region] = field(default_factory=dict)
    body: Mapping[str, Any] | None = None
    inferences: int = 1


class Call(msgspec.Struct, eq=False):
    """One request, ready to be sent any number of times.

    Attributes:
        data: what the caller's `encode` has made of a payload.
        inferences: the size of its batch.
        cancel_after: so many seconds after it was sent the client gives it up; None for never.
        keeps_responses: whether the result is to hold what was received.
        key: the source's own.
    """

    data: Any
    inferences: int = 1
    cancel_after: float | None = None
    keeps_responses: bool = False
    key: Any = None


class Result(msgspec.Struct, eq=False):
    """What became of one call. Times are in nanoseconds of the loop's clock (`time.perf_counter_ns`).

    Attributes:
        planned: when it was to be sent; in a closed loop, when its predecessor had ended.
        sent: when its bytes were given to the system.
        first: when the first response was there, for unary calls the only one; 0 where none came.
        last: when the last one was there, or the error.
        times: of all responses with content, where the call can have several; else empty.
        tokens: those that the server has counted, or else responses with text; 0 for what is no text.
        error: why it failed; empty for success.
        is_cancelled: the client itself has given it up, by `cancel_after`.
        responses: what was received, where the call asked for that: a message or an event each.
    """

    call: Call
    planned: int
    sent: int
    first: int
    last: int
    times: list[int] = []
    tokens: int = 0
    error: str = ""
    is_cancelled: bool = False
    responses: list[bytes] = []


Take: TypeAlias = Callable[[Result], None]
"""Takes the result of a call; must not block, and may send the next call."""
Encode: TypeAlias = Callable[[Payload], Any]
"""Makes a payload ready for the wire of one caller: `Call.data`."""


class Caller(Protocol):
    """Connections to one target. Opened and closed by the session that owns it."""

    def encode(self, payload: Payload) -> Any:
        """Raises InvalidArgument: this protocol cannot say that."""

    def send(self, call: Call, planned: int, take: Take) -> None:
        """Send a call. Never waits and never raises; `take` gets its result, once, unless the caller is closed
        before."""

    def flush(self) -> None:
        """Have all leave that was sent. Who sends outside of `take` calls it before it waits for anything."""

    def abandon(self) -> None:
        """Give up what is in flight: no result of it will come."""


class Source(Protocol):
    """The calls of one sender, in their order. It decides what can be sent: no step of a sequence before the answer to
    the one before."""

    def take(self) -> Call | None:
        """The next call, or None while there is none: then some call is in flight, whose end makes the next one
        possible."""

    def ended(self, result: Result) -> None:
        """A call that was taken has ended."""


@dataclass(frozen=True, slots=True)
class Part:
    """Which of several senders this is: `index` of `count`."""

    index: int = 0
    count: int = 1


@dataclass(frozen=True, slots=True)
class ModelDescription:
    """What is known of the model. `config` is in Triton's JSON form; empty where the target does not tell, as with
    OpenAI's routes."""

    name: str
    version: str = ""
    inputs: Sequence[TensorMetadata] = ()
    outputs: Sequence[TensorMetadata] = ()
    config: Mapping[str, Any] = field(default_factory=dict)

    @property
    def max_batch_size(self) -> int:
        """0 where tensors have no batch dimension."""
        return int(self.config.get("max_batch_size", 0))

    @property
    def is_decoupled(self) -> bool:
        policy = self.config.get("model_transaction_policy") or {}
        return bool(policy.get("decoupled", False))


class Control(Protocol):
    """What a target is asked beside its load. Raises `TargetError` where it does not answer, or refuses."""

    async def describe(self) -> ModelDescription: ...

    async def statistics(self, model: str = "") -> Sequence[ModelStatistics]:
        """Of all versions of a model, of the target's own where no name is given."""
        ...

    async def metrics(self) -> str:
        """The text of `/metrics`; empty where there is none."""
        ...

    async def register_system_memory(self, name: str, key: str, byte_size: int) -> None: ...

    async def unregister_system_memory(self, name: str) -> None: ...


class Data(Protocol):
    """Where payloads come from. Pickled for senders that are processes of their own."""

    def open(
        self, model: ModelDescription, encode: Encode, control: Control, part: Part
    ) -> AbstractAsyncContextManager[Source]:
        """The calls of one sender, while the block lasts; what the server was told for them is taken back at its
        end.

        Raises:
            DataError: there is no data for what the model wants.
        """
        ...


class DataError(Exception):
    """There is no data for what the model wants, or it does not fit; the text says which input."""


class TargetError(Exception):
    """The target cannot be measured: it does not answer, or has no such model."""


class Cycle:
    """Implements `Source`: the same calls again and again, which need not wait for each other."""

    def __init__(self, calls: Sequence[Call], part: Part = Part()) -> None:  # noqa: B008 (frozen)
        if not calls:
            raise DataError("there is no request to send")
        self._calls = list(calls)
        self._next = part.index % len(self._calls)

    def take(self) -> Call:
        call = self._calls[self._next]
        self._next += 1
        if self._next == len(self._calls):
            self._next = 0
        return call

    def ended(self, result: Result) -> None:
        pass
