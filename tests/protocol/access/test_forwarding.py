"""Headers that become parameters of an inference request."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from protocol.access.forwarding import MAX_NAME_LENGTH, MAX_REMEMBERED_NAMES, HeaderForwarding, put_over
from protocol.errors import InvalidArgument
from protocol.messages import ParameterValue

RESERVED = ["sequence_id", "sequence_start", "sequence_end", "priority", "timeout", "headers", "binary_data_output"]
RESERVED += ["triton_x", "triton_"]


def test_an_empty_pattern_forwards_nothing() -> None:
    forwarding = HeaderForwarding()
    assert forwarding.is_empty
    assert forwarding.parameters([("priority", "1"), ("x-a", "b")]) == {}


@pytest.mark.parametrize(
    ("pattern", "name", "is_forwarded"),
    [
        ("x-user", "x-user", True),
        ("x-user", "my-x-user-id", True),
        ("^x-user$", "my-x-user-id", False),
        ("X-USER", "x-user", True),
        ("x-user", "X-User", True),
        ("(?-i)X-USER", "x-user", False),
        ("(?-i)X-USER", "X-USER", True),
        ("(?-i)x-user", "x-user", True),
        ("(x-a|x-b)-.*", "x-b-c", True),
        ("(x-a|x-b)-.*", "x-b", False),
        (r"\Ax-[[:alpha:]]+\z", "x-abc", True),
        (r"\Ax-[[:alpha:]]+\z", "x-abc1", False),
        (".*", ":path", False),
        (".*", "x" * MAX_NAME_LENGTH, True),
        (".*", "x" * (MAX_NAME_LENGTH + 1), False),
        (".*", "x-ä", False),
        (".*", "x-\udc80", False),
    ],
)
def test_which_names_match(pattern: str, name: str, is_forwarded: bool) -> None:
    forwarding = HeaderForwarding(pattern)
    assert not forwarding.is_empty
    expected = {name: "value"} if is_forwarded else {}
    for _ in range(2):  # the second answer comes from memory
        assert forwarding.parameters([(name, "value")]) == expected


def test_values_keep_their_text_and_repeated_names_are_joined() -> None:
    headers = [("x-a", '1 "\\'), ("content-type", "text/plain"), ("x-b", ""), ("x-a", "2")]
    assert HeaderForwarding("^x-").parameters(headers) == {"x-a": '1 "\\, 2', "x-b": ""}


def test_what_a_header_says_cannot_be_forged_in_another_letter_case() -> None:
    parameters: dict[str, ParameterValue] = {"x-user": "forged", "X-USER": "forged", "X-User": 1, "mine": 2}
    put_over(parameters, {"X-User": "real"})
    assert parameters == {"X-User": "real", "mine": 2}


@pytest.mark.parametrize("name", [*RESERVED, "Priority", "TRITON_X"])
def test_a_reserved_name_that_matches_is_refused(name: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        HeaderForwarding(".*").parameters([("x-a", "1"), (name, "1")])
    assert caught.value.message == f"Header '{name}' is reserved for Triton usage and cannot be forwarded."


@pytest.mark.parametrize("name", RESERVED)
def test_a_reserved_name_that_does_not_match_is_no_mistake(name: str) -> None:
    assert HeaderForwarding("^x-").parameters([(name, "1")]) == {}


@pytest.mark.parametrize(
    ("pattern", "problem"),
    [
        ("(", "missing ): ("),
        ("x-[", "missing ]: ["),
        ("*", "no argument for repetition operator: *"),
        ("(?=x)", "invalid perl operator: (?="),
        (r"(x)\1", r"invalid escape sequence: \1"),
        ("x{9999}", "invalid repetition size: {9999}"),
        ("x\udc80", "invalid UTF-8"),
    ],
)
def test_an_invalid_pattern_is_refused_at_start(pattern: str, problem: str) -> None:
    with pytest.raises(ValueError, match="header pattern") as caught:
        HeaderForwarding(pattern)
    assert str(caught.value) == f"invalid header pattern: {problem}"


def test_its_engine_comes_with_the_server() -> None:
    """Forwarding needs no extra."""
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    assert [need for need in project["dependencies"] if need.startswith("google-re2")]
    assert "forwarding" not in project["optional-dependencies"]


@pytest.mark.parametrize("pattern", ["^(a+)+$", "^(a|a)*$", "^(.*)*(.*)*(.*)*!$"])
def test_patterns_that_explode_elsewhere_end(pattern: str) -> None:
    """A backtracking engine would take longer than anyone waits."""
    assert HeaderForwarding(pattern).parameters([("a" * (MAX_NAME_LENGTH - 1) + "-", "1")]) == {}


def test_many_different_names_take_bounded_memory_and_stay_right() -> None:
    forwarding = HeaderForwarding("[02468]$")
    names = [f"x-{i}" for i in range(2 * MAX_REMEMBERED_NAMES)]
    forwarded = forwarding.parameters([(name, "1") for name in names])
    assert list(forwarded) == names[::2]
    assert len(forwarding._decisions) == MAX_REMEMBERED_NAMES


@settings(deadline=None)
@given(pattern=st.text() | st.text("(?-i)[]{}*+|^$\\.ax1,"), name=st.text())
def test_any_pattern_matches_or_raises_value_error(pattern: str, name: str) -> None:
    try:
        forwarding = HeaderForwarding(pattern)
    except ValueError:
        return
    try:
        forwarded = forwarding.parameters([(name, "value")])
    except InvalidArgument:
        assert name.lower().startswith("triton_") or name.lower() in RESERVED
    else:
        assert forwarded in ({}, {name: "value"})
