"""Long JSON bodies, read in slices: what comes out and what is refused is as of the codec that reads all in one go."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, cast

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from protocol.datatypes import DataType
from protocol.errors import InvalidArgument, ServerError
from protocol.http.codec import long_arrays, long_infer, long_json, packed_data
from protocol.http.codec.infer import DecodedRequest, decode_infer_request
from protocol.http.codec.long_arrays import LONG_ABOVE, WINDOW
from protocol.http.codec.long_infer import decode_long_request
from protocol.http.errors import BodyTooLarge
from protocol.messages import LaidOutTensor
from protocol.sync.sliced import Sliced
from tests.sliced import finished

LIMIT = 1 << 24


@pytest.fixture(scope="module", autouse=True)
def narrow() -> Iterator[None]:
    """Windows so small that short texts have many, and their ends are everywhere."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(long_arrays, "WINDOW", 16)
        patch.setattr(long_arrays, "LONG_ABOVE", 4)
        patch.setattr(long_arrays, "_LARGEST_WINDOW", 256)
        patch.setattr(packed_data, "_STRING_PART", 8)
        yield


def outcome(decoded: DecodedRequest) -> Any:
    request = decoded.request
    inputs = [(each.name, each.datatype, each.shape, bytes(each.data)) for each in request.inputs]
    return inputs, request.id, request.parameters, request.requested_outputs, request.template, decoded.encoding


def whole(body: bytes, length: int | None = None, limit: int = LIMIT) -> Any:
    try:
        return outcome(decode_infer_request(body, length, model_name="m", model_version=1, max_input_size=limit))
    except ServerError as error:
        return type(error), error.message


def sliced(body: bytes, length: int | None = None, limit: int = LIMIT) -> Any:
    """None where it is left to the other."""
    try:
        decoded = finished(decode_long_request(body, length, model_name="m", model_version=1, max_input_size=limit))
        return None if decoded is None else outcome(decoded)
    except ServerError as error:
        return type(error), error.message


def check(body: bytes, length: int | None = None) -> None:
    found = sliced(body, length)
    assert found is None or found == whole(body, length)


def checked(body: bytes, length: int | None = None) -> None:
    """As `check`, of one that must not be left to the other."""
    assert sliced(body, length) == whole(body, length)


NUMBERS: dict[str, st.SearchStrategy[Any]] = {
    "BOOL": st.booleans(),
    "INT8": st.integers(-129, 127),
    "UINT64": st.integers(0, 2**64),
    "INT64": st.integers(-(2**63), 2**63 - 1),
    "FP16": st.floats(width=16, allow_nan=False, allow_infinity=False),
    "FP32": st.one_of(st.floats(allow_nan=False, allow_infinity=False), st.integers()),
    "FP64": st.one_of(st.floats(allow_nan=False), st.integers(-(2**70), 2**70)),
    "BYTES": st.text(st.characters(codec="utf-8"), max_size=40),
}


def nested(elements: list[Any], data: st.DataObject, depth: int = 0) -> list[Any]:
    """The same elements, some of them in lists of lists."""
    if depth > 3 or not elements or data.draw(st.booleans()):
        return elements
    cuts = sorted(data.draw(st.lists(st.integers(0, len(elements)), max_size=5)))
    pairs = zip([0, *cuts], [*cuts, len(elements)], strict=True)
    return [nested(elements[first:last], data, depth + 1) for first, last in pairs]


@st.composite
def inputs(draw: st.DrawFn) -> dict[str, Any]:
    datatype = draw(st.sampled_from([*NUMBERS]))
    elements = draw(st.lists(NUMBERS[datatype], max_size=40))
    if draw(st.integers(0, 9)) == 0:
        elements.append(draw(st.sampled_from([None, "text", 1.5, True, {"a": [1, 2]}, {}])))
    members = {
        "name": draw(st.text(max_size=3)),
        "datatype": datatype,
        "shape": [len(elements) + (draw(st.integers(0, 9)) == 0)],
        "data": nested(elements, draw(st.data())),
    }
    order = draw(st.permutations([*members]))
    return {name: members[name] for name in order}


