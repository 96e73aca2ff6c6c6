"""A request that matches a template decodes as by the parser, and one that differs in anything is parsed."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import service_pb2

from protocol.errors import InvalidArgument
from protocol.grpc.codec import request_templates
from protocol.grpc.codec.infer import DecodedRequest, decode_request, parse_request
from protocol.grpc.codec.request_templates import MatchedRequest, RequestTemplates


def request_of(data: bytes = bytes(8), request_id: str = "", **fields: Any) -> Any:
    request = service_pb2.ModelInferRequest(**{"model_name": "m", "id": request_id, **fields})
    request.inputs.add(name="x", datatype="FP32", shape=[1, len(data) // 4])
    request.inputs.add(name="y", datatype="BOOL", shape=[2])
    request.outputs.add(name="a")
    request.parameters["mine"].string_param = "value"
    request.raw_input_contents.extend([data, b"\0\1"])
    return request


def read(templates: RequestTemplates, data: bytes) -> tuple[DecodedRequest, bool]:
    """The request, and whether its template was known."""
    found = templates.read(data)
    return templates.decode(found, data), isinstance(found, MatchedRequest)


def said(decoded: DecodedRequest) -> Any:
    request = decoded.request
    tensors = [(tensor.name, tensor.datatype, tensor.shape, bytes(tensor.data)) for tensor in request.inputs]
    others = [getattr(request, name) for name in request.__struct_fields__ if name not in ("inputs", "template")]
    return tensors, others, decoded.placement, decoded.wants_empty_final


def usual(data: bytes) -> Any:
    return said(decode_request(parse_request(data)))


def test_only_data_and_id_may_differ() -> None:
    templates = RequestTemplates()
    first = request_of(bytes(8), "1").SerializeToString()
    assert not read(templates, first)[1]
    for data, request_id in ((b"12345678", "1"), (b"abcdefgh", "a longer one"), (bytes(8), "ü")):
        sent = request_of(data, request_id).SerializeToString()
        decoded, is_known = read(templates, sent)
        assert is_known
        assert said(decoded) == usual(sent)


@pytest.mark.parametrize(
    "other",
    [
        request_of(bytes(8), "1", model_version="3"),
        request_of(bytes(8), ""),
        request_of(bytes(8), "x" * 200),
        request_of(bytes(12), "1"),
        request_of(bytes(8), "1", model_name="n"),
    ],
)
def test_anything_else_is_another_form(other: Any) -> None:
    templates = RequestTemplates()
    read(templates, request_of(bytes(8), "1").SerializeToString())
    sent = other.SerializeToString()
    decoded, is_known = read(templates, sent)
    assert not is_known
    assert said(decoded) == usual(sent)


def test_what_each_request_is_given_is_its_own() -> None:
    templates = RequestTemplates()
    sent = request_of().SerializeToString()
    read(templates, sent)
    decoded, _ = read(templates, sent)
    decoded.request.parameters["more"] = 1
    decoded.request.inputs.clear()
    again, is_known = read(templates, sent)
    assert is_known
    assert said(again) == usual(sent)


@pytest.mark.parametrize("sizes", [(0,), (0, 8), (8, 0), (0, 0), (8, 0, 4)])
def test_tensors_without_elements_have_no_data(sizes: tuple[int, ...]) -> None:
    templates = RequestTemplates()
    for request_id in ("1", "another"):
        request = service_pb2.ModelInferRequest(model_name="m", id=request_id)
        for place, size in enumerate(sizes):
            request.inputs.add(name=f"x{place}", datatype="UINT8", shape=[size])
            request.raw_input_contents.append(bytes(range(size)))
        sent = request.SerializeToString()
        decoded, is_known = read(templates, sent)
        assert is_known == (request_id != "1")
        assert said(decoded) == usual(sent)


def test_an_id_that_is_no_text_is_refused_as_always() -> None:
    templates = RequestTemplates()
    sent = request_of(request_id="abc").SerializeToString()
    read(templates, sent)
    with pytest.raises(InvalidArgument):
        templates.read(sent.replace(b"abc", b"\xff\xff\xff"))


def test_requests_that_are_wrong_are_no_form() -> None:
    templates = RequestTemplates()
    sent = request_of(bytes(8)).SerializeToString().replace(b"FP32", b"FP31")
    for _ in range(2):
        with pytest.raises(InvalidArgument):
            read(templates, sent)


def test_shared_memory_inputs_have_no_data() -> None:
    templates = RequestTemplates()
    request = request_of(request_id="1")
    for name, value in (("shared_memory_region", "r"), ("shared_memory_byte_size", 8)):
        parameter = request.inputs[0].parameters[name]
        if isinstance(value, str):
            parameter.string_param = value
        else:
            parameter.int64_param = value
    del request.raw_input_contents[0]
    sent = request.SerializeToString()
    read(templates, sent)
    decoded, is_known = read(templates, sent)
    assert is_known
    assert said(decoded) == usual(sent)


def test_typed_contents_are_no_form() -> None:
    """They are data, and not where a template expects it."""
    templates = RequestTemplates()
    request = service_pb2.ModelInferRequest(model_name="m")
    request.inputs.add(name="x", datatype="INT32", shape=[2]).contents.int_contents.extend([1, 2])
    sent = request.SerializeToString()
    read(templates, sent)
    decoded, is_known = read(templates, sent)
    assert not is_known
    assert said(decoded) == usual(sent)


def test_large_data_stays_a_view() -> None:
    templates = RequestTemplates()
    sent = request_of(bytes(400_000)).SerializeToString()
    for _ in range(2):
        found = templates.read(memoryview(sent))
        decoded = templates.decode(found, memoryview(sent))
        data = decoded.request.inputs[0].data
        assert isinstance(data, memoryview)
        assert data.obj is sent


@pytest.mark.slow
def test_what_is_kept_is_bounded() -> None:
    templates = RequestTemplates()
    for model in range(200):
        for shape in range(20):
            read(templates, request_of(bytes(4 * shape + 4), model_name=f"m{model}").SerializeToString())
    kept = [len(known.templates) for known in templates._by_model.values()]
    assert max(kept) <= request_templates._MAX_TEMPLATES_PER_MODEL
    assert sum(kept) <= request_templates._MAX_TEMPLATES


def test_requests_that_never_come_twice_are_hardly_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    templates = RequestTemplates()
    learned = 0
    original = request_templates._template_of

    def counting(*args: Any) -> Any:
        nonlocal learned
        learned += 1
        return original(*args)

    monkeypatch.setattr(request_templates, "_template_of", counting)
    for number in range(1000):
        read(templates, request_of(model_version=str(number)).SerializeToString())
    assert learned < 40
    sent = request_of(request_id="5").SerializeToString()
    for _ in range(100):
        read(templates, sent)
    assert read(templates, sent)[1]


BASE = request_of(b"12345678", "77").SerializeToString()


@pytest.mark.slow
@given(
    st.lists(
        st.one_of(
            st.tuples(st.integers(0, len(BASE) - 1), st.integers(0, 255)).map(
                lambda at: BASE[: at[0]] + bytes([at[1]]) + BASE[at[0] + 1 :]
            ),
            st.builds(
                lambda data, request_id: request_of(data, request_id).SerializeToString(),
                st.binary(min_size=8, max_size=8),
                st.text(max_size=5),
            ),
            st.integers(0, len(BASE)).map(lambda end: BASE[:end]),
            st.binary(max_size=20).map(lambda more: BASE + more),
        ),
        max_size=20,
    )
)
def test_whatever_comes_means_what_it_means_by_the_usual_way(sent: list[bytes]) -> None:
    """Requests with a byte changed, cut off or with more behind them, among good ones."""
    templates = RequestTemplates()
    read(templates, BASE)
    for data in sent:
        assert outcome(lambda data=data: said(read(templates, data)[0])) == outcome(lambda data=data: usual(data))


def outcome(ask: Any) -> Any:
    try:
        return ask()
    except InvalidArgument as error:
        return str(error)
