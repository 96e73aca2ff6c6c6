"""Templates of a link: what requests or responses have in common, so that it crosses once. Pure.

A template has the model and its version, the name, datatype, shape and size of each tensor, and of requests what else
usually recurs. Whoever sends numbers them, and sends each before it is used; with too many, ids are used again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, NamedTuple, TypeVar

import msgspec

from protocol.datatypes import DataType
from protocol.edge_link.frames import BrokenFrame, Frame
from protocol.edge_link.records import INLINE_BYTES, MOST_TEMPLATES
from protocol.messages import Buffer, InferenceRequest, InferenceResponse, Tensor, flat

_DATATYPES = {datatype.number: datatype for datatype in DataType if datatype is not DataType.INVALID}
# In place of the size of a BYTES tensor, which each has of its own.
_VARYING = -1


class TensorPlace(NamedTuple):
    """One tensor. `start` and `end` count from the first one, where no size varies."""

    name: str
    datatype: DataType
    shape: tuple[int, ...]
    start: int
    end: int


class TemplateText(msgspec.Struct, array_like=True, frozen=True):
    """How a template crosses. A tensor is its name, datatype number, shape and size; `key` is the name of the clients'
    key, to which its requests are charged, empty where there are no keys."""

    model_name: str
    model_version: int
    tensors: tuple[tuple[str, int, tuple[int, ...], int], ...]
    requested_outputs: tuple[str, ...] = ()
    priority: int = 0
    timeout_microseconds: int = 0
    key: str = ""


class Template:
    """Requests with the same one are equal but for their id, parameters, sequence and the bytes of their tensors, so
    that it serves as their `InferenceRequest.template`; where sizes vary (`is_fixed` is false) it does not. Those that
    are small, too, may be plain records."""

    __slots__ = (
        *("count_varying", "id", "is_fixed", "is_plain", "key", "model_name", "model_version", "priority"),
        *("requested_outputs", "size", "sized", "tensors", "text", "timeout_microseconds"),
    )

    def __init__(self, number: int, text: TemplateText) -> None:
        self.id = number
        self.text = text
        self.model_name = text.model_name
        self.model_version = text.model_version
        self.requested_outputs = text.requested_outputs
        self.priority = text.priority
        self.timeout_microseconds = text.timeout_microseconds
        self.key = text.key
        places: list[TensorPlace] = []
        position = 0
        for name, datatype, shape, size in text.tensors:
            end = position + max(size, 0)
            places.append(TensorPlace(name, _DATATYPES[datatype], shape, position, end))
            position = end
        self.tensors = tuple(places)
        self.sized = tuple([(*place[:3], size) for place, (*_, size) in zip(places, text.tensors, strict=True)])
        self.size = position
        self.count_varying = sum(size == _VARYING for *_, size in text.tensors)
        self.is_fixed = not self.count_varying
        self.is_plain = self.is_fixed and position <= INLINE_BYTES

    def views(self, data: memoryview, sizes: Sequence[int]) -> list[Tensor]:
        """The tensors in this, which is as long as they are together; `sizes` are those that vary.

        Raises:
            BrokenFrame: the sizes are none, or are not those of the data.
        """
        if self.is_fixed:
            if len(data) != self.size:
                raise BrokenFrame(f"its tensors of {self.size} bytes have {len(data)}")
            return [
                Tensor(name, datatype, shape, data[start:end]) for name, datatype, shape, start, end in self.tensors
            ]
        found: list[Tensor] = []
        left = iter(sizes)
        position = 0
        for name, datatype, shape, size in self.sized:
            if size == _VARYING:
                size = next(left)
            if size < 0 or position + size > len(data):
                raise BrokenFrame(f"its tensor '{name}' has {size} bytes from {position} on, of {len(data)}")
            found.append(Tensor(name, datatype, shape, data[position : position + size]))
            position += size
        if position != len(data):
            raise BrokenFrame(f"its tensors of {position} bytes have {len(data)}")
        return found

    def parts_of(self, tensors: Sequence[Tensor], sizes: list[int]) -> list[Buffer] | None:
        """The bytes of tensors with this template, flat; those of their sizes that vary are added to `sizes`. None
        where they are others, and then some sizes may be there."""
        if len(tensors) != len(self.sized):
            return None
        parts: list[Buffer] = []
        for tensor, (name, datatype, shape, size) in zip(tensors, self.sized, strict=True):
            if tensor.name != name or tensor.datatype is not datatype or tensor.shape != shape:
                return None
            data = tensor.data
            if type(data) is memoryview:
                data = flat(data)
            if size == _VARYING:
                sizes.append(len(data))
            elif len(data) != size:
                return None
            parts.append(data)
        return parts


def request_text(request: InferenceRequest) -> TemplateText:
    return TemplateText(
        request.model_name,
        request.model_version,
        _tensor_texts(request.inputs),
        request.requested_outputs,
        request.priority,
        request.timeout_microseconds,
        "" if request.charge is None else request.charge.account.name,
    )


def response_text(response: InferenceResponse) -> TemplateText:
    return TemplateText(response.model_name, response.model_version, _tensor_texts(response.outputs))


def _tensor_texts(tensors: Sequence[Tensor]) -> tuple[tuple[str, int, tuple[int, ...], int], ...]:
    return tuple(
        [
            (
                tensor.name,
                tensor.datatype.number,
                tensor.shape,
                _VARYING if tensor.datatype is DataType.BYTES else tensor.byte_size,
            )
            for tensor in tensors
        ]
    )


K = TypeVar("K")


class SentTemplates(Generic[K]):
    """The templates of one direction, where they are made. `fresh` are those that the other side does not know yet, as
    they cross. With another `era` ids are used again, and templates of the one before are not known any more. `find`
    also looks by a key that is cheaper to come by than a template's text, and is given up with it."""

    __slots__ = ("_by_key", "_by_text", "_next", "era", "fresh")

    def __init__(self) -> None:
        self._by_key: dict[K, Template] = {}
        self._by_text: dict[TemplateText, Template] = {}
        self._next = 0
        self.era = 0
        self.fresh: list[tuple[Template, bytes]] = []

    def find(self, key: K) -> Template | None:
        return self._by_key.get(key)

    def made(self, text: TemplateText, key: K | None = None) -> Template:
        """The template with this text, which is told apart from now on by the key, too. Raises what msgspec raises for
        what cannot cross; then nothing has changed."""
        found = self._by_text.get(text)
        if found is None:
            encoded = _encode(text)
            if len(self._by_text) >= MOST_TEMPLATES:  # they vary too much for any to be of use
                self._by_text.clear()
                self._by_key.clear()
                self._next = 0
                self.era += 1
            found = Template(self._next, text)
            self._next += 1
            self._by_text[text] = found
            self.fresh.append((found, encoded))
        if key is not None:
            if len(self._by_key) >= 4 * MOST_TEMPLATES:
                self._by_key.clear()
            self._by_key[key] = found
        return found


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(TemplateText).decode


class ReceivedTemplates(dict[int, Template]):
    """The templates of one direction, where they are received."""

    def receive(self, frame: Frame) -> None:
        """A TEMPLATE record. Raises BrokenFrame."""
        number, size = frame.take(2)
        if not 0 <= number < MOST_TEMPLATES:
            raise BrokenFrame(f"its template has the number {number}")
        text = frame.take_text(size)
        try:
            found = _decode(text)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            raise BrokenFrame(f"its template is {bytes(text[:200])!r}: {error}") from None
        for name, datatype, shape, size in found.tensors:
            if (
                datatype not in _DATATYPES
                or size < _VARYING
                or (size == _VARYING) != (_DATATYPES[datatype] is DataType.BYTES)
            ):
                raise BrokenFrame(f"its tensor '{name}' has datatype {datatype}, shape {shape} and {size} bytes")
        self[number] = Template(number, found)

    def __missing__(self, number: int) -> Template:
        raise BrokenFrame(f"its template {number} is not known")
