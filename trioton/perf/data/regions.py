"""Shared memory for a measurement: regions that hold all inputs once, and have room for the outputs.

Made, registered, unregistered and removed by one context manager. What a killed process leaves behind is removed by
Python's resource tracker, which outlives it, and unregistered by the next measurement on this machine (`region_slots`).
"""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from multiprocessing.shared_memory import SharedMemory

import trio

from protocol.messages import Tensor
from trioton.perf.caller import Control, DataError, Payload, Region, TargetError
from trioton.perf.data.inputs import ModelSlots, TensorSlot
from trioton.perf.data.region_slots import region_prefix

logger = logging.getLogger("trioton.perf")
# Where tensors begin: on cache lines.
_ALIGNMENT = 64
# A slip in sizes must not take the machine's memory.
MAX_REGION_BYTES = 8 << 30
# What a server that does not answer may delay the end by, for each region.
_UNREGISTER_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemMemory:
    """Inputs, and outputs where `has_outputs`, in system shared memory. `output_bytes` is the room for an output of a
    row whose size is not known beforehand."""

    has_outputs: bool = True
    output_bytes: int = 102_400

    @asynccontextmanager
    async def placed(
        self, payloads: Sequence[Payload], slots: ModelSlots, control: Control
    ) -> AsyncIterator[list[Payload]]:
        """The payloads with their tensors in regions, which are there while the block lasts.

        Each payload has its own room for outputs; requests of the same payload that are in flight together share it.

        Raises:
            DataError: it would be too large, or the system gives no shared memory.
            TargetError: the server does not take the regions.
        """
        with region_prefix() as prefix:
            inputs, outputs = _Layout(f"{prefix}_in"), _Layout(f"{prefix}_out")
            made = [self._payload(payload, slots, inputs, outputs) for payload in payloads]
            async with inputs.registered(control) as memory:
                if memory is not None:
                    for payload, placed in zip(payloads, made, strict=True):
                        _write(memory, payload, placed)
                async with outputs.registered(control):
                    yield made

    def _payload(self, payload: Payload, slots: ModelSlots, inputs: _Layout, outputs: _Layout) -> Payload:
        wanted = [slots.output(name) for name in payload.outputs] or slots.outputs
        input_regions = {tensor.name: inputs.add(tensor.byte_size) for tensor in payload.inputs}
        output_regions = {}
        if self.has_outputs:
            rows = payload.inferences if slots.is_batching else 1
            output_regions = {slot.name: outputs.add(self._output_size(slot, rows)) for slot in wanted}
        return replace(
            payload,
            inputs=[Tensor(each.name, each.datatype, each.shape, b"") for each in payload.inputs],
            input_regions=input_regions,
            output_regions=output_regions,
        )

    def _output_size(self, slot: TensorSlot, rows: int) -> int:
        if slot.is_fixed and slot.datatype.itemsize:
            return math.prod(slot.dims) * slot.datatype.itemsize * rows
        return self.output_bytes * rows


class _Layout:
    """Places in a region that is still to be made."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._size = 0

    def add(self, byte_size: int) -> Region:
        """The next place, of so many bytes."""
        place = Region(self._name, byte_size, self._size)
        self._size += -(-byte_size // _ALIGNMENT) * _ALIGNMENT
        if self._size > MAX_REGION_BYTES:
            raise DataError(f"shared memory for this data would take more than {MAX_REGION_BYTES} bytes")
        return place

    @asynccontextmanager
    async def registered(self, control: Control) -> AsyncIterator[SharedMemory | None]:
        """The region, known to the server; None where nothing is in it."""
        if not self._size:
            yield None
            return
        memory = _create(self._name, self._size)
        try:
            with contextlib.suppress(TargetError):  # of a process that was killed; mostly there is none
                await control.unregister_system_memory(self._name)
            try:
                await control.register_system_memory(self._name, f"/{self._name}", self._size)
                yield memory
            finally:  # also where it is not known whether the server has heard of it
                await _unregister(control, self._name)
        finally:
            memory.close()
            memory.unlink()


async def _unregister(control: Control, name: str) -> None:
    with trio.CancelScope(deadline=trio.current_time() + _UNREGISTER_SECONDS, shield=True) as scope:
        try:
            await control.unregister_system_memory(name)
        except TargetError as error:
            logger.warning("shared memory '%s' may still be registered: %s", name, error)
    if scope.cancelled_caught:
        logger.warning("shared memory '%s' may still be registered: the server does not answer", name)


def _create(name: str, size: int) -> SharedMemory:
    try:
        try:
            return SharedMemory(name, create=True, size=size)
        except FileExistsError:  # its process was killed together with its resource tracker
            left = SharedMemory(name)
            left.close()
            left.unlink()
            return SharedMemory(name, create=True, size=size)
    except OSError as error:
        raise DataError(f"the system gives no shared memory of {size} bytes: {error}") from None


def _write(memory: SharedMemory, payload: Payload, placed: Payload) -> None:
    for tensor in payload.inputs:
        place = placed.input_regions[tensor.name]
        buffer: memoryview = memory.buf  # type: ignore[assignment]  # None once it is closed
        buffer[place.offset : place.offset + place.byte_size] = tensor.data
