"""Inputs that are nearly right, made from a seed: HTTP/1 requests, their bodies, gRPC messages, HTTP/2 frames.

Most keep their structure and break one or two things in it, since what is broken everywhere is refused at once.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

from hpack.hpack import Encoder
from tritonclient.grpc import service_pb2

from protocol.http2 import frames
from protocol.http2.frames import PREFACE, frame

MODELS = ("sum", "sum_in_loop", "chain", "text", "count", "added_up")
DATATYPES = (
    *("BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64"),
    *("FP16", "FP32", "FP64", "BYTES", "BF16", "", "fp32", "STRING", "\0"),
)
NUMBERS: tuple[Any, ...] = (
    *(0, 1, -1, 2, 16, 64, 65, 127, 255, 256, 2**31 - 1, 2**31, -(2**31), 2**32, 2**53, 2**63 - 1, 2**63, -(2**63)),
    *(2**64 - 1, 2**64, 10**30, 0.5, -0.0, 1e308, 1e400, float("nan"), float("inf")),
)
TEXTS = (
    *("", "a", "INPUT0", "INPUT1", "OUTPUT0", "TEXT", "COUNT", "VALUE", "sum", "1", "\0", "é", "\ud800", "\U0001f600"),
    *("../../etc/passwd", "%s%n", "x" * 300, "{}", "null", "-1", "9" * 40, "\r\nx: y", "triton_x", "sequence_id"),
)
PARAMETERS = (
    *("binary_data_output", "binary_data_size", "classification", "shared_memory_region", "shared_memory_offset"),
    *("shared_memory_byte_size", "sequence_id", "sequence_start", "sequence_end", "priority", "timeout", "headers"),
    *("binary_data", "triton_enable_empty_final_response", "mine", ""),
)

Chance = random.Random


def mutate(data: bytes, chance: Chance) -> bytes:
    """One to three changes of bytes: flipped, cut out, repeated, put in, cut off."""
    out = bytearray(data)
    for _ in range(chance.randrange(1, 4)):
        place = chance.randrange(len(out) + 1)
        match chance.randrange(6):
            case 0 if out:
                out[place % len(out)] = chance.randrange(256)
            case 1:
                del out[place : place + chance.randrange(1, 9)]
            case 2:
                out[place:place] = out[place : place + chance.randrange(1, 40)]
            case 3:
                out[place:place] = chance.randbytes(chance.randrange(1, 9))
            case 4:
                del out[place:]
            case _:
                out[place:place] = chance.choice(
                    (b"\0", b"\r\n", b"\n", b" ", b":", b"\xff\xff\xff\xff", b'"', b"\\", b"[" * 200)
                )
    return bytes(out)


# JSON.


def value(chance: Chance, depth: int = 0) -> Any:
    """Any JSON value."""
    match chance.randrange(8 if depth < 4 else 5):
        case 0:
            return chance.choice(NUMBERS)
        case 1:
            return chance.choice(TEXTS)
        case 2:
            return None
        case 3:
            return chance.random() < 0.5
        case 4:
            return chance.randrange(-10, 10)
        case 5:
            return {chance.choice((*TEXTS, *PARAMETERS)): value(chance, depth + 1) for _ in range(chance.randrange(4))}
        case _:
            return [value(chance, depth + 1) for _ in range(chance.randrange(5))]


def _tensor(chance: Chance, model: str) -> dict[str, Any]:
    if model in ("sum", "sum_in_loop", "chain"):
        name, datatype, shape = chance.choice(("INPUT0", "INPUT1")), "FP32", [1, 16]
        data: Any = [float(number) for number in range(16)]
    elif model == "text":
        name, datatype, shape, data = "TEXT", "BYTES", [2], ["a", "é"]
    elif model == "count":
        name, datatype, shape, data = "COUNT", "INT32", [1], [3]
    else:
        name, datatype, shape, data = "VALUE", "INT32", [1, 1], [1]
    return {"name": name, "datatype": datatype, "shape": shape, "data": data}


def infer_json(chance: Chance, model: str) -> dict[str, Any]:
    """A request that is right, or nearly so."""
    inputs = [_tensor(chance, model) for _ in range(1)]
    if model in ("sum", "sum_in_loop", "chain"):
        inputs = [{**_tensor(chance, model), "name": name} for name in ("INPUT0", "INPUT1")]
    request: dict[str, Any] = {"inputs": inputs}
    if chance.random() < 0.3:
        request["id"] = chance.choice(TEXTS)
    if chance.random() < 0.3:
        request["parameters"] = {chance.choice(PARAMETERS): value(chance, 3)}
    if chance.random() < 0.3:
        outputs = [{"name": chance.choice(("OUTPUT0", "OUTPUT1", "TEXT_OUT", "NUMBER", "SUM"))}]
        request["outputs"] = outputs * chance.choice((1, 1, 2))
        if chance.random() < 0.5:
            outputs[0]["parameters"] = {chance.choice(PARAMETERS): value(chance, 3)}  # type: ignore[assignment]
    for _ in range(chance.choice((0, 1, 1, 2))):
        _change(request, chance)
    return request


def _change(request: Any, chance: Chance) -> None:
    """Change something somewhere within."""
    place: Any = request
    while isinstance(place, (dict, list)) and place:
        keys = list(place) if isinstance(place, dict) else list(range(len(place)))
        key: Any = chance.choice(keys)
        inner = place[key]
        if isinstance(inner, (dict, list)) and inner and chance.random() < 0.75:
            place = inner
            continue
        match chance.randrange(5):
            case 0:
                del place[key]
            case 1 if key == "datatype":
                place[key] = chance.choice(DATATYPES)
            case 2 if isinstance(place, dict):
                place[chance.choice((*TEXTS, *PARAMETERS, "inputs", "data", "shape"))] = value(chance, 2)
            case 3 if isinstance(place, list):
                place.insert(key, value(chance, 3))
            case _:
                place[key] = value(chance, 2)
        return


def infer_body(chance: Chance, model: str) -> tuple[bytes, int | None]:
    """A body, and the length of its JSON where binary tensors follow."""
    request = infer_json(chance, model)
    tail = b""
    header_length: int | None = None
    if chance.random() < 0.5 and isinstance(inputs := request.get("inputs"), list):
        for each in inputs:
            if isinstance(each, dict) and chance.random() < 0.8:
                each.pop("data", None)
                size = chance.choice((64, 64, 64, 4, 0, 63, 65))
                each["parameters"] = {"binary_data_size": chance.choice((size, size, size, *NUMBERS[:9]))}
                tail += chance.randbytes(size)
        header_length = -1
    text = json.dumps(request, ensure_ascii=chance.random() < 0.5).encode("utf-8", "surrogatepass")
    if chance.random() < 0.1:
        text = mutate(text, chance)
    if header_length is not None:
        header_length = len(text) + chance.choice((0, 0, 0, 0, 1, -1))
    return text + tail, header_length


def generate_body(chance: Chance) -> bytes:
    members = {
        chance.choice(("TEXT", "COUNT", "INPUT0", "id", "parameters", *TEXTS)): value(chance, 2) for _ in range(3)
    }
    text = json.dumps(members).encode()
    return mutate(text, chance) if chance.random() < 0.2 else text


# HTTP/1.

_ACTIONS = ("status", "region/r/register", "unregister")
_PATHS: tuple[Callable[[Chance], str], ...] = (
    lambda chance: f"/v2/models/{chance.choice(MODELS)}/infer",
    lambda chance: f"/v2/models/{chance.choice(MODELS)}/infer",
    lambda chance: (
        f"/v2/models/{chance.choice(MODELS)}/versions/{chance.choice(('1', '2', '-1', '99999999999', 'x'))}/infer"
    ),
    lambda chance: f"/v2/models/{chance.choice(('text', 'count', 'sum'))}/generate",
    lambda chance: f"/v2/models/{chance.choice(('text', 'count', 'sum'))}/generate_stream",
    lambda chance: (
        f"/v2/models/{chance.choice(MODELS)}{chance.choice(('', '/ready', '/config', '/stats', '/trace/setting'))}"
    ),
    lambda chance: chance.choice(
        ("/", "/v2", "/v2/health/live", "/v2/health/ready", "/v2/models/stats", "/v2/logging")
    ),
    lambda chance: f"/v2/{chance.choice(('systemsharedmemory', 'cudasharedmemory'))}/{chance.choice(_ACTIONS)}",
    lambda chance: (
        "/"
        + "/".join(chance.choice(("v2", "models", "..", "%2e%2e", "%00", "%", "sum", "x" * 50, "é")) for _ in range(4))
    ),
)
_HEADERS = (
    *(
        b"host: b",
        b"Connection: close",
        b"Connection: keep-alive",
        b"Connection: upgrade, http2-settings",
        b"Upgrade: h2c",
    ),
    *(b"HTTP2-Settings: AAMAAABkAAQAAP__", b"Transfer-Encoding: chunked", b"Transfer-Encoding: gzip, chunked"),
    *(b"Content-Encoding: gzip", b"Content-Encoding: deflate", b"Content-Encoding: br", b"Accept-Encoding: gzip"),
    *(
        b"Accept-Encoding: gzip;q=0, *;q=x",
        b"Expect: 100-continue",
        b"Expect: x",
        b"Content-Length: 00000000000000000005",
    ),
    *(
        b"Content-Length: " + b"0" * 5000,
        b"Content-Length: +5",
        b"Content-Length: 5, 5",
        b"Content-Length: 99999999999999999999999",
    ),
    *(
        b"Inference-Header-Content-Length: 0",
        b"Inference-Header-Content-Length: -5",
        b"Inference-Header-Content-Length: 1" + b"0" * 50,
    ),
    *(b"x: " + b"y" * 9000, b": empty", b"no colon", b" folded: x", b"x:\x00", b"x: \xff\xfe", b"traceparent: 00-zz"),
    *(b"authorization: Bearer x", b"endpoint-load-metrics-format: text", b"content-type: application/json"),
)


def http1_request(chance: Chance, *, nearly: bool) -> bytes:
    """One request. Where `nearly`, its head is right, so that the connection goes on after it."""
    path = chance.choice(_PATHS)(chance)
    method = "GET" if path.count("/") < 4 else "POST"
    if chance.random() < 0.05:
        method = chance.choice(("GET", "POST", "PUT", "HEAD", "DELETE", "OPTIONS", "PATCH", "get", "X" * 40))
    body, header_length = b"", None
    if path.endswith("infer"):
        body, header_length = infer_body(chance, path.split("/")[3])
    elif "generate" in path:
        body = generate_body(chance)
    elif method == "POST":
        body = json.dumps(value(chance)).encode()
    lines = [f"{method} {path} HTTP/1.1".encode(), b"host: fuzz"]
    if header_length is not None:
        lines.append(b"inference-header-content-length: %d" % header_length)
    if chance.random() < 0.15 and body:
        lines.append(b"transfer-encoding: chunked")
        body = _chunked(body, chance)
    elif body or method == "POST":
        lines.append(b"content-length: %d" % len(body))
    if not nearly:
        for _ in range(chance.randrange(3)):
            lines.insert(chance.randrange(1, len(lines) + 1), chance.choice(_HEADERS))
    data = b"\r\n".join(lines) + b"\r\n\r\n" + body
    if not nearly and chance.random() < 0.4:
        data = mutate(data, chance)
    return data


def _chunked(body: bytes, chance: Chance) -> bytes:
    data, place = b"", 0
    while place < len(body):
        size = chance.randrange(1, 100)
        piece = body[place : place + size]
        data += b"%x\r\n%b\r\n" % (len(piece), piece)
        place += size
    return data + b"0\r\n\r\n"


# gRPC messages.


def infer_message(chance: Chance) -> bytes:
    """A ModelInferRequest that is right, or nearly so."""
    model = chance.choice(MODELS)
    request = service_pb2.ModelInferRequest(model_name=model)
    if chance.random() < 0.2:
        request.model_version = chance.choice(("1", "2", "-1", "x", "9" * 30))
    if chance.random() < 0.2:
        request.id = chance.choice(("1", "", "x" * 300, "é"))
    for name in ("INPUT0", "INPUT1") if model in ("sum", "sum_in_loop", "chain") else (_tensor(chance, model)["name"],):
        right = _tensor(chance, model)
        given = request.inputs.add(
            name=name if chance.random() < 0.95 else chance.choice(("", "x", "INPUT0")),
            datatype=right["datatype"] if chance.random() < 0.95 else chance.choice(DATATYPES),
            shape=right["shape"] if chance.random() < 0.9 else [chance.choice((0, 1, -1, 16, 2**31, 2**62, 2**63 - 1))],
        )
        if chance.random() < 0.1:
            _set_parameter(given.parameters[chance.choice(PARAMETERS)], chance)
        if chance.random() < 0.7:
            size = chance.choice((64, 64, 64, 4, 0, 1))
            request.raw_input_contents.append(chance.randbytes(size))
        else:
            kind = chance.choice(
                ("fp32_contents", "int_contents", "bytes_contents", "bool_contents", "uint64_contents")
            )
            contents = getattr(given.contents, kind)
            contents.extend([b"ab"] * 2 if kind == "bytes_contents" else [1] * chance.choice((16, 1, 0, 17)))
    if chance.random() < 0.2:
        wanted = request.outputs.add(name=chance.choice(("OUTPUT0", "OUTPUT0", "TEXT_OUT", "x", "")))
        if chance.random() < 0.5:
            _set_parameter(wanted.parameters[chance.choice(PARAMETERS)], chance)
    if chance.random() < 0.2:
        _set_parameter(request.parameters[chance.choice(PARAMETERS)], chance)
    message: bytes = request.SerializeToString()
    return mutate(message, chance) if chance.random() < 0.3 else message


def _set_parameter(parameter: Any, chance: Chance) -> None:
    match chance.randrange(5):
        case 0:
            parameter.int64_param = chance.choice((0, 1, -1, 2**63 - 1, -(2**63)))
        case 1:
            parameter.bool_param = True
        case 2:
            parameter.string_param = chance.choice(("", "r", "x" * 300))
        case 3:
            parameter.double_param = chance.choice((0.5, float("nan"), float("inf")))
        case _:
            parameter.uint64_param = 2**64 - 1


# HTTP/2 frames.

METHODS = (
    "ModelInfer",
    "ModelStreamInfer",
    "ServerLive",
    "ModelReady",
    "ModelStatistics",
    "RepositoryIndex",
    "Nothing",
)
_ODD_FIELDS = (
    *(("x", "y "), ("x", " y"), ("X", "y"), ("", "y"), ("x", "a\nb"), ("x", "\0"), (":path", "/again"), (":odd", "x")),
    *(("grpc-timeout", "1m"), ("grpc-timeout", "99999999999S"), ("grpc-timeout", "x"), ("grpc-encoding", "gzip")),
    *(("grpc-encoding", "odd"), ("content-length", "5"), ("content-length", "0" * 5000), ("connection", "close")),
    *(("te", "x"), ("transfer-encoding", "chunked"), ("x-bin", "!"), ("x", "y" * 5000), ("host", "other")),
    *(("expect", "100-continue"), ("content-encoding", "gzip"), ("accept-encoding", "gzip")),
)


def grpc_block(chance: Chance) -> bytes:
    fields = [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", f"/inference.GRPCInferenceService/{chance.choice(METHODS)}"),
        (":authority", "fuzz"),
        ("content-type", "application/grpc"),
        ("te", "trailers"),
    ]
    return _block(fields, chance)


def rest_block(chance: Chance) -> bytes:
    path = chance.choice(_PATHS)(chance)
    method = "GET" if path.count("/") < 4 else "POST"
    return _block([(":method", method), (":scheme", "http"), (":path", path), (":authority", "fuzz")], chance)


def _block(fields: list[tuple[str, str]], chance: Chance) -> bytes:
    fields = list(fields)
    if chance.random() < 0.2:
        fields.insert(chance.randrange(len(fields) + 1), chance.choice(_ODD_FIELDS))
    if chance.random() < 0.05:
        del fields[chance.randrange(len(fields))]
    encoder = Encoder()
    encoder.header_table_size = 0
    block: bytes = encoder.encode(fields)
    return mutate(block, chance) if chance.random() < 0.03 else block


def http2_connection(
    chance: Chance, block: Callable[[Chance], bytes], message: Callable[[Chance], bytes], length: int = 12
) -> bytes:
    """What a client sends on a connection: the preface, and frames most of which are in their place."""
    parts = [PREFACE, frame(frames.SETTINGS, 0, 0, b"" if chance.random() < 0.8 else chance.randbytes(6))]
    stream = 1
    for _ in range(chance.randrange(1, length)):
        match chance.randrange(12):
            case 0 | 1 | 2 | 3 | 4 | 5:
                parts += _call(stream, chance, block, message)
                stream += 2
            case 6:
                parts.append(frame(frames.RST_STREAM, 0, _any_stream(stream, chance), chance.randbytes(4)))
            case 7:
                parts.append(frame(frames.WINDOW_UPDATE, 0, _any_stream(stream, chance), chance.randbytes(4)))
            case 8:
                parts.append(frame(frames.PING, 0, 0, chance.randbytes(chance.choice((8, 8, 8, 7)))))
            case 9:
                setting = chance.randrange(8).to_bytes(2, "big") + chance.choice(
                    (0, 1, 100, 16384, 2**31, 2**32 - 1)
                ).to_bytes(4, "big")
                parts.append(frame(frames.SETTINGS, 0, 0, setting))
            case 10:
                parts.append(_padded(stream - 2 if stream > 1 else 1, chance))
            case _:
                kind, flags = chance.randrange(12), chance.randrange(256)
                parts.append(frame(kind, flags, _any_stream(stream, chance), chance.randbytes(chance.randrange(40))))
    data = b"".join(parts)
    return data[: len(PREFACE)] + mutate(data[len(PREFACE) :], chance) if chance.random() < 0.1 else data


def _call(
    stream: int, chance: Chance, block: Callable[[Chance], bytes], message: Callable[[Chance], bytes]
) -> list[bytes]:
    header = block(chance)
    parts = []
    if chance.random() < 0.1 and len(header) > 2:
        middle = chance.randrange(1, len(header))
        parts.append(frame(frames.HEADERS, 0, stream, header[:middle]))
        parts.append(frame(frames.CONTINUATION, frames.END_HEADERS, stream, header[middle:]))
    else:
        parts.append(frame(frames.HEADERS, frames.END_HEADERS, stream, header))
    data = message(chance)
    pieces = [data]
    if chance.random() < 0.2 and data:
        middle = chance.randrange(len(data))
        pieces = [data[:middle], data[middle:]]
    for piece in pieces:
        is_last = piece is pieces[-1] and chance.random() < 0.95
        parts.append(frame(frames.DATA, frames.END_STREAM if is_last else 0, stream, piece))
    return parts


def grpc_framed(chance: Chance) -> bytes:
    """One message, or several, in gRPC's framing."""
    data = b""
    for _ in range(chance.choice((1, 1, 1, 2))):
        message = infer_message(chance)
        length = len(message) if chance.random() < 0.95 else chance.choice((0, len(message) + 1, 2**32 - 1))
        data += bytes([chance.choice((0, 0, 0, 0, 0, 0, 1, 2))]) + length.to_bytes(4, "big") + message
    return data


def rest_body(chance: Chance) -> bytes:
    return infer_body(chance, chance.choice(MODELS))[0]


def _any_stream(newest: int, chance: Chance) -> int:
    return chance.choice((0, 1, newest, newest - 2 if newest > 1 else 1, newest + 100, 2, 2**31 - 1))


def _padded(stream: int, chance: Chance) -> bytes:
    size = chance.randrange(256)
    payload = (
        bytes([size]) + chance.randbytes(chance.randrange(60)) + bytes(size if chance.random() < 0.8 else size // 2)
    )
    return frame(frames.DATA, frames.IS_PADDED, stream, payload)
