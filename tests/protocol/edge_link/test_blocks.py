"""The allocator of shared memory: blocks never overlap, and all of it can be had again."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.edge_link.blocks import PAGE, Blocks

SIZE = 64 * PAGE


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 2**17)), max_size=80))
def test_blocks_do_not_overlap_and_join_again(steps: list[tuple[bool, int]]) -> None:
    blocks = Blocks(SIZE)
    taken: dict[int, int] = {}
    for takes, number in steps:
        if takes:
            place = blocks.take(number)
            if place is not None:
                end = place + max(number, 1)
                assert place % PAGE == 0
                assert end <= SIZE
                assert all(end <= other or place >= other + size for other, size in taken.items())
                taken[place] = -(-max(number, 1) // PAGE) * PAGE
        elif taken:
            place = sorted(taken)[number % len(taken)]
            assert blocks.give(place)
            del taken[place]
        assert blocks.taken_bytes == sum(taken.values())
        assert max((place + size for place, size in taken.items()), default=0) <= blocks.touched <= SIZE
    for place in taken:
        blocks.give(place)
    assert blocks.is_unused
    assert blocks.take(SIZE) == 0


def test_what_is_not_taken_cannot_be_given() -> None:
    blocks = Blocks(SIZE)
    assert blocks.take(10) == 0
    assert not blocks.give(PAGE)
    assert blocks.give(0)
    assert not blocks.give(0)


@pytest.mark.parametrize("size", [SIZE + 1, 2**40])
def test_there_is_no_room_for_more_than_all(size: int) -> None:
    assert Blocks(SIZE).take(size) is None
    assert Blocks(0).take(1) is None
