"""How many requests of jobs go along with live ones, by what that has cost them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from actors.jobs.pace import ROW_SECONDS, SHARE
from actors.jobs.riding import PART, Riding


def rounds(seconds: Callable[[int], float], count: int = 200, *, riding: Riding | None = None) -> list[int]:
    """How many went with each round, where one with so many takes so long. Where none may go, some do at last."""
    riding = riding or Riding()
    went: list[int] = []
    for _ in range(count):
        most = riding.most()
        went.append(most)
        most = most or riding.most_at_last()
        riding.ended(most, seconds(most))
    return went


def test_a_model_that_takes_as_long_for_a_full_batch_takes_as_many_along_as_the_server_can() -> None:
    went = rounds(lambda _: 0.02)
    assert max(went) == int(SHARE * 0.02 / ROW_SECONDS)
    assert sorted(went)[100] == max(went)


def test_a_model_that_takes_as_long_for_each_takes_none_along() -> None:
    went = rounds(lambda count: 0.01 * (1 + count))
    assert went[:2] == [1, 2]
    assert set(went[3:]) == {0}


def test_what_goes_along_adds_a_part_at_most() -> None:
    """A full batch of 8 takes this model half as long again."""
    went = rounds(lambda count: 0.1 * (1 + count / 14))
    assert max(went[3:]) == int(PART * 14)
    assert min(went) == 1


@pytest.mark.parametrize("seconds", [0.0001, 0.0005])
def test_a_quick_model_takes_one_along(seconds: float) -> None:
    went = rounds(lambda count: seconds + 0.00015 * count)
    assert sum(went[2:]) < 1.1 * len(went)
    assert set(went) == {1, 2}


def test_it_is_seen_when_the_model_has_become_slower_and_when_it_is_quick_again() -> None:
    riding = Riding()
    rounds(lambda _: 0.02, riding=riding)
    assert riding.most()
    assert 0 in rounds(lambda count: 0.01 * (1 + count), riding=riding)
    assert rounds(lambda _: 0.02, riding=riding)[-1] > 1
