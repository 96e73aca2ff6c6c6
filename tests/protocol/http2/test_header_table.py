"""The small table of headers: that it is as hpack's own."""

from __future__ import annotations

import sys

from hpack.table import HeaderTable
from hypothesis import given
from hypothesis import strategies as st

from protocol.http2.header_table import SmallHeaderTable

WORDS = st.sampled_from([b"", b"a", b"te", b"user-agent", b"x" * 100, b"y" * 5000])
STEPS = st.lists(st.one_of(st.tuples(WORDS, WORDS), st.sampled_from([0, 50, 200, 4096])), max_size=60)


@given(STEPS)
def test_it_does_what_hpacks_table_does(steps: list[tuple[bytes, bytes] | int]) -> None:
    tables = HeaderTable(), SmallHeaderTable()
    for step in steps:
        for table in tables:
            if isinstance(step, int):
                table.maxsize = step
            else:
                table.add(*step)
        theirs, ours = tables
        assert list(ours.dynamic_entries) == list(theirs.dynamic_entries)
        for name in (b"a", b"te", b"user-agent"):
            assert ours.search(name, b"a") == theirs.search(name, b"a")


def test_an_empty_one_holds_nothing() -> None:
    assert sys.getsizeof(SmallHeaderTable().dynamic_entries) < 100 < sys.getsizeof(HeaderTable().dynamic_entries)
