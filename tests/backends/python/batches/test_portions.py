"""What a worker is given at a time, by the bytes of it."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from backends.python.batches.portions import input_size, portions, too_large
from protocol.messages import InferenceRequest, Tensor


def requests(*sizes: int) -> list[InferenceRequest]:
    return [InferenceRequest("m", [Tensor.from_numpy("IN", np.zeros(size, np.uint8))]) for size in sizes]


def test_bytes_count_as_they_lie() -> None:
    assert input_size(requests(1, 64, 65, 0)) == 64 + 64 + 128


def test_a_request_that_does_not_fit_is_alone() -> None:
    assert portions(requests(64, 64, 64, 999, 64), 128) == [slice(0, 2), slice(2, 3), slice(3, 4), slice(4, 5)]
    assert portions([], 128) == []


@given(st.lists(st.integers(0, 300), max_size=12), st.integers(64, 600))
def test_portions_are_all_in_order_and_as_large_as_can_be(sizes: list[int], limit: int) -> None:
    made = requests(*sizes)
    parts = [made[part] for part in portions(made, limit)]
    assert [request for part in parts for request in part] == made
    for part in parts:
        assert len(part) == 1 or input_size(part) <= limit
    for part, following in pairwise(parts):
        assert input_size([*part, following[0]]) > limit


def test_the_error_names_model_limit_flag_and_size() -> None:
    (one,) = requests(1000)
    assert too_large("m", [one], 640).message == (
        "model 'm': the request's inputs take 1024 bytes, but at most 640 bytes may cross between server and worker at "
        "a time (--backend-config=python,shm-limit-byte-size=…)"
    )
    assert "a batch of 2 sequences take 2048 bytes" in too_large("m", [one, one], 640).message