@st.composite
def bodies(draw: st.DrawFn) -> bytes:
    message: dict[str, Any] = {
        "id": draw(st.text(max_size=5)),
        "inputs": draw(st.lists(inputs(), min_size=1, max_size=3)),
    }
    if draw(st.booleans()):
        message["parameters"] = {"a": 1, **draw(st.sampled_from([{}, {"data": "[1,2,3,4,5,6]"}, {"b": '"data":['}]))}
    separators = draw(st.sampled_from([(",", ":"), (", ", ": "), (" ,\n ", " : ")]))
    return json.dumps(message, ensure_ascii=draw(st.booleans()), separators=separators).encode("utf-8", "replace")


@given(body=bodies())
def test_the_result_is_the_same(body: bytes) -> None:
    check(body)


PIECES = [
    b"[",
    b"]",
    b",",
    b'"',
    b"\\",
    b"0",
    b"-",
    b".",
    b"e",
    b"{",
    b"}",
    b":",
    b" ",
    b"NaN",
    b"[]",
    b"\xff",
    b"null",
]


@given(body=bodies(), data=st.data())
def test_what_is_refused_is_refused_with_the_same_words(body: bytes, data: st.DataObject) -> None:
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(body)))
        end = min(start + data.draw(st.integers(0, 3)), len(body))
        body = body[:start] + data.draw(st.sampled_from([b"", *PIECES])) + body[end:]
    check(body)


def body_of(data: bytes, datatype: str = "FP32", shape: str = "[20]", more: bytes = b"") -> bytes:
    return b'{"inputs":[{"name":"a","datatype":"%b","shape":%b,"data":%b}]%b}' % (
        datatype.encode(),
        shape.encode(),
        data,
        more,
    )


TWENTY = b"[" + b",".join(b"%d.5" % number for number in range(20)) + b"]"


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(body_of(TWENTY), id="plain"),
        pytest.param(body_of(TWENTY.replace(b",", b" , ")), id="blanks"),
        pytest.param(body_of(b"[" + b",".join([TWENTY] * 3) + b"]", shape="[3,20]"), id="nested"),
        pytest.param(body_of(b"[[" + TWENTY + b"]]", shape="[1,1,20]"), id="deeper"),
        pytest.param(body_of(TWENTY.replace(b"7.5", b"NaN")), id="not a number"),
        pytest.param(body_of(TWENTY.replace(b"7.5", b"-Infinity").replace(b"3.5", b"NaN")), id="infinite"),
        pytest.param(body_of(TWENTY, "INT8"), id="of another type"),
        pytest.param(body_of(TWENTY.replace(b".5", b"00"), "INT8"), id="out of range"),
        pytest.param(body_of(TWENTY, shape="[21]"), id="too few"),
        pytest.param(body_of(TWENTY, shape="[19]"), id="too many"),
        pytest.param(body_of(TWENTY, shape="[0]"), id="none wanted"),
        pytest.param(body_of(TWENTY, shape="[-1]"), id="a negative dimension"),
        pytest.param(body_of(TWENTY, "FP31"), id="no datatype"),
        pytest.param(body_of(TWENTY[:-1] + b",]"), id="a comma at the end"),
        pytest.param(body_of(TWENTY.replace(b"7.5", b"")), id="two commas"),
        pytest.param(body_of(TWENTY.replace(b"17.5", b"1x")), id="no number"),
        pytest.param(body_of(TWENTY) + b"x", id="something behind"),
        pytest.param(body_of(TWENTY)[:-30], id="cut off"),
        pytest.param(body_of(TWENTY)[:-4], id="cut off behind the array"),
        pytest.param(body_of(TWENTY.replace(b"7.5", b"-"), more=b',"id":3'), id="the first of two mistakes"),
        pytest.param(b'{"id":3,' + body_of(TWENTY.replace(b"7.5", b"-"))[1:], id="the other first"),
        pytest.param(body_of(b'["%b"]' % (b"x" * 300), "BYTES", "[1]"), id="a long string"),
        pytest.param(body_of(b'["%b"]' % ("ü€🙂" * 50).encode(), "BYTES", "[1]"), id="a long text"),
        pytest.param(body_of(b'["a", "%b" , "b"]' % (b"x" * 300), "BYTES", "[3]"), id="among others"),
        pytest.param(body_of(b'[[["%b"]]]' % (b"x" * 300), "BYTES", "[1]"), id="a nested long string"),
        pytest.param(body_of(b'["%b"]' % (b'\\n\\\\\\u20ac\\"' * 50), "BYTES", "[1]"), id="escapes"),
        pytest.param(body_of(b'["%b\n"]' % (b"x" * 300), "BYTES", "[1]"), id="a control character"),
        pytest.param(body_of(b'["%b\xff"]' % (b"x" * 300), "BYTES", "[1]"), id="no text"),
        pytest.param(body_of(b'["%b' % (b"x" * 300), "BYTES", "[1]"), id="a string without an end"),
        pytest.param(body_of(b'["%b"0,"x"]' % (b"x" * 300), "BYTES", "[2]"), id="a number behind a string"),
        pytest.param(body_of(b'["%b".5,"x"]' % (b"x" * 300), "BYTES", "[2]"), id="a part of a number behind a string"),
        pytest.param(body_of(b'["%b"]' % (b"x" * 300), "FP32", "[1]"), id="a string that is no number"),
        pytest.param(body_of(TWENTY, more=b',"parameters":{"p":{"data":%b}}' % TWENTY), id="in a parameter"),
        pytest.param(body_of(TWENTY, more=b',"other":{"data":%b}' % TWENTY), id="in what is ignored"),
        pytest.param(body_of(TWENTY).replace(b'"name"', b'"data":[1,2,3,4],"name"'), id="given twice"),
    ],
)
def test_bodies(body: bytes) -> None:
    check(body)


