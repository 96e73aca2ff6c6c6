"""Request templates of HTTP: a cache of parsed inference requests whose JSON recurs, with other binary data behind it.

A template is made of a request that was parsed and found right, and is found by its JSON. A later request with the same
JSON, and as much data behind it, means the same, so it is not parsed and checked again. Any other is parsed by
`codec.infer`. Pure; the table is bounded.
"""

from __future__ import annotations

from dataclasses import dataclass

from protocol.datatypes import DataType
from protocol.http.codec.infer import DecodedRequest, OutputEncoding, decode_infer_request
from protocol.messages import Buffer, InferenceRequest, ParameterValue, Tensor

# What takes more is not worth keeping.
MAX_JSON = 2048
MAX_TEMPLATES = 256


@dataclass(frozen=True, slots=True, eq=False)
class RequestTemplate:
    """What the JSON says. Each input has its size in bytes; all of them lie behind the JSON in this order."""

    inputs: tuple[tuple[str, DataType, tuple[int, ...], int], ...]
    data_size: int
    encoding: OutputEncoding
    requested_outputs: tuple[str, ...]
    parameters: dict[str, ParameterValue]
    priority: int
    timeout_microseconds: int

    def decode(self, view: memoryview, position: int, model_name: str, model_version: int) -> DecodedRequest:
        """The request whose data begins at this position."""
        inputs: list[Tensor] = []
        for name, datatype, shape, size in self.inputs:
            end = position + size
            inputs.append(Tensor(name, datatype, shape, view[position:end]))
            position = end
        request = InferenceRequest(
            model_name,
            inputs,
            model_version,
            "",
            self.requested_outputs,
            self.parameters.copy(),
            priority=self.priority,
            timeout_microseconds=self.timeout_microseconds,
            template=self,
        )
        return DecodedRequest(request, self.encoding)


class RequestTemplates:
    """The templates of one server. When there are too many, all are dropped: clients vary too much for any to be of
    use."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[bytes, RequestTemplate] = {}

    def find(
        self, body: Buffer, header_length: int | None, model_name: str, model_version: int, start: int = 0
    ) -> DecodedRequest | None:
        """The request, whose JSON begins at `start`; None if no template matches."""
        if header_length is None or header_length > MAX_JSON:
            return None
        end = start + header_length
        text = body[start:end]
        template = self._known.get(text if type(text) is bytes else bytes(text))
        if template is None or len(body) - end != template.data_size:
            return None
        view = memoryview(body)
        if not view.readonly:
            view = view.toreadonly()
        return template.decode(view, end, model_name, model_version)

    def decode(
        self, body: Buffer, header_length: int | None, *, model_name: str, model_version: int, max_input_size: int
    ) -> DecodedRequest:
        """Decode as `codec.infer.decode_infer_request`, and learn a template of it."""
        decoded = decode_infer_request(
            body, header_length, model_name=model_name, model_version=model_version, max_input_size=max_input_size
        )
        if header_length is not None and header_length <= min(MAX_JSON, max_input_size):
            self._learn(bytes(body[:header_length]), decoded, len(body) - header_length)
        return decoded

    def _learn(self, text: bytes, decoded: DecodedRequest, data_size: int) -> None:
        request = decoded.request
        if request.id or request.sequence_id or request.sequence_start or request.sequence_end:
            return  # it does not come again
        inputs = tuple([(each.name, each.datatype, each.shape, each.byte_size) for each in request.inputs])
        if decoded.placement is not None or sum(size for *_, size in inputs) != data_size:
            return  # some are in shared memory, or in the JSON itself
        if len(self._known) >= MAX_TEMPLATES:
            self._known.clear()
        self._known[text] = RequestTemplate(
            inputs,
            data_size,
            decoded.encoding,
            request.requested_outputs,
            request.parameters.copy(),
            request.priority,
            request.timeout_microseconds,
        )
