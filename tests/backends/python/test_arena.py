"""Which segment a batch uses, and when one is made anew."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator

import pytest

from backends.python.arena import Arena
from backends.python.settings import PythonSettings

MIB = 1 << 20


@pytest.fixture
def arena() -> Iterator[Arena]:
    made = Arena(PythonSettings(shm_limit_byte_size=8 * MIB))
    yield made
    made.close()


def size_for(arena: Arena, size: int) -> int | None:
    segment = arena.input_segment(size)
    return None if segment is None else segment.size


def test_segments_grow_within_their_limit(arena: Arena) -> None:
    """Small batches and those over the limit use none; growth at least doubles, in multiples of the growth size."""
    assert size_for(arena, 100) is None
    assert arena.inputs is None
    assert [size_for(arena, size) for size in (100_000, MIB, MIB + 1, MIB, 5 * MIB)] == [
        MIB,
        MIB,
        2 * MIB,
        2 * MIB,
        5 * MIB,
    ]
    assert size_for(arena, 8 * MIB + 1) is None
    assert size_for(arena, 6 * MIB) == 8 * MIB


def test_a_segment_is_told_once(arena: Arena) -> None:
    arena.input_segment(MIB)
    assert list(arena.take_unsent()) == ["inputs"]
    assert not arena.take_unsent()
    arena.note_answer(kept=False, wanted=3 * MIB)
    assert list(arena.take_unsent()) == ["outputs"]
    arena.input_segment(2 * MIB)
    assert list(arena.take_unsent()) == ["inputs"]


def test_kept_inputs_are_never_written_over(arena: Arena) -> None:
    first = arena.input_segment(MIB)
    arena.note_answer(kept=False, wanted=0)
    assert arena.input_segment(MIB) is first
    arena.note_answer(kept=True, wanted=0)
    assert arena.input_segment(MIB) is not first


def test_outputs_get_what_they_wanted(arena: Arena) -> None:
    """But for what is small enough to cross in a frame, or too large."""
    for wanted, expected in ((0, None), (1000, None), (9 * MIB, None), (3 * MIB, 3 * MIB), (MIB, 3 * MIB)):
        arena.note_answer(kept=False, wanted=wanted)
        assert (arena.outputs.size if arena.outputs is not None else None) == expected


def test_a_segment_cannot_be_made_smaller_by_the_other_side(arena: Arena) -> None:
    segment = arena.input_segment(MIB)
    assert segment is not None
    with pytest.raises(PermissionError):
        os.ftruncate(segment.descriptor, 0)
    with pytest.raises(PermissionError):
        fcntl.fcntl(segment.descriptor, fcntl.F_ADD_SEALS, 0)
    assert bytes(segment.view[-4:]) == bytes(4)


def test_without_shared_memory_everything_crosses_in_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    """Switched off, not there, or refused by the system."""

    def refuse(*_: object) -> int:
        raise OSError(24, "Too many open files")

    inline = Arena(PythonSettings(is_inline=True))
    assert not inline.is_usable
    assert inline.input_segment(MIB) is None
    refused = Arena(PythonSettings())
    with monkeypatch.context() as context:
        context.setattr(os, "memfd_create", refuse)
        assert refused.input_segment(MIB) is None
        assert not refused.is_usable
        context.delattr(os, "memfd_create")
        missing = Arena(PythonSettings())
        assert not missing.is_usable
    missing.note_answer(kept=True, wanted=MIB)
    assert missing.outputs is None
    for arena in (inline, refused, missing):
        arena.close()
