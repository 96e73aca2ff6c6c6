"""Queries to mappings, and those that are too much."""

from __future__ import annotations

import pytest

from protocol.errors import InvalidArgument
from protocol.http.codec.query import read_query


def test_the_first_value_of_each_field() -> None:
    assert read_query(b"a=%20x&b=&a=2&c&%ff=\xe9") == {"a": " x", "b": "", "c": "", "\ufffd": "é"}
    assert read_query(b"") == {}


def test_too_many_fields() -> None:
    with pytest.raises(InvalidArgument, match="more than 20 fields"):
        read_query(b"a=1&" * 30)
