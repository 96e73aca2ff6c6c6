"""Sequences: calls with ids, starts and ends, each sent when the one before it was answered. Pure."""

from __future__ import annotations

import itertools
import random
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from trioton.perf.caller import Call, DataError, Encode, Part, Payload, Result
from trioton.perf.data.mixture import Mixture


@dataclass(frozen=True, slots=True, kw_only=True)
class Sequences:
    """How sequences are made.

    Attributes:
        active: how many go on at a time; 0 for as many as calls are in flight.
        length: requests of each; 0 for as many as its stream of the data has, or 20 where the data was made.
        variation: by how much of it lengths differ, 0.2 for 20 %.
        first_id, end_id: the ids are from the first to the one before the end; 0 for no end.
    """

    active: int = 0
    length: int = 0
    variation: float = 0.2
    first_id: int = 1
    end_id: int = 0
    seed: int = 0

    def ids(self, part: Part) -> Iterator[int]:
        """Those of one sender, again from the first where there is an end.

        Raises:
            DataError: there are fewer than sequences at a time.
        """
        if not self.end_id:
            return itertools.count(self.first_id + part.index, part.count)
        own = self.own_ids(part)
        if self.end_id - self.first_id < max(part.count, self.active):
            raise DataError(
                f"{max(part.count, self.active)} sequences at a time need as many ids, got {self.first_id} to "
                f"{self.end_id - 1}"
            )
        return itertools.cycle(own)

    def own_ids(self, part: Part) -> range:
        """The ids of one sender, where they have an end."""
        return range(self.first_id + part.index, self.end_id, part.count)

    def length_of(self, stream: int, *, is_generated: bool, drawn: random.Random) -> int:
        """Of the next sequence, over a stream of so many steps."""
        base = self.length or (20 if is_generated else stream)
        if not self.length and not is_generated:
            return base
        spread = int(base * self.variation)
        return max(1, base + drawn.randint(-spread, spread))


@dataclass(slots=True, eq=False)
class Running:
    """A sequence that is under way: the key of its calls."""

    id: int
    stream: Sequence[Payload]
    length: int
    position: int = 0

    @property
    def payload(self) -> Payload:
        """Of its next call, or of that which is in flight."""
        return self.stream[self.position % len(self.stream)]


class SequenceSource:
    """Implements `Source`: steps of several sequences. One whose call has failed, or was given up, ends there, and the
    next one begins in its place."""

    def __init__(
        self,
        streams: Sequence[Sequence[Payload]],
        encode: Encode,
        settings: Sequences,
        *,
        part: Part = Part(),  # noqa: B008 (frozen)
        mixture: Mixture = Mixture(),  # noqa: B008 (frozen)
        is_generated: bool = False,
        keeps_responses: bool = False,
    ) -> None:
        if not any(streams):
            raise DataError("there is no request to send")
        self._streams = itertools.cycle(stream for stream in streams if stream)
        for _ in range(part.index):
            next(self._streams)  # senders begin with different ones
        self._encode = encode
        self._settings = settings
        self._mixture = mixture
        self._ids = settings.ids(part)
        self._drawn = random.Random(f"{settings.seed}/{part.index}")
        self._is_generated = is_generated
        self._keeps_responses = keeps_responses
        self._most = share_of(settings.active, part)
        if settings.end_id:  # each that goes on needs an id of its own
            available = len(settings.own_ids(part))
            self._most = min(self._most or available, available)
        self._active: set[int] = set()
        self._idle: deque[Running] = deque()

    def take(self) -> Call | None:
        if self._idle:
            running = self._idle.popleft()
        elif self.may_begin():
            running = self._begin()
        else:
            return None
        return self._call(running)

    def ended(self, result: Result) -> None:
        running: Running = result.call.key
        running.position += 1
        if result.error or result.is_cancelled or running.position >= running.length:
            self._active.discard(running.id)
        else:
            self._idle.append(running)

    def may_begin(self) -> bool:
        """Whether another sequence may go on beside those that do."""
        return not self._most or len(self._active) < self._most

    def _begin(self) -> Running:
        stream = next(self._streams)
        length = self._settings.length_of(len(stream), is_generated=self._is_generated, drawn=self._drawn)
        found = next(id_ for id_ in self._ids if id_ not in self._active)
        self._active.add(found)
        return Running(found, stream, length)

    def _call(self, running: Running) -> Call:
        payload = running.payload
        level, cancel_after = self._mixture.draw(self._drawn)
        step = replace(
            self._mixture.payload(payload, level),
            sequence_id=running.id,
            sequence_start=running.position == 0,
            sequence_end=running.position == running.length - 1,
        )
        data = self._encode(step)
        return Call(data, payload.inferences, cancel_after, self._keeps_responses, running)


def share_of(active: int, part: Part) -> int:
    """Of so many sequences at a time those of one sender, at least one; 0 for no bound."""
    if not active:
        return 0
    return max(1, active // part.count + (1 if part.index < active % part.count else 0))
