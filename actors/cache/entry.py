"""Response cache entries: the key of a request (a digest), and the encoding of a response. Pure codecs."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import msgspec

from protocol.datatypes import BY_PROTOCOL_NAME
from protocol.messages import Buffer, InferenceRequest, InferenceResponse, ParameterValue, Tensor
from repository.fingerprint import Fingerprint

KEY_BYTES = 32
# The form of the entries; part of every key, so servers with another form find nothing of ours.
FORM = "trioton.response.1"

_LENGTH_BYTES = 4


class BadEntry(ValueError):
    """The bytes are not an encoded response."""


class _Output(msgspec.Struct, array_like=True):
    name: str
    datatype: str
    shape: tuple[int, ...]
    byte_size: int


class _Header(msgspec.Struct, array_like=True):
    outputs: list[_Output]
    parameters: dict[str, bool | int | float | str]


_header_decoder = msgspec.msgpack.Decoder(_Header)


def version_key(model: str, version: int, generation: bytes) -> bytes:
    """The part of the keys that all requests of one load of one version have in common."""
    return _digest(b"", [msgspec.msgpack.encode((FORM, model, version, generation))])


def files_generation(files: Fingerprint, sample: bytes, config: Mapping[str, object]) -> bytes:
    """The same for two loads of the same files, judged by their sizes, modification times and a sample of their
    contents, with the same configuration. Directories that hold copies agree only if the copies kept those times."""
    return _digest(b"", [msgspec.msgpack.encode((files, sample, config), order="deterministic")])


def request_key(version: bytes, request: InferenceRequest) -> bytes:
    """A digest of everything of a request that can change its answer.

    That is each input with its name, datatype, shape and bytes, in whatever order they came; the parameters; the
    requested outputs in their order; and the sequence fields, which a model can see. Left out are `id`, `priority` and
    `timeout_microseconds`. Every part carries its length and type, so no two different requests are written alike.
    """
    inputs = sorted(request.inputs, key=lambda tensor: tensor.name)
    head = msgspec.msgpack.encode(
        (
            [(tensor.name, tensor.datatype.name, tensor.shape, tensor.byte_size) for tensor in inputs],
            sorted(request.parameters.items()),
            request.requested_outputs,
            request.sequence_id,
            request.sequence_start,
            request.sequence_end,
        )
    )
    return _digest(version, [head, *(tensor.data for tensor in inputs)])


def input_bytes(request: InferenceRequest) -> int:
    """How many bytes are to be digested."""
    return sum(tensor.byte_size for tensor in request.inputs)


def encode_response(response: InferenceResponse) -> bytes:
    """Outputs and parameters in one piece; what differs from request to request (`id`) is left out."""
    outputs = response.outputs
    head = msgspec.msgpack.encode(
        _Header(
            [_Output(tensor.name, tensor.datatype.name, tensor.shape, tensor.byte_size) for tensor in outputs],
            dict(response.parameters),
        )
    )
    return b"".join([len(head).to_bytes(_LENGTH_BYTES, "little"), head, *(tensor.data for tensor in outputs)])


def decode_response(data: Buffer) -> tuple[list[Tensor], dict[str, ParameterValue]]:
    """Outputs, as views of `data`, and parameters.

    Raises:
        BadEntry: the data is cut off, too long, or something else.
    """
    view = memoryview(data)
    start = _LENGTH_BYTES + int.from_bytes(view[:_LENGTH_BYTES], "little")
    try:
        header = _header_decoder.decode(view[_LENGTH_BYTES:start])
    except msgspec.DecodeError as error:
        raise BadEntry(str(error)) from None
    tensors: list[Tensor] = []
    for output in header.outputs:
        datatype = BY_PROTOCOL_NAME.get(output.datatype)
        end = start + output.byte_size
        if datatype is None or output.byte_size < 0 or end > len(view):
            raise BadEntry(f"output '{output.name}' is not all there")
        tensors.append(Tensor(output.name, datatype, output.shape, view[start:end]))
        start = end
    if start != len(view):
        raise BadEntry(f"{len(view) - start} bytes too many")
    return tensors, dict(header.parameters)


def _digest(prefix: bytes, parts: Sequence[Buffer]) -> bytes:
    digest = hashlib.blake2b(prefix, digest_size=KEY_BYTES)
    for part in parts:
        digest.update(part)
    return digest.digest()
