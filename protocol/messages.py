"""Tensor, inference request and inference response, independent of any wire format.

Edges make requests from bytes, the actors pass them on, backends answer with responses. Nothing here does I/O.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from protocol.datatypes import DataType, from_numpy_dtype
from protocol.errors import InvalidArgument
from protocol.gen_ai import GenAiCall
from protocol.limits.response_memory import ResponseMemory
from protocol.origin import Origin
from protocol.quotas.accounts import Charge
from protocol.server_settings import Trace

Buffer: TypeAlias = bytes | bytearray | memoryview
"""Where the bytes of a tensor lie."""
ParameterValue: TypeAlias = bool | int | float | str
"""What a parameter of a request or a response may be."""

LATEST_VERSION = -1
"""In place of a version's number: the latest that serves."""


class Tensor(msgspec.Struct, eq=False):
    """A named array in the protocol's raw layout.

    What lies on a device is a `protocol.tensors.device_tensor.DeviceTensor`.

    Attributes:
        name: the input's or output's name.
        datatype: the type of its elements.
        shape: its dimensions, the batch dimension first where the model has one.
        data: the elements row-major and little-endian; for BYTES each element is a 4-byte little-endian length and its
            bytes. It is a view wherever it can be (of the received body, of a backend's output), so it must not be
            written to, and it keeps what it views alive.
    """

    name: str
    datatype: DataType
    shape: tuple[int, ...]
    data: Buffer

    @property
    def element_count(self) -> int:
        """The product of the dimensions."""
        return math.prod(self.shape)

    @property
    def byte_size(self) -> int:
        """Length of `data` in bytes."""
        data = self.data
        return data.nbytes if isinstance(data, memoryview) else len(data)

    def as_numpy(self) -> NDArray[Any]:
        """The elements as an array of `shape`: a read-only view, but for BYTES, which decodes to objects (bytes).

        Raises:
            InvalidArgument: the data does not hold what shape and datatype say.
        """
        if self.datatype is DataType.BYTES:
            elements = decode_bytes_elements(self.data)
            if len(elements) != self.element_count:
                raise InvalidArgument(
                    f"tensor '{self.name}' of shape {list(self.shape)} holds {self.element_count} elements, "
                    f"but its data has {len(elements)}"
                )
            array = np.empty(len(elements), dtype=np.object_)
            array[:] = elements
            return array.reshape(self.shape)
        if self.byte_size != self.element_count * self.datatype.itemsize:
            raise InvalidArgument(
                f"tensor '{self.name}' of datatype {self.datatype.name} and shape {list(self.shape)} needs "
                f"{self.element_count * self.datatype.itemsize} bytes, but its data has {self.byte_size}"
            )
        array = np.frombuffer(self.data, dtype=self.datatype.dtype).reshape(self.shape)
        array.flags.writeable = False
        return array

    def under(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """The same elements under another name, in another shape."""
        return Tensor(name, self.datatype, shape, self.data)

    @classmethod
    def from_numpy(cls, name: str, array: NDArray[Any]) -> Tensor:
        """A tensor over the array's memory, copied only if it is not C-contiguous and little-endian.

        Raises:
            InvalidArgument: the array's dtype has no datatype in the protocol.
        """
        datatype = from_numpy_dtype(array.dtype)
        if datatype is None:
            raise InvalidArgument(f"tensor '{name}': numpy dtype {array.dtype} has no datatype in the protocol")
        if datatype is DataType.BYTES:
            return cls(name, datatype, array.shape, encode_bytes_elements(array.reshape(-1).tolist()))
        array = np.asarray(array, dtype=datatype.dtype.newbyteorder("<"), order="C")
        data = array.reshape(-1).view(np.uint8).data if array.size else memoryview(b"")
        return cls(name, datatype, array.shape, data)


class LaidOutTensor(Tensor, eq=False):
    """A BYTES tensor whose data this server has laid out, from as many elements as its shape has: its lengths need no
    check."""


def flat(data: Buffer) -> Buffer:
    """The same bytes in one dimension, so that they can be counted and cut."""
    if isinstance(data, memoryview) and (data.format != "B" or data.ndim != 1):
        return data.cast("B") if data.nbytes else b""
    return data


def decode_bytes_elements(data: Buffer) -> list[bytes]:
    """Split the raw layout of a BYTES tensor into its elements.

    Raises:
        InvalidArgument: a length field is cut off or points past the end.
    """
    view = memoryview(data)
    end = len(view)
    position = 0
    elements: list[bytes] = []
    while position < end:
        start = position + 4
        if start > end:
            raise InvalidArgument(
                f"incomplete string length indicator: expected 4 bytes at offset {position}, got {end - position}"
            )
        position = start + int.from_bytes(view[position:start], "little")
        if position > end:
            raise InvalidArgument(
                f"string of length {position - start} at offset {start} extends past the end of the data ({end} bytes)"
            )
        elements.append(bytes(view[start:position]))
    return elements


def encode_bytes_elements(elements: Sequence[bytes | str]) -> bytes:
    """The raw layout of a BYTES tensor; text is encoded as UTF-8."""
    parts: list[bytes] = []
    for element in elements:
        encoded = element if isinstance(element, bytes) else str(element).encode()
        parts.append(len(encoded).to_bytes(4, "little"))
        parts.append(encoded)
    return b"".join(parts)


class Caller(Protocol):
    """What waits inside the server for the response to a request that a model has made."""

    def begin_wait(self, target: Any) -> None:
        """The request is about to be submitted to a model. Raises ServerError if that would deadlock."""

    def end_wait(self, target: Any) -> None:
        """The model has answered it, or it was cancelled."""


class InferenceRequest(msgspec.Struct, eq=False):
    """One request for one model, as a client sent it.

    All fields after `timeout_microseconds` are the server's own.

    Attributes:
        model_name: the model that is to answer.
        inputs: the input tensors, with the batch dimension where the model has one.
        model_version: the version; -1 for the latest that is ready.
        id: the client's name for the request; may be empty.
        requested_outputs: the outputs that are wanted; all where it is empty.
        parameters: the client's own; those with a meaning to the server have fields here.
        sequence_id: the sequence that it belongs to; 0 or the empty text for none.
        sequence_start: whether it is the first of its sequence.
        sequence_end: whether it is the last one.
        priority: its level in the queue, 1 for the first; 0 for the model's default.
        timeout_microseconds: how long it may wait in the queue or, where no queue policy takes it, take in all; 0 for
            no limit.
        trace: there if the request is traced; its edge ends it.
        caller: there if a model has made the request, or an ensemble to answer such a one.
        has_device_inputs: whether some of the inputs may lie on a device.
        device_outputs: the outputs that may come on a device; no others may.
        template: requests with the same one are equal but for their id, parameters and the bytes of their tensors:
            what is found of the names, datatypes, shapes and sizes of one holds for all. An edge that does not know has
            none.
        response_memory: what the responses of a decoupled model count for while they wait for the client; without one
            each request has its own bound.
        gen_ai: there if the call that it belongs to, one of a generative model, is observed.
        origin: the call that it came by, for log lines; a model's own request has that of the request which it serves.
        charge: there if there are keys: what it costs is charged to its client's.
    """

    model_name: str
    inputs: list[Tensor]
    model_version: int = LATEST_VERSION
    id: str = ""
    requested_outputs: tuple[str, ...] = ()
    parameters: dict[str, ParameterValue] = msgspec.field(default_factory=dict)
    sequence_id: int | str = 0
    sequence_start: bool = False
    sequence_end: bool = False
    priority: int = 0
    timeout_microseconds: int = 0
    trace: Trace | None = None
    caller: Caller | None = None
    has_device_inputs: bool = False
    device_outputs: frozenset[str] = frozenset()
    template: object | None = None
    response_memory: ResponseMemory | None = None
    gen_ai: GenAiCall | None = None
    origin: Origin | None = None
    charge: Charge | None = None


class InferenceResponse(msgspec.Struct, eq=False):
    """One response to a request.

    Attributes:
        model_name: the model that has answered.
        model_version: the version that ran.
        outputs: the output tensors, with the batch dimension where the model has one.
        id: repeats the request's.
        parameters: the model's own.
        is_final: false where the model may send more for the same request.
    """

    model_name: str
    model_version: int
    outputs: list[Tensor]
    id: str = ""
    parameters: dict[str, ParameterValue] = msgspec.field(default_factory=dict)
    is_final: bool = True
