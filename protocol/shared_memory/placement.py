"""Placement of a request's tensors: inputs and outputs in shared memory, and outputs wanted as classes.

Inputs in device memory stay there, where the model accepts that: they become device tensors over it, and outputs may
be such. Likewise inputs in system memory, for models that copy them to where they compute. An edge decodes a request's
parameters into a `Placement`; a request without any has none. Around the core's call:

    with shared_memory.lease() as lease:
        placed = await PlacedRequest.fetch(request, placement, lease, core)
        response = await placed.deliver(await core.infer(request))

Source: Triton's shared memory and classification extensions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec
import trio

from protocol.core import InferenceCore
from protocol.datatypes import DataType
from protocol.messages import InferenceRequest, InferenceResponse, Tensor
from protocol.shared_memory.lease import Lease, OutputTarget
from protocol.tensors.classification import classify
from protocol.tensors.device_tensor import DeviceTensor, device_tensor
from protocol.tensors.shared_tensor import shared_tensor

# Copying, or sorting, more bytes than this would hold up every other call.
COPY_IN_THREAD_ABOVE = 1 << 20
SORT_IN_THREAD_ABOVE = 1 << 15


@dataclass(frozen=True, slots=True)
class MemoryReference:
    """A part of a registered region, in bytes; the numbers are the client's, of any size and sign."""

    region: str
    offset: int
    byte_size: int


@dataclass(frozen=True, slots=True)
class Placement:
    """`inputs` by their position in the request, `outputs` and `classes` (how many) by the output's name."""

    inputs: Mapping[int, MemoryReference] = field(default_factory=dict)
    outputs: Mapping[str, MemoryReference] = field(default_factory=dict)
    classes: Mapping[str, int] = field(default_factory=dict)

    @property
    def uses_regions(self) -> bool:
        return bool(self.inputs or self.outputs)


@dataclass(frozen=True, slots=True)
class _Classes:
    count: int
    labels: Sequence[str]
    has_batch: bool


