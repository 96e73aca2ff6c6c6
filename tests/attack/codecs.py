"""What each codec does with an input, in process: it takes it, or refuses it by the errors that it may raise.

A request that is decoded twice, the second time as one whose template is known, has to mean the same.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from h2.exceptions import ProtocolError

from protocol.core import ModelMetadata, TensorMetadata
from protocol.errors import ServerError
from protocol.grpc.codec.request_templates import RequestTemplates as GrpcTemplates
from protocol.http.codec.generate import decode_generate_request
from protocol.http.codec.infer import DecodedRequest, decode_infer_request
from protocol.http.codec.raw_request import decode_raw_request
from protocol.http.codec.request_templates import RequestTemplates
from protocol.http.http1.chunks import ChunkDecoder, LineTooLong
from protocol.http.http1.head import END_OF_HEAD, parse_head
from protocol.http2.connection import ServerConnection
from protocol.http2.frames import PREFACE
from protocol.messages import InferenceRequest
from tests.attack.inputs import (
    MODELS,
    Chance,
    generate_body,
    grpc_block,
    grpc_framed,
    http1_request,
    http2_connection,
    infer_body,
    infer_message,
    mutate,
    rest_block,
    rest_body,
)

MAX_INPUT = 1 << 20
_TEXT = ModelMetadata("text", ("1",), "python", (TensorMetadata("TEXT", "BYTES", (-1,)),), ())
_SUMS = ModelMetadata(
    "sum", ("1",), "python", tuple(TensorMetadata(f"INPUT{number}", "FP32", (-1, 16)) for number in (0, 1)), ()
)


def head(chance: Chance) -> None:
    data = http1_request(chance, nearly=False)
    end = END_OF_HEAD.search(data)
    with suppress(ServerError):
        parse_head(data[: end.end()] if end is not None else data)


def chunks(chance: Chance) -> None:
    data = mutate(b"5\r\nhello\r\n6;x=y\r\n world\r\n0\r\ntrailer: x\r\n\r\n", chance)
    decoder = ChunkDecoder(1000)
    with suppress(ServerError, LineTooLong):
        for start in range(0, len(data), 7):
            decoder.feed(data[start : start + 7])


class HttpInfer:
    """Bodies of inference requests over HTTP."""

    def __init__(self) -> None:
        self._templates = RequestTemplates()

    def __call__(self, chance: Chance) -> None:
        body, length = infer_body(chance, chance.choice(MODELS))
        if length is not None and not 0 < length <= len(body):
            length = None

        def direct() -> DecodedRequest:
            return decode_infer_request(body, length, model_name="m", model_version=-1, max_input_size=MAX_INPUT)

        def formed() -> DecodedRequest:
            known = self._templates.find(body, length, model_name="m", model_version=-1)
            return known or self._templates.decode(
                body, length, model_name="m", model_version=-1, max_input_size=MAX_INPUT
            )

        said = [_outcome(decode) for decode in (direct, formed, formed)]
        assert said[0] == said[1] == said[2], (body, said)


def _outcome(decode: Callable[[], DecodedRequest]) -> object:
    try:
        decoded = decode()
    except ServerError as error:
        return str(error)
    return _said(decoded.request), decoded.encoding, decoded.placement


def generate(chance: Chance) -> None:
    with suppress(ServerError):
        decode_generate_request(
            generate_body(chance), chance.choice((_TEXT, _SUMS)), model_version=-1, max_input_size=MAX_INPUT
        )


def raw(chance: Chance) -> None:
    body = chance.randbytes(chance.randrange(300))
    with suppress(ServerError):
        decode_raw_request(
            body,
            chance.choice((_TEXT, _SUMS)),
            has_batch=chance.random() < 0.5,
            model_version=-1,
            max_input_size=200,
        )


class GrpcInfer:
    """ModelInferRequest messages."""

    def __init__(self) -> None:
        self._templates = GrpcTemplates()

    def __call__(self, chance: Chance) -> None:
        message = infer_message(chance)
        said: list[object] = []
        for templates in (GrpcTemplates(), self._templates, self._templates):
            try:
                decoded = templates.decode(templates.read(message), message)
            except ServerError as error:
                said.append(str(error))
            else:
                said.append((_said(decoded.request), decoded.placement, decoded.wants_empty_final))
        assert said[0] == said[1] == said[2], (message, said)


class Http2:
    """What comes on an HTTP/2 connection, in pieces."""

    def __init__(self, block: Callable[[Chance], bytes], message: Callable[[Chance], bytes]) -> None:
        self._block = block
        self._message = message

    def __call__(self, chance: Chance) -> None:
        connection = ServerConnection(
            max_concurrent_streams=100, stream_window=1 << 20, connection_window=1 << 20, max_header_size=8192
        )
        connection.initiate_connection()
        data = http2_connection(chance, self._block, self._message)
        size = chance.choice((1, 10, 1000, len(data)))
        assert data.startswith(PREFACE)
        try:
            for start in range(0, len(data), size):
                connection.receive_data(data[start : start + size])
                connection.data_to_send()
        except ProtocolError:
            pass


def codecs() -> dict[str, Callable[[Chance], None]]:
    """Each by its name; those that remember something begin anew."""
    return {
        "head": head,
        "chunks": chunks,
        "http_infer": HttpInfer(),
        "generate": generate,
        "raw": raw,
        "grpc_infer": GrpcInfer(),
        "grpc_frames": Http2(grpc_block, grpc_framed),
        "rest_frames": Http2(rest_block, rest_body),
    }


def _said(request: InferenceRequest) -> object:
    """What a request means, in values that can be compared; a NaN is equal to itself here."""
    return (
        request.model_name,
        request.model_version,
        request.id,
        [(each.name, each.datatype, tuple(each.shape), bytes(each.data)) for each in request.inputs],
        tuple(request.requested_outputs),
        repr(sorted(request.parameters.items())),
        request.priority,
        request.timeout_microseconds,
        (request.sequence_id or 0, request.sequence_start, request.sequence_end),  # 0 and "" are none,
    )
