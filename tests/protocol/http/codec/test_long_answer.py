"""Long JSON answers, written in slices: the same bytes and the same errors as of those that are written in one go."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.datatypes import DataType
from protocol.errors import ServerError
from protocol.http.codec import long_answer
from protocol.http.codec.infer import OutputEncoding, encode_infer_response
from protocol.http.codec.long_answer import PIECE, TEXT_PIECE, encode_long_response
from protocol.http.reply import Headers
from protocol.messages import Buffer, InferenceResponse, Tensor, encode_bytes_elements
from tests.protocol.http.codec.test_long_infer import steps
from tests.sliced import finished


@pytest.fixture(autouse=True, scope="module")
def narrow() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(long_answer, "LONG_ABOVE", 16)
        patch.setattr(long_answer, "PIECE", 4)
        patch.setattr(long_answer, "TEXT_PIECE", 20)
        patch.setattr(long_answer, "_BUFFER", 32)
        patch.setattr(long_answer, "_FINITE_PART", 5)
        yield


ALL_JSON = OutputEncoding()
LONG_AND_WRONG = b"\x1e\x00\x00\x00" + "é".encode() * 14 + b"a\xc3"


def outcome(encode: Callable[[], tuple[Headers, list[Buffer]]]) -> Any:
    try:
        headers, parts = encode()
    except ServerError as error:
        return type(error), error.message
    return headers, b"".join(parts)


def check(response: InferenceResponse, encoding: OutputEncoding = ALL_JSON) -> None:
    found = outcome(lambda: finished(encode_long_response(response, encoding)))
    assert found == outcome(lambda: encode_infer_response(response, encoding))


NUMBERS = [each for each in DataType if each is not DataType.BYTES and each.itemsize]


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    datatype = draw(st.sampled_from([*NUMBERS, DataType.BYTES]))
    name = draw(st.text(st.characters(codec="utf-8"), max_size=4))
    if datatype is DataType.BYTES:
        items = draw(st.lists(st.text(st.characters(codec="utf-8"), max_size=40), max_size=30))
        data = encode_bytes_elements(items)
        count = len(items)
        data += draw(st.sampled_from([b""] * 8 + [b"\x01\x00\x00\x00\xff", b"\x01", LONG_AND_WRONG]))
    else:
        data = draw(st.binary(max_size=200))
        data = data[: len(data) // datatype.itemsize * datatype.itemsize]
        if datatype is DataType.BOOL:
            data = bytes(byte & 1 for byte in data)
        count = len(data) // datatype.itemsize
    return Tensor(name, datatype, (count + (draw(st.integers(0, 9)) == 0),), data)


@given(outputs=st.lists(tensors(), max_size=4), binary=st.booleans())
def test_the_text_is_the_same(outputs: list[Tensor], binary: bool) -> None:
    chosen = {outputs[0].name: True} if outputs and binary else {}
    check(InferenceResponse("model", 1, outputs, id="x"), OutputEncoding(binary=chosen))


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e30])
@pytest.mark.parametrize("place", [0, 41, 99])
def test_words_for_numbers(value: float, place: int) -> None:
    """One number that is none decides how all are written."""
    array = np.arange(100, dtype=np.float32) * np.float32(1e20)
    array[place] = value
    check(InferenceResponse("model", 1, [Tensor.from_numpy("a", array)]))


def test_an_answer_comes_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others run behind each of some thousand elements, and no part of it is joined to one as large as the whole."""
    monkeypatch.setattr(long_answer, "PIECE", PIECE)
    monkeypatch.setattr(long_answer, "_BUFFER", 1 << 16)
    monkeypatch.setattr(long_answer, "_FINITE_PART", 1 << 16)
    array = np.random.default_rng(1).random(1 << 18, np.float32)
    response = InferenceResponse("model", 1, [Tensor.from_numpy("a", array)])
    assert steps(encode_long_response(response, OutputEncoding())) >= len(array) // PIECE
    _, parts = finished(encode_long_response(response, OutputEncoding()))
    assert max(map(len, parts)) < 1 << 18


def test_a_long_text_comes_in_pieces_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where it is the only element: 60 MB of it took 600 ms in one go."""
    monkeypatch.setattr(long_answer, "TEXT_PIECE", TEXT_PIECE)
    text = "a\n" + "é" * TEXT_PIECE * 4
    response = InferenceResponse(
        "model", 1, [Tensor("a", DataType.BYTES, (2,), encode_bytes_elements([text, "short"]))]
    )
    assert steps(encode_long_response(response, OutputEncoding())) >= 8
    check(response)
