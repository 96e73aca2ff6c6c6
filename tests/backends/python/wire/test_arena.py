"""Which segment a batch uses, and when one is made anew."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator

import pytest

from backends.python.settings import PythonSettings
from backends.python.wire.arena import Arena, Segment
from backends.python.worker.trioton_worker.frames import INPUT_SLOTS, OUTPUT_SLOTS

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
    assert not arena.take_unsent()
    assert [size_for(arena, size) for size in (100_000, MIB, MIB + 1, MIB, 5 * MIB)] == [
        MIB,
        MIB,
        2 * MIB,
        2 * MIB,
        5 * MIB,
    ]
    assert size_for(arena, 8 * MIB + 1) is None
    assert size_for(arena, 6 * MIB) == 8 * MIB


def slots(segments: list[Segment]) -> list[int]:
    return [segment.slot for segment in segments]


def test_a_segment_is_told_once(arena: Arena) -> None:
    arena.input_segment(MIB)
    assert slots(arena.take_unsent()) == [INPUT_SLOTS[0]]
    assert not arena.take_unsent()
    arena.note_wanted(3 * MIB)
    arena.output_segment()
    assert arena.has_unsent
    assert slots(arena.take_unsent()) == [OUTPUT_SLOTS[0]]
    arena.input_segment(2 * MIB)
    assert slots(arena.take_unsent()) == [INPUT_SLOTS[0]]
    assert not arena.has_unsent


def test_kept_inputs_are_never_written_over(arena: Arena) -> None:
    first = arena.input_segment(MIB)
    assert first is not None
    assert arena.input_segment(MIB) is first
    arena.inputs.drop(first)
    assert arena.input_segment(MIB) is not first


def test_outputs_get_what_they_wanted(arena: Arena) -> None:
    """But for what is small enough to cross in a frame, or too large."""
    for wanted, expected in ((0, None), (1000, None), (9 * MIB, None), (3 * MIB, 3 * MIB), (MIB, 3 * MIB)):
        arena.note_wanted(wanted)
        segment = arena.output_segment()
        assert (None if segment is None else segment.size) == expected


def test_a_batch_gets_no_segment_that_is_still_read(arena: Arena) -> None:
    """Two in turns, as long as the other one is free: what would need a third is not lent."""
    first = arena.input_segment(MIB)
    assert first is not None
    held = [arena.inputs.show(first).view[5:6], arena.inputs.show(first).view[:0]]
    second = arena.input_segment(MIB)
    assert second is not None
    assert second is not first
    assert not arena.inputs.show(second).is_lent
    assert arena.input_segment(MIB) is second
    held.pop()
    assert first.is_lent
    held.pop()
    assert not first.is_lent
    shown = arena.inputs.show(second)
    assert shown.is_lent
    assert shown.view.readonly
    assert arena.input_segment(MIB) is first


def test_what_is_lent_outlives_its_segment(arena: Arena) -> None:
    """The model keeps inputs, or more room is needed."""
    segment = arena.input_segment(MIB)
    assert segment is not None
    segment.view[:3] = b"abc"
    shown = arena.inputs.show(segment)
    arena.close()
    assert bytes(shown.view[:3]) == b"abc"


def test_both_segments_of_a_direction_keep_to_the_limit(arena: Arena) -> None:
    first = arena.input_segment(5 * MIB)
    assert first is not None
    assert not arena.inputs.show(first).is_lent, "there is no room for another one of its size"
    arena.inputs.drop(first)
    small = arena.input_segment(2 * MIB)
    assert small is not None
    held = arena.inputs.show(small)
    assert held.is_lent
    assert size_for(arena, 7 * MIB) is None
    assert size_for(arena, 5 * MIB) == 5 * MIB
    assert small.is_lent


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
    missing.note_wanted(MIB)
    assert missing.output_segment() is None
    for arena in (inline, refused, missing):
        arena.close()