@pytest.mark.parametrize(
    "body", [body_of(TWENTY[:-1] + b",]"), body_of(TWENTY.replace(b"17.5", b"1x")), body_of(TWENTY)]
)
def test_mistakes_need_no_look_at_the_whole(body: bytes) -> None:
    checked(body)


def test_binary_inputs_behind_the_text() -> None:
    text = body_of(TWENTY).replace(
        b"]}]", b']},{"name":"b","datatype":"INT8","shape":[3],"parameters":{"binary_data_size":3}}]'
    )
    checked(text + b"\x01\x02\x03", len(text))
    checked(text + b"\x01\x02", len(text))


def test_what_has_few_arrays_is_left_to_the_other() -> None:
    assert sliced(b'{"id":"%b","inputs":[]}' % (b"x" * 10_000)) is None


def test_a_mark_cannot_be_written_by_a_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """A list that looks like what stands for an array is one."""
    data = b'["0123456789abcdef0123456789abcdef", 0]'
    check(body_of(data, "BYTES", "[2]"))


def steps(work: Sliced[Any]) -> int:
    count = 0
    try:
        while True:
            next(work)
            count += 1
    except StopIteration:
        return count


@pytest.mark.parametrize("data", ["1,", '"text",', "[1,2],", "[[1],[2,3]],"])
def test_a_slice_has_a_bounded_share_of_the_text(data: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """And is a step: others run behind each."""
    monkeypatch.setattr(long_arrays, "WINDOW", WINDOW)
    monkeypatch.setattr(long_arrays, "_LARGEST_WINDOW", 1 << 20)
    longest: list[int] = []
    parse = long_json._elements

    def noted(text: memoryview, piece: long_arrays.Piece) -> list[Any]:
        longest.append(piece.end - piece.start)
        return parse(text, piece)

    monkeypatch.setattr(long_json, "_elements", noted)
    count = (1 << 20) // len(data)
    leaves = count * max(sum(map(data.count, "123")), 1)
    text = f"[{data * (count - 1)}{data[:-1]}]".encode()
    body = body_of(text, "BYTES" if '"' in data else "FP32", f"[{leaves}]")
    taken = steps(decode_long_request(body, None, model_name="m", model_version=1, max_input_size=LIMIT))
    assert max(longest) <= WINDOW
    assert taken >= 2 * len(text) / WINDOW, "of the scan, and of parsing"


def test_many_short_arrays_are_found_without_a_look_at_all_that_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(long_arrays, "WINDOW", WINDOW)
    monkeypatch.setattr(long_arrays, "LONG_ABOVE", LONG_ABOVE)

    class Text(bytearray):
        """Counts the bytes that are copied of it."""

        copied = 0

        def __getitem__(self, place: Any) -> Any:
            Text.copied += len(found := super().__getitem__(place))
            return bytes(found)

    one = b'{"name":"a","data":[1]},'
    text = Text(one * 10_000)
    assert finished(long_arrays.find_long_arrays(cast(memoryview, text), long_infer.DATA)) == []
    assert Text.copied < 10_000 * (LONG_ABOVE + 2 * len(one))


def test_a_long_string_is_looked_at_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_data, "_STRING_PART", 1 << 16)
    monkeypatch.setattr(long_arrays, "_LARGEST_WINDOW", 1 << 20)
    body = body_of(b'["%b"]' % (b"x" * (1 << 22)), "BYTES", "[1]")
    assert sliced(body) == whole(body)
    assert steps(decode_long_request(body, None, model_name="m", model_version=1, max_input_size=LIMIT)) >= 32


