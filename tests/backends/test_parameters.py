"""The strings of `parameters` as booleans and integers."""

from __future__ import annotations

import pytest

from backends.parameters import parse_bool, parse_int
from protocol.errors import InvalidArgument


@pytest.mark.parametrize("text", ["true", "TRUE", "on", "On", "1"])
def test_true(text: str) -> None:
    assert parse_bool(text, place="p") is True


@pytest.mark.parametrize("text", ["false", "False", "off", "0"])
def test_false(text: str) -> None:
    assert parse_bool(text, place="p") is False


@pytest.mark.parametrize("text", ["", "yes", "2", " true"])
def test_other_text_is_no_boolean(text: str) -> None:
    with pytest.raises(InvalidArgument, match=f"model 'm': failed to convert '{text}' to boolean"):
        parse_bool(text, place="model 'm'")


@pytest.mark.parametrize(("text", "value"), [("4", 4), ("-1", -1), (" +7", 7), ("3.9", 3), ("12abc", 12)])
def test_leading_digits_are_an_integer(text: str, value: int) -> None:
    assert parse_int(text, place="p") == value


@pytest.mark.parametrize("text", ["", "abc", "x1", "-"])
def test_other_text_is_no_integer(text: str) -> None:
    with pytest.raises(InvalidArgument, match=f"model 'm': failed to convert '{text}' to integral number"):
        parse_int(text, place="model 'm'")
