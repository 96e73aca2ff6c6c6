"""Reading JSON with Triton's texts for what is wrong with it."""

from __future__ import annotations

import json
import math
import re

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import InvalidArgument
from protocol.http.codec.infer import InferBody
from protocol.http.codec.json_text import JsonReader, write_non_finite

INFER = JsonReader(InferBody)
ANY = JsonReader(dict)
INPUT = '{"name":"a","datatype":"FP32","shape":[1]'


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "The document is empty at 0"),
        ("{", "Input data was truncated at 1"),
        ('{"inputs":}', "invalid character at 10"),
        ('{"inputs":[]} x', "trailing characters at"),
        ('{"id":"\\ud800","inputs":[]}', "unexpected end of escaped utf-16 surrogate pair"),
        ('{"inputs":[NaN}', "at 14"),
        ("NaN NaN", "Extra data at 4"),
        ('{"id":"\\ud800","x":NaN}', "half of a surrogate pair"),
        ('{"x":NaN,"y":' + "1" * 5000 + "}", "integer"),
        ('{"x":Nan}', "invalid character"),
    ],
)
def test_broken_json_is_refused_with_reason_and_offset(text: str, reason: str) -> None:
    with pytest.raises(InvalidArgument, match=f"^failed to parse the request JSON buffer: .*{re.escape(reason)}"):
        INFER.read(text.encode())


@pytest.mark.parametrize("text", [b'{"id":"\xff"}', b'{"id":"\xff","x":NaN}'])
def test_text_that_is_not_utf8_is_refused(text: bytes) -> None:
    with pytest.raises(InvalidArgument, match=r"^failed to parse the request JSON buffer: .*not valid UTF-8"):
        INFER.read(text)


MISTAKES = [
    ("{}", "Unable to parse 'inputs': attempt to access non-existing object member 'inputs'"),
    ("[]", "Unable to parse the request JSON: attempt to access JSON non-object as object, got array"),
    ("5", "Unable to parse the request JSON: attempt to access JSON non-object as object, got int"),
    ('{"inputs":5}', "Unable to parse 'inputs': attempt to access JSON non-array as array, got int"),
    ('{"inputs":null}', "Unable to parse 'inputs': attempt to access JSON non-array as array, got null"),
    (
        '{"inputs":[5]}',
        "Unable to parse 'inputs': attempt to access JSON non-object as object, got int at inputs[0]",
    ),
    (
        '{"inputs":[{"name":1}]}',
        "Unable to parse 'name': attempt to access JSON non-string as string, got int at inputs[0].name",
    ),
    (
        '{"inputs":[' + INPUT + '},{"name":"b"}]}',
        "Unable to parse 'datatype': attempt to access non-existing object member 'datatype' in inputs[1]",
    ),
    (
        '{"inputs":[{"name":"a","datatype":"FP32","shape":[1.5]}]}',
        "Unable to parse 'shape': attempt to access JSON non-unsigned-integer as unsigned-integer, got float "
        "at inputs[0].shape[0]",
    ),
    (
        '{"inputs":[' + INPUT + ',"parameters":{"binary_data_size":-1}}]}',
        "Unable to parse 'binary_data_size': attempt to access JSON non-unsigned-integer as unsigned-integer "
        "at inputs[0].parameters.binary_data_size",
    ),
    (
        '{"inputs":[' + INPUT + ',"parameters":{"binary_data_size":"8"}}]}',
        "Unable to parse 'binary_data_size': attempt to access JSON non-unsigned-integer as unsigned-integer, "
        "got str at inputs[0].parameters.binary_data_size",
    ),
    (
        '{"inputs":[],"outputs":[{"name":"o","parameters":{"binary_data":1}}]}',
        "Unable to parse 'binary_data': attempt to access JSON non-boolean as boolean, got int "
        "at outputs[0].parameters.binary_data",
    ),
    ('{"inputs":[],"id":3}', "Unable to parse 'id': attempt to access JSON non-string as string, got int"),
    (
        '{"inputs":[],"parameters":"x"}',
        "Unable to parse 'parameters': attempt to access JSON non-object as object, got str",
    ),
    (
        '{"inputs":[' + INPUT + ',"data":[1e999]}]}',
        "Unable to parse 'data': Number out of range at inputs[0].data[0]",
    ),
]


@pytest.mark.parametrize(("text", "message"), MISTAKES)
def test_wrong_types_and_members(text: str, message: str) -> None:
    """Triton's sentence, then what was found and where."""
    with pytest.raises(InvalidArgument) as caught:
        INFER.read(text.encode())
    assert caught.value.message == message


@pytest.mark.parametrize(("text", "message"), [(t, m) for t, m in MISTAKES if '"inputs"' in t and "1e999" not in t])
def test_the_second_reader_says_the_same(text: str, message: str) -> None:
    """A NaN elsewhere in the text makes the standard library read it."""
    with pytest.raises(InvalidArgument) as caught:
        INFER.read((text[:-1] + ',"zz":NaN}').encode())
    assert caught.value.message == message


def test_null_stands_for_an_absent_optional_member() -> None:
    body = INFER.read(b'{"inputs":[],"id":null,"parameters":null,"outputs":null}')
    assert (body.id, body.parameters, body.outputs) == (None, None, None)


def test_unknown_members_are_ignored() -> None:
    assert INFER.read(b'{"inputs":[],"model_name":"x","zz":[1,{"a":2}]}').inputs == []


@pytest.mark.parametrize("text", ['{"a":%s}', '{"a":%s,"b":NaN}'])
def test_endless_nesting_is_refused(text: str) -> None:
    """Neither reader overflows its stack."""
    with pytest.raises(InvalidArgument, match="JSON nesting depth exceeds maximum allowed limit \\(100\\)"):
        ANY.read((text % ("[" * 100_000 + "]" * 100_000)).encode())


@pytest.mark.parametrize("buffer", [bytes, bytearray, memoryview])
def test_any_buffer_is_read(buffer: type) -> None:
    """Also one that needs the second reader."""
    assert ANY.read(buffer(b'{"a":1}')) == {"a": 1}
    assert ANY.read(buffer(b'{"a":-Infinity}')) == {"a": -math.inf}


def test_words_for_floats_inside_strings_change_nothing() -> None:
    assert ANY.read(b'{"NaN":"Infinity"}') == {"NaN": "Infinity"}
    assert ANY.read(b'{"a":"NaN \\ud83d\\ude00","b":NaN}')["a"] == "NaN \U0001f600"


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@pytest.mark.slow
@given(st.dictionaries(st.text(), JSON))
def test_whatever_the_standard_library_writes_is_read(value: dict[str, object]) -> None:
    """NaN and the infinities included, both escaped and as plain UTF-8."""
    for ascii_only in (True, False):
        text = json.dumps(value, ensure_ascii=ascii_only)
        assert json.dumps(ANY.read(text.encode()), ensure_ascii=ascii_only) == text


@given(st.binary(max_size=30) | st.text(max_size=30).map(str.encode))
def test_no_other_error_escapes(text: bytes) -> None:
    try:
        INFER.read(text)
    except InvalidArgument:
        return
    assert b"inputs" in text


def test_floats_that_json_has_no_word_for_are_written_as_triton_does() -> None:
    value = [math.nan, math.inf, -math.inf, 1.5]
    assert msgspec.json.encode({"data": write_non_finite(value)}) == b'{"data":[NaN,Infinity,-Infinity,1.5]}'