@pytest.mark.parametrize("part", [(1 << 16) - 1, 1 << 16, 65_541])
@pytest.mark.parametrize("text", [r"\u00e9", r"\ud83d\ude00", r"\\", r"a\n", r"\\\"", "é", "a😀", r"é\ud83d\ude00\\\\"])
def test_so_is_one_with_escapes(text: str, part: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """None of them is cut through, and no object of the whole is made."""
    monkeypatch.setattr(packed_data, "_STRING_PART", part)
    monkeypatch.setattr(long_arrays, "_LARGEST_WINDOW", 1 << 20)
    size = 1 << 20
    body = body_of(b'["x%b"]' % (text.encode() * (size // len(text.encode()))), "BYTES", "[1]")
    assert sliced(body) == whole(body)
    assert steps(decode_long_request(body, None, model_name="m", model_version=1, max_input_size=LIMIT)) >= 16


@given(st.lists(st.integers(-(2**70), 2**70) | st.floats(), min_size=5))
@example([2**63, float("nan"), 2**64])
def test_large_integers_beside_what_is_not_finite(numbers: list[Any]) -> None:
    for datatype in (DataType.FP32, DataType.FP64, DataType.INT64, DataType.UINT64):
        check(body_of(json.dumps(numbers).encode(), datatype.name, f"[{len(numbers)}]"))


@pytest.mark.parametrize(
    "text", [bytes(1 << 18), b"{" + b"x" * (1 << 18), b'{"inputs":[],"id":3,"x":"' + b"y" * (1 << 18)]
)
def test_what_is_wrong_at_its_start_is_refused_without_a_look_at_the_rest(text: bytes) -> None:
    """As a compressed body of zeros."""
    checked(text)


def test_lengths_that_were_laid_out_here_are_not_checked_again() -> None:
    text = body_of(b'["a","bc","def","g","h"]', "BYTES", "[5]")
    decoded = finished(decode_long_request(text, None, model_name="m", model_version=1, max_input_size=LIMIT))
    assert decoded is not None
    assert type(decoded.request.inputs[0]) is LaidOutTensor


@pytest.mark.parametrize("is_beside", [True, False])
def test_many_values_beside_arrays_are_refused_before_they_are_read(is_beside: bool) -> None:
    """Whatever they are, they would be made in one go."""
    lists = b"[]," * (1 << 20) + b"1]"
    data = b'"data": [1, 2, 3, 4, 5, 6]' if is_beside else b'"data": 1'
    body = b'{"inputs": [{"name": "a", "datatype": "FP32", "shape": [6], %b}], "parameters": {"a": [%b}}' % (
        data,
        lists,
    )
    with pytest.raises(BodyTooLarge, match="more than 1048576 values beside its long 'data' arrays"):
        finished(decode_long_request(body, None, model_name="m", model_version=1, max_input_size=LIMIT))


@pytest.mark.parametrize("between", [b"", b" ", b",,", b"\n1,"])
def test_long_texts_without_one_comma_between_them(between: bytes) -> None:
    text = b'"%b"' % (b"A" * 600)
    body = body_of(b"[" + text + between + text + b"]", "BYTES", "[2]")
    assert whole(body)[0] is InvalidArgument
    check(body)