class PlacedRequest(msgspec.Struct, eq=False, frozen=True):
    """A request with its inputs in place. It uses its lease until the last `deliver` has returned."""

    _targets: dict[str, OutputTarget]
    _classes: dict[str, _Classes]

    @classmethod
    async def fetch(
        cls, request: InferenceRequest, placement: Placement, lease: Lease, core: InferenceCore
    ) -> PlacedRequest:
        """Put the inputs out of shared memory into the request, and find what its outputs will need.

        Raises:
            NotFound: no such region, or no such model.
            InvalidArgument: a reference leaves its region, or a client has truncated it.
            PayloadTooLarge, Unavailable: more bytes than the server holds for one request, or for all.
        """
        placed, copied = cls._prepare(request, placement, lease, core)
        if _copying_takes_thread(copied):
            # Not abandoned on cancellation: the lease must outlive the copying.
            await trio.to_thread.run_sync(_read_inputs, request, copied, lease)
        else:
            _read_inputs(request, copied, lease)
        return placed

    @classmethod
    def fetch_at_once(
        cls, request: InferenceRequest, placement: Placement, lease: Lease, core: InferenceCore
    ) -> PlacedRequest | None:
        """As `fetch`; None where that needs a thread, and the request must not be used then."""
        placed, copied = cls._prepare(request, placement, lease, core)
        if copied:
            if _copying_takes_thread(copied):
                return None
            _read_inputs(request, copied, lease)
        return placed

    @classmethod
    def _prepare(
        cls, request: InferenceRequest, placement: Placement, lease: Lease, core: InferenceCore
    ) -> tuple[PlacedRequest, Mapping[int, MemoryReference]]:
        """Everything but the copying of inputs, which it returns."""
        targets = {}
        for name, at in placement.outputs.items():
            targets[name] = lease.output(at.region, at.offset, at.byte_size)
        classes: dict[str, _Classes] = {}
        if placement.classes:
            model, version = request.model_name, request.model_version
            has_batch = core.is_batching(model, version)
            for name, count in placement.classes.items():
                classes[name] = _Classes(count, core.labels(model, version, name), has_batch)
        inputs = placement.inputs
        if lease.may_be_on_device:
            request.device_outputs = frozenset(
                [name for name, target in targets.items() if target.is_on_device and name not in placement.classes]
            )
            inputs = _place_views(request, inputs, lease, core)
        if inputs and core.takes_shared_tensors(request.model_name, request.model_version):
            inputs = _share(request, inputs, lease)
        return cls(targets, classes), inputs

    async def deliver(self, response: InferenceResponse) -> InferenceResponse:
        """The response as its client wants it. Outputs that were written to shared memory have no data any more.

        Raises:
            InvalidArgument: an output does not fit its place, or cannot be classified.
            Unavailable: the memory refuses.
        """
        outputs = [
            await trio.to_thread.run_sync(self._delivered, tensor)
            if self._takes_thread(tensor)
            else self._delivered(tensor)
            for tensor in response.outputs
        ]
        return msgspec.structs.replace(response, outputs=outputs)

    def deliver_at_once(self, response: InferenceResponse) -> InferenceResponse | None:
        """As `deliver`; None where that needs a thread, and nothing has been done."""
        for tensor in response.outputs:
            if self._takes_thread(tensor):
                return None
        return msgspec.structs.replace(response, outputs=[self._delivered(tensor) for tensor in response.outputs])

    def _takes_thread(self, tensor: Tensor) -> bool:
        if tensor.name in self._targets:
            return tensor.byte_size > COPY_IN_THREAD_ABOVE
        return tensor.name in self._classes and tensor.byte_size > SORT_IN_THREAD_ABOVE

    def _delivered(self, tensor: Tensor) -> Tensor:
        if (target := self._targets.get(tensor.name)) is not None:
            target.write(tensor)
            return Tensor(tensor.name, tensor.datatype, tensor.shape, b"")
        if (wanted := self._classes.get(tensor.name)) is not None:
            return classify(tensor, wanted.count, wanted.labels, wanted.has_batch)
        return tensor


def _place_views(
    request: InferenceRequest, references: Mapping[int, MemoryReference], lease: Lease, core: InferenceCore
) -> Mapping[int, MemoryReference]:
    """Take the inputs that lie on a device from there; returns those that are to be copied. Strings are: their lengths
    are among their bytes."""
    views: dict[int, DeviceTensor] = {}
    for position, at in references.items():
        tensor = request.inputs[position]
        if tensor.datatype is not DataType.BYTES:
            view = lease.view(at.region, at.offset, at.byte_size)
            if view is not None:
                views[position] = device_tensor(tensor.name, tensor.datatype, tensor.shape, view)
    if not views or not core.takes_device_tensors(request.model_name, request.model_version):
        return references
    request.has_device_inputs = True
    for position, tensor in views.items():
        request.inputs[position] = tensor
    return {position: at for position, at in references.items() if position not in views}


def _share(
    request: InferenceRequest, references: Mapping[int, MemoryReference], lease: Lease
) -> Mapping[int, MemoryReference]:
    """Leave the inputs in system memory where they are; returns those that are to be copied, strings among them."""
    copied: dict[int, MemoryReference] = {}
    for position, at in references.items():
        tensor = request.inputs[position]
        source = None
        if tensor.datatype is not DataType.BYTES:
            source = lease.shared(at.region, at.offset, at.byte_size)
        if source is None:
            copied[position] = at
        else:
            request.inputs[position] = shared_tensor(tensor.name, tensor.datatype, tensor.shape, source)
    return copied


def _read_inputs(request: InferenceRequest, references: Mapping[int, MemoryReference], lease: Lease) -> None:
    for position, at in references.items():
        request.inputs[position].data = lease.read(at.region, at.offset, at.byte_size)


def _copying_takes_thread(references: Mapping[int, MemoryReference]) -> bool:
    size = 0
    for at in references.values():
        size += max(0, at.byte_size)
    return size > COPY_IN_THREAD_ABOVE
