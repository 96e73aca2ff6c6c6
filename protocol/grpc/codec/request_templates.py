"""Request templates of gRPC: a cache of parsed ModelInferRequests whose bytes recur but for the id and the tensors'
data.

A template is made of a request that was parsed and found right: its bytes before the tensors' data, without the id, and
where the data lies. A later request with the same bytes there, and data of the same sizes, means the same, so it is not
parsed, decoded and checked again. Any other is parsed by `codec.infer`. Pure; both tables are bounded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeAlias

import msgspec
from msgspec.structs import replace

from protocol.grpc.codec.infer import (
    COPY_UP_TO,
    RAW_INPUT_CONTENTS,
    DecodedRequest,
    RequestNames,
    WireRequest,
    decode_request,
    parse_request,
)
from protocol.grpc.codec.long_contents import LongContents, has_long_contents
from protocol.grpc.codec.wire import top_level_fields
from protocol.messages import Buffer, Tensor
from protocol.shared_memory.placement import MemoryReference

_ID = 3  # field numbers
_MODEL_NAME = 1
# Limits of a template; requests beyond them are not worth caching.
_MAX_START_SIZE = 4096
_MAX_PARTS = 64  # inputs, outputs and parameters, each of which is larger in memory than on the wire
_MAX_TEMPLATES = 512
# Of one model; the ones used last.
_MAX_TEMPLATES_PER_MODEL = 8
# Requests that never come twice are learned only now and then.
_PATIENCE = 16
_LEARN_EVERY = 64


class MatchedRequest(msgspec.Struct, eq=False):
    """A request that matches a template, with what is its own: the id and the data."""

    template: RequestTemplate
    id: str
    raw: Sequence[Buffer]

    @property
    def model_name(self) -> str:
        return self.template.names.model_name

    @property
    def names(self) -> RequestNames:
        return self.template.names._replace(id=self.id)


ReadRequest: TypeAlias = WireRequest | MatchedRequest


class RequestTemplate:
    """Made of a request that is right."""

    __slots__ = (
        *("_datatypes", "_decoded", "_gaps", "_has_id", "_head", "_input_names", "_raw", "_raw_size", "_shapes"),
        *("_tail", "names"),
    )

    def __init__(
        self,
        decoded: DecodedRequest,
        names: RequestNames,
        head: bytes,
        tail: bytes | None,
        raw: list[tuple[bytes, int]],
    ) -> None:
        self.names = names
        self._decoded = decoded
        inputs = decoded.request.inputs
        self._input_names = [tensor.name for tensor in inputs]
        self._datatypes = [tensor.datatype for tensor in inputs]
        self._shapes = [tensor.shape for tensor in inputs]
        for tensor in inputs:
            tensor.data = b""
        self._gaps = [b""] * len(inputs)  # for a request that has no data itself
        self._head = head  # up to the id's length, where there is one
        self._has_id = tail is not None
        self._tail = tail or b""
        self._raw_size = sum(len(start) + size for start, size in raw)
        self._raw = _from_the_end(raw)

    def match(self, data: Buffer) -> MatchedRequest | None:
        """The request in these bytes, or None if they do not match."""
        position = len(self._head)
        if data[:position] != self._head:
            return None
        request_id = ""
        if self._has_id:
            start = position + 1
            if start > len(data) or (length := data[position]) > 0x7F:
                return None
            end = start + length
            position = end + len(self._tail)
            if data[end:position] != self._tail:
                return None
            try:
                request_id = str(data[start:end], "utf-8")
            except UnicodeDecodeError:
                return None
        if len(data) - position != self._raw_size:
            return None
        raw: list[Buffer] = []
        for before, where_before, where in self._raw:
            if data[where_before] != before:
                return None
            raw.append(data[where])
        return MatchedRequest(self, request_id, raw)

    def decode(self, request_id: str, raw: Sequence[Buffer]) -> DecodedRequest:
        decoded = self._decoded
        known, placement = decoded.request, decoded.placement
        if placement is not None and placement.inputs:
            raw = self._with_gaps(raw, placement.inputs) if raw else self._gaps
        inputs = [*map(Tensor, self._input_names, self._datatypes, self._shapes, raw)]
        request = replace(known, inputs=inputs, id=request_id, parameters=dict(known.parameters), template=self)
        return DecodedRequest(request, placement, decoded.wants_empty_final)

    def _with_gaps(self, raw: Sequence[Buffer], placed: Mapping[int, MemoryReference]) -> list[Buffer]:
        """No data yet for the inputs that are elsewhere."""
        data_of = iter(raw)
        return [b"" if position in placed else next(data_of) for position in range(len(self._gaps))]


class _ModelTemplates:
    __slots__ = ("misses", "templates")

    def __init__(self) -> None:
        self.templates: list[RequestTemplate] = []  # the one used last is first
        self.misses = 0


class RequestTemplates:
    """The templates of one server, by the first bytes of a request, which name the model."""

    def __init__(self) -> None:
        self._by_model: dict[bytes, _ModelTemplates] = {}

    def read(self, data: bytes | memoryview) -> ReadRequest:
        """A serialized request, parsed as far as its names.

        Raises:
            InvalidArgument: it is not one.
            LongContents: it takes long.
        """
        if type(data) is not bytes and len(data) <= COPY_UP_TO:
            data = bytes(data)
        # The key that `_model_key` gives; where that is empty, no template is stored under this one.
        known = self._by_model.get(bytes(data[: 2 + data[1]])) if len(data) > 1 else None
        if known is not None:
            for template in known.templates:
                found = template.match(data)
                if found is not None:
                    known.misses = 0
                    if template is not known.templates[0]:
                        known.templates.remove(template)
                        known.templates.insert(0, template)
                    return found
        if len(data) > COPY_UP_TO and has_long_contents(memoryview(data)):
            raise LongContents
        return parse_request(data)

    def decode(self, request: ReadRequest, data: bytes | memoryview) -> DecodedRequest:
        """The request in the server's own vocabulary; `data` is what it was read from.

        Raises:
            InvalidArgument: it is wrong whatever the model.
        """
        if isinstance(request, MatchedRequest):
            return request.template.decode(request.id, request.raw)
        decoded = decode_request(request)
        self._learn(data, request)
        return decoded

    def _learn(self, data: bytes | memoryview, request: WireRequest) -> None:
        key = _model_key(data)
        if not key:
            return
        if len(self._by_model) >= _MAX_TEMPLATES // _MAX_TEMPLATES_PER_MODEL and key not in self._by_model:
            self._by_model.clear()
        known = self._by_model.setdefault(key, _ModelTemplates())
        known.misses += 1
        if known.misses > _PATIENCE and known.misses % _LEARN_EVERY:
            return
        template = _template_of(data, request)
        if template is not None:
            known.templates.insert(0, template)
            del known.templates[_MAX_TEMPLATES_PER_MODEL:]


def _from_the_end(raw: Sequence[tuple[bytes, int]]) -> list[tuple[bytes, slice, slice]]:
    """What stands before each tensor's data, and where that and the data are: counted from a message's end, since an id
    moves its beginning."""
    found: list[tuple[bytes, slice, slice]] = []
    end = 0
    for before, size in reversed(raw):
        start = end - size
        where = slice(start, end or None) if size else slice(0, 0)
        end = start - len(before)
        found.append((before, slice(end, start or None), where))
    return found[::-1]


def _model_key(data: Buffer) -> bytes:
    """The field with the model's name; empty where a request does not begin with it."""
    if len(data) < 2 or data[0] != _MODEL_NAME << 3 | 2 or data[1] > 0x7F:
        return b""
    return bytes(data[: 2 + data[1]])


