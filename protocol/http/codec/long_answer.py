"""Codec of long JSON answers: as `codec.infer` writes them, in slices and in several buffers.

Pure. Each long output is written in pieces of some thousand elements; the text around them is that of an answer whose
long outputs are short marks.
"""

from __future__ import annotations

import codecs
import json
import math
import secrets
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import numpy as np

from protocol.datatypes import DataType
from protocol.errors import InvalidArgument
from protocol.http.codec.infer import OutputEncoding, encode_infer_response, json_headers
from protocol.http.codec.tensor_json import FLOATS, OUTPUT_CODES, encode_data, text_of_element, wrong_output
from protocol.http.reply import Headers
from protocol.messages import Buffer, InferenceResponse, Tensor
from protocol.sync.sliced import Sliced

# Outputs of fewer bytes are written in one go.
LONG_ABOVE = 1 << 13
# Elements of one piece, and bytes of texts in one.
PIECE = 1 << 12
TEXT_PIECE = 1 << 15
# Pieces are joined to buffers of so many bytes, since a system call takes so many buffers.
_BUFFER = 1 << 16
_FINITE_PART = 1 << 16
_LENGTH_SIZE = 4
_DECODER = codecs.getincrementaldecoder("utf-8")


def encode_long_response(response: InferenceResponse, encoding: OutputEncoding) -> Sliced[tuple[Headers, list[Buffer]]]:
    """As `encode_infer_response`; the JSON may be in several parts, and the first ones are it."""
    mark = secrets.token_hex(16)
    made: list[Any] = []
    for tensor in response.outputs:
        if tensor.name in encoding.elsewhere or encoding.is_binary(tensor.name):
            continue
        if tensor.byte_size <= LONG_ABOVE:
            made.append(encode_data(tensor))
            continue
        made.append((yield from written_in_pieces(tensor)))
    written: list[Pieces] = []
    values = iter(made)

    def value_of(_: Tensor) -> Any:
        value = next(values)
        if not isinstance(value, Pieces):
            return value
        written.append(value)
        return msgspec.Raw(b'"%b"' % mark.encode())

    _, (text, *tail) = encode_infer_response(response, encoding, value_of)
    around = bytes(text).split(b'"%b"' % mark.encode())
    parts: list[Buffer] = [around[0]]
    for pieces, after in zip(written, around[1:], strict=True):
        parts += (b"[", *pieces, b"]" + after)
        yield
    return json_headers(sum(map(len, parts)), has_tail=bool(tail)), [*parts, *tail]


class Pieces(list[bytes]):
    """The text of all elements, with commas between them."""


def written_in_pieces(tensor: Tensor) -> Sliced[Pieces]:
    """Raises as `encode_data`."""
    if tensor.datatype is DataType.BYTES:
        yield from _check_texts(tensor)
        return (yield from _gathered(_texts(tensor)))
    write: Callable[[Any], bytes] = msgspec.json.Encoder().encode
    if tensor.datatype in FLOATS and not (yield from _is_finite(tensor)):
        write = _write_words
    return (yield from _joined(_numbers(tensor), write))


def _write_words(values: list[Any]) -> bytes:
    return json.dumps(values, separators=(",", ":")).encode()


def _joined(lists: Iterator[list[Any]], write: Callable[[Any], bytes]) -> Sliced[Pieces]:
    buffers, pieces, size = Pieces(), [], 0
    for values in lists:
        pieces.append(write(values)[1:-1])
        size += len(pieces[-1])
        if size >= _BUFFER:
            pieces.append(b"")  # a comma at the end
            buffers.append(b",".join(pieces))
            pieces, size = [], 0
        yield
    if pieces:
        buffers.append(b",".join(pieces))
    elif buffers:
        buffers[-1] = buffers[-1][:-1]
    return buffers


def _gathered(texts: Iterator[bytes]) -> Sliced[Pieces]:
    """With their commas."""
    buffers, pieces, size = Pieces(), [], 0
    for text in texts:
        pieces.append(text)
        size += len(text)
        if size >= _BUFFER:
            buffers.append(b"".join(pieces))
            pieces, size = [], 0
        yield
    if pieces:
        buffers.append(b"".join(pieces))
    return buffers


def _numbers(tensor: Tensor) -> Iterator[list[Any]]:
    code, data = OUTPUT_CODES.get(tensor.datatype), memoryview(tensor.data)
    if code is not None and data.nbytes == math.prod(tensor.shape) * tensor.datatype.itemsize:
        view = data.cast("B").cast(code)
        for start in range(0, len(view), PIECE):
            yield view[start : start + PIECE].tolist()
        return
    flat = _array(tensor)
    for start in range(0, len(flat), PIECE):
        with np.errstate(invalid="ignore"):  # a signalling NaN
            part = flat[start : start + PIECE].astype(np.float32)
        yield part.tolist()


def _array(tensor: Tensor) -> Any:
    try:
        return tensor.as_numpy().reshape(-1)
    except InvalidArgument as error:
        raise wrong_output(tensor, error) from None


def _is_finite(tensor: Tensor) -> Sliced[bool]:
    flat, is_finite = _array(tensor), True
    for start in range(0, len(flat), _FINITE_PART):
        part = flat[start : start + _FINITE_PART]
        with np.errstate(invalid="ignore"):  # a signalling NaN
            is_finite = is_finite and bool(np.isfinite(part.astype(np.float64)).all())
        yield
    return is_finite


def _check_texts(tensor: Tensor) -> Sliced[None]:
    """Raises Internal: the data is not what the shape says."""
    count = 0
    position, size, view = 0, tensor.byte_size, memoryview(tensor.data)
    while position < size:
        position += _LENGTH_SIZE + int.from_bytes(view[position : position + _LENGTH_SIZE], "little")
        count += 1
        if count % PIECE == 0:
            yield
    if position != size or count != tensor.element_count:
        _array(tensor)  # which says what is wrong


def _texts(tensor: Tensor) -> Iterator[bytes]:
    """Some elements at a time, or a piece of a long one. Raises InvalidArgument: one is not valid UTF-8."""
    encode = msgspec.json.Encoder().encode
    position, size, view = 0, tensor.byte_size, memoryview(tensor.data)
    number, texts, length, comma = 0, [], 0, b""
    while position < size:
        start = position + _LENGTH_SIZE
        position = start + int.from_bytes(view[position:start], "little")
        is_long = position - start > TEXT_PIECE
        if not is_long:
            texts.append(text_of_element(tensor.name, number, bytes(view[start:position])))
            length += position - start
        if texts and (is_long or len(texts) >= PIECE or length >= TEXT_PIECE):
            yield comma + encode(texts)[1:-1]
            texts, length, comma = [], 0, b","
        if is_long:
            yield comma + b'"'
            yield from _long_text(tensor.name, number, view[start:position])
            yield b'"'
            comma = b","
        number += 1
    if texts:
        yield comma + encode(texts)[1:-1]


def _long_text(name: str, number: int, element: memoryview) -> Iterator[bytes]:
    """What is between its quotation marks. Raises as `text_of_element`."""
    encode, decoder = msgspec.json.Encoder().encode, _DECODER()
    for start in range(0, len(element), TEXT_PIECE):
        end = start + TEXT_PIECE
        try:
            text = decoder.decode(element[start:end], end >= len(element))
        except UnicodeDecodeError:
            text_of_element(name, number, bytes(element))  # which says what is wrong
            raise
        yield encode(text)[1:-1]
