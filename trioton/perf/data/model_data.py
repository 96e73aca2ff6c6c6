"""Data of a measurement: from words on the command line to calls that a sender takes one by one.

Flow: `Sources` → `Dataset` → payloads → [shared memory] → `Call`s, prepared once → `Cycle` or `SequenceSource`
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import trio

from protocol.messages import ParameterValue
from trioton.perf.caller import Control, Cycle, DataError, Encode, ModelDescription, Part, Payload, Source
from trioton.perf.data.dataset import Dataset
from trioton.perf.data.inputs import ModelSlots
from trioton.perf.data.mixture import Mixture
from trioton.perf.data.payloads import ExpectingPayload, Form, body_payloads, tensor_payloads
from trioton.perf.data.regions import SystemMemory
from trioton.perf.data.sequences import Sequences, SequenceSource
from trioton.perf.data.sources import Sources, load_dataset

logger = logging.getLogger("trioton.perf")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelData:
    """Implements `trioton.perf.caller.Data` for the tensors of models and the bodies of language models' routes.

    Attributes:
        batch: rows of each request.
        outputs: those that are asked for; all where it is empty.
        sequences: how sequences are made, where the model has sequences, or always where `is_sequential`.
        memory: where tensors lie; None for in the requests.
        keeps_responses: whether results are to hold what was received; they do where the data says what to expect.
        body_members: of JSON bodies that do not have them.
    """

    sources: Sources = Sources()  # noqa: RUF009 (frozen)
    form: Form = Form.TENSORS
    batch: int = 1
    parameters: Mapping[str, ParameterValue] = field(default_factory=dict)
    outputs: tuple[str, ...] = ()
    sequences: Sequences = Sequences()  # noqa: RUF009 (frozen)
    is_sequential: bool = False
    mixture: Mixture = Mixture()  # noqa: RUF009 (frozen)
    memory: SystemMemory | None = None
    body_members: Mapping[str, Any] = field(default_factory=dict)
    keeps_responses: bool = False

    @asynccontextmanager
    async def open(
        self, model: ModelDescription, encode: Encode, control: Control, part: Part
    ) -> AsyncIterator[Source]:
        """See `Data`."""
        slots, dataset = await trio.to_thread.run_sync(load_dataset, self.sources, model, self.form)
        if part.index == 0:
            for note in dataset.notes:
                logger.warning("%s", note)
        streams = self.payloads(slots, dataset)
        if self.memory is None:
            yield self._source(model, streams, dataset, encode, part)
            return
        if self.form is not Form.TENSORS:
            raise DataError("shared memory is for tensors, and not for JSON bodies")
        flat = [payload for stream in streams for payload in stream]
        async with self.memory.placed(flat, slots, control) as placed:
            rest = iter(placed)
            streams = [[next(rest) for _ in stream] for stream in streams]
            yield self._source(model, streams, dataset, encode, part)

    def payloads(self, slots: ModelSlots, dataset: Dataset) -> list[list[Payload]]:
        """The requests of each stream.

        Raises:
            DataError: the rows do not make batches, or there is no such output.
        """
        if self.form is not Form.TENSORS:
            return [
                body_payloads(stream, slots, self.form, members=self.body_members, parameters=self.parameters)
                for stream in dataset.streams
            ]
        for name in self.outputs:
            slots.output(name)
        made = []
        for stream in dataset.streams:
            found = tensor_payloads(
                stream, slots, batch=self.batch, parameters=self.parameters, may_repeat=dataset.is_generated
            )
            made.append([_asking(payload, self.outputs) for payload in found])
        return made

    def _source(
        self,
        model: ModelDescription,
        streams: Sequence[Sequence[Payload]],
        dataset: Dataset,
        encode: Encode,
        part: Part,
    ) -> Source:
        flat = [payload for stream in streams for payload in stream]
        keeps = self.keeps_responses or any(isinstance(payload, ExpectingPayload) for payload in flat)
        if self.is_sequential or is_sequential(model):
            return SequenceSource(
                streams,
                encode,
                self.sequences,
                part=part,
                mixture=self.mixture,
                is_generated=dataset.is_generated,
                keeps_responses=keeps,
            )
        calls = self.mixture.calls(flat, encode, keeps_responses=keeps)
        return Cycle(calls, part)


def is_sequential(model: ModelDescription) -> bool:
    """Whether the model's configuration has sequences, whose requests need a correlation id."""
    return bool(model.config.get("sequence_batching"))


def _asking(payload: Payload, outputs: tuple[str, ...]) -> Payload:
    return replace(payload, outputs=outputs) if outputs else payload
