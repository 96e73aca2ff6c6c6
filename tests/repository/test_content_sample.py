"""Which changes of a model's contents a sample sees where sizes and times are the same."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from repository.content_sample import content_sample
from repository.fingerprint import fingerprint
from repository.layout import ModelDirectory

LARGE = 5_000_011


def sample(folder: Path, contents: bytes | bytearray) -> bytes:
    """Of a model that consists of one file, with the time of change that all have."""
    file = folder / "m" / "1" / "model.onnx"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(contents)
    os.utime(file, ns=(0, 0))
    model = ModelDirectory("m", folder / "m", folder)
    return content_sample(model, fingerprint(model))


@pytest.mark.parametrize("size", [1, 16 * 1024, 16 * 1024 + 1, 1 << 20, (1 << 20) + 1, LARGE])
@pytest.mark.parametrize("place", [0.0, 1.0])
def test_both_ends_of_a_file_count(tmp_path: Path, size: int, place: float) -> None:
    before = bytearray(random.Random(size).randbytes(size))
    after = bytearray(before)
    after[int(place * (size - 1))] ^= 1
    assert sample(tmp_path, before) == sample(tmp_path, bytes(before))
    assert sample(tmp_path, before) != sample(tmp_path, after)


@pytest.mark.parametrize("place", range(0, 1 << 20, 99_991))
def test_a_small_file_counts_whole(tmp_path: Path, place: int) -> None:
    contents = bytearray(1 << 20)
    before = sample(tmp_path, contents)
    contents[place] = 1
    assert sample(tmp_path, contents) != before


@pytest.mark.parametrize("seed", range(5))
def test_a_change_of_a_part_of_a_large_file_is_seen(tmp_path: Path, seed: int) -> None:
    """A tenth of it, anywhere."""
    rng = random.Random(seed)
    contents = bytearray(rng.randbytes(LARGE))
    before = sample(tmp_path, contents)
    start = rng.randrange(LARGE * 9 // 10)
    contents[start : start + LARGE // 10] = rng.randbytes(LARGE // 10)
    assert sample(tmp_path, contents) != before


def test_what_cannot_be_read_is_left_out(tmp_path: Path) -> None:
    model = ModelDirectory("m", tmp_path / "m", tmp_path)
    (tmp_path / "m" / "1").mkdir(parents=True)
    os.mkfifo(tmp_path / "m" / "1" / "pipe")  # nobody writes
    files = fingerprint(model)
    assert [name for name, _, _ in files] == ["1/pipe"]
    assert content_sample(model, files) == content_sample(model, (("gone", 0, 5),))