def _template_of(data: bytes | memoryview, request: WireRequest) -> RequestTemplate | None:
    """None where the data is not at the end, or in other fields, or where there is more than one id."""
    fields = top_level_fields(data)
    if fields is None:
        return None
    raw = [field for field in fields if field.number == RAW_INPUT_CONTENTS and field.is_delimited]
    before = fields[: len(fields) - len(raw)]
    ids = [field for field in before if field.number == _ID]
    end = raw[0].start if raw else len(data)
    if any(field.number == RAW_INPUT_CONTENTS for field in before) or len(ids) > 1 or end > _MAX_START_SIZE:
        return None
    decoded = decode_request(request)
    known = decoded.request
    if len(known.inputs) + len(known.requested_outputs) + len(known.parameters) > _MAX_PARTS:
        return None
    placed = decoded.placement.inputs if decoded.placement is not None else ()
    if len(raw) != len(decoded.request.inputs) - len(placed):
        return None
    head, tail = bytes(data[:end]), None
    if ids:
        (its,) = ids
        if not its.is_delimited or its.value - its.start != 2:
            return None
        head, tail = bytes(data[: its.start + 1]), bytes(data[its.end : end])
    layout = [(bytes(data[field.start : field.value]), field.end - field.value) for field in raw]
    return RequestTemplate(decoded, request.names, head, tail, layout)
