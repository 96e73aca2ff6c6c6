"""Triton's flags for restricted APIs: parsing, and the check before each call."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.access.categories import RESTRICTABLE, Category
from protocol.access.restricted import GRPC_PROTOCOL, HTTP_API, Dialect, RestrictedApis, Restriction
from protocol.errors import Forbidden, Restricted

DIALECTS = pytest.mark.parametrize("dialect", [HTTP_API, GRPC_PROTOCOL], ids=["http", "grpc"])
TOKEN = st.text("!#$%&'*+-.^_`|~abcXYZ019", min_size=1)
VALUE = st.from_regex(r"[!-~]([ -~]*[!-~])?", fullmatch=True)


def is_refused(apis: RestrictedApis, category: Category, headers: Mapping[str, str]) -> bool:
    try:
        apis.check(category, headers.get)
    except Restricted:
        return True
    return False


def test_without_flags_every_call_passes() -> None:
    apis = RestrictedApis()
    assert apis.is_open
    assert not any(is_refused(apis, category, {}) for category in Category)


def test_http_refusal_has_tritons_text() -> None:
    apis = RestrictedApis.parse(["inference,health:Admin-Key=s3cret"], HTTP_API)
    assert not apis.is_open
    with pytest.raises(Restricted) as caught:
        apis.check(Category.HEALTH, lambda name: None)
    assert caught.value.message == "This API is restricted, expecting header 'Admin-Key'"
    assert isinstance(caught.value, Forbidden), "HTTP answers 403 by the base class"


def test_grpc_refusal_has_tritons_text() -> None:
    apis = RestrictedApis.parse(["model-repository:admin=s3cret"], GRPC_PROTOCOL)
    with pytest.raises(Restricted) as caught:
        apis.check(Category.MODEL_REPOSITORY, {"admin": "s3cret"}.get)
    assert caught.value.message == "This protocol is restricted, expecting header 'triton-grpc-protocol-admin'"
    assert not is_refused(apis, Category.MODEL_REPOSITORY, {"triton-grpc-protocol-admin": "s3cret"})


@pytest.mark.parametrize(
    ("given_value", "refused"),
    [
        ("a=b:c,d", False),
        (None, True),
        ("", True),
        ("a=b:c,D", True),
        ("a=b:c,d ", True),
        ("a=b:c,", True),
        ("a=b:c,d\udc80", True),
        ("ä", True),
    ],
)
def test_the_value_is_all_after_the_first_equals_sign_and_compared_exactly(
    given_value: str | None, refused: bool
) -> None:
    apis = RestrictedApis.parse(["trace:X-Key=a=b:c,d"], HTTP_API)
    headers = {} if given_value is None else {"x-key": given_value}
    assert is_refused(apis, Category.TRACE, headers) is refused


def test_each_group_has_its_own_header_and_the_others_stay_open() -> None:
    apis = RestrictedApis.parse(["inference:a=1", "shared-memory,logging:b=2"], HTTP_API)
    assert not is_refused(apis, Category.INFERENCE, {"a": "1"})
    assert is_refused(apis, Category.LOGGING, {"a": "1"})
    assert not is_refused(apis, Category.LOGGING, {"b": "2"})
    assert not is_refused(apis, Category.METADATA, {})


@pytest.mark.parametrize(
    "text",
    ["", "inference", "inference:", "inference:key", "inference:key=", "inference:=value", ":key=value", "key=value"],
)
@DIALECTS
def test_another_form_is_refused_with_the_right_one(text: str, dialect: Dialect) -> None:
    expected = f"--{dialect.option} option format is '<category>[,<category>]:<header>=<value>'"
    with pytest.raises(ValueError, match="option format") as caught:
        Restriction.parse(text, dialect)
    assert str(caught.value) == expected


@pytest.mark.parametrize(
    ("dialect", "values", "text"),
    [
        (HTTP_API, ["infer:k=secret"], "unknown restricted api 'infer', expected one of health, metadata, "),
        (GRPC_PROTOCOL, ["health,x:k=secret"], "unknown restricted protocol 'x', expected one of "),
        (HTTP_API, ["health,:k=secret"], "unknown restricted api '', "),
        (HTTP_API, ["health, trace:k=secret"], "unknown restricted api ' trace', "),
        (GRPC_PROTOCOL, ["metrics:k=secret"], "unknown restricted protocol 'metrics', "),
        (
            HTTP_API,
            ["health,trace:k=secret", "health:l=secret"],
            "restricted api 'health' can not be specified in multiple config groups",
        ),
        (
            GRPC_PROTOCOL,
            ["trace,trace:k=secret"],
            "restricted protocol 'trace' can not be specified in multiple config groups",
        ),
        (HTTP_API, ["trace:my key=secret"], "'my key' is not a header's name: "),
        (HTTP_API, ["trace:k=secret "], "the value of header 'k' must be printable ASCII without spaces at its ends"),
        (HTTP_API, ["trace:k=secretä"], "the value of header 'k' must be printable ASCII"),
        (HTTP_API, ["trace:k=secret\n"], "the value of header 'k' must be printable ASCII"),
    ],
)
def test_mistakes_in_the_flags_are_named_without_the_value(dialect: Dialect, values: list[str], text: str) -> None:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 (the whole text is compared below)
        RestrictedApis.parse(values, dialect)
    assert str(caught.value).startswith(text)
    assert "secret" not in str(caught.value)


def test_the_value_is_not_in_the_representation() -> None:
    assert "s3cret" not in repr(Restriction.parse("trace:k=s3cret", HTTP_API))


@pytest.mark.slow
@DIALECTS
@settings(deadline=None)
@given(categories=st.lists(st.sampled_from(RESTRICTABLE), min_size=1, unique=True), header=TOKEN, value=VALUE)
def test_every_right_flag_restricts_what_it_names(
    dialect: Dialect, categories: list[Category], header: str, value: str
) -> None:
    """The named categories need the header in lower case with the value, all others stay open."""
    apis = RestrictedApis.parse([f"{','.join(categories)}:{header}={value}"], dialect)
    name = (dialect.header_prefix + header).lower()
    for category in Category:
        assert is_refused(apis, category, {}) is (category in categories)
        assert not is_refused(apis, category, {name: value})


@DIALECTS
@settings(deadline=None)
@given(text=st.text())
def test_any_text_parses_or_raises_value_error(dialect: Dialect, text: str) -> None:
    try:
        restriction = Restriction.parse(text, dialect)
    except ValueError:
        return
    assert set(restriction.categories) <= {each for given in dialect.words.values() for each in given}
    assert text.endswith(f"={restriction.value}")
