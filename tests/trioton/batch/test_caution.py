"""Which rows are to blame for a process that dies: simulated, with the state that the run keeps."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from trioton.batch.caution import MOST_CRASHES_ALONE, Caution


@dataclass
class Simulated:
    """A run by the rules of `trioton.batch.run`: what is written, what may begin, and what a kill leaves of it."""

    rows: int
    poison: frozenset[int] = frozenset()
    done: int = 0
    blamed: list[int] = field(default_factory=list)
    caution: Caution = field(default_factory=Caution)
    starts: int = 0

    def start(self, kill_after: int | None = None) -> bool:
        """Runs until it dies, is killed after so many rows, or is complete; returns whether it is."""
        self.starts += 1
        ran = 0
        if self.caution.blames_the_next:
            self.blamed.append(self.done)
            self._written(1)
        while self.done < self.rows:
            block = self.caution.block
            size = min(block or 50, self.rows - self.done)
            self.caution = self.caution.beginning(self.done + (block or 100))
            for row in range(self.done, self.done + size):
                if row in self.poison or ran == kill_after:
                    self.caution = self.caution.after_crash(self.done)
                    return False
                ran += 1
            self._written(size)
        return True

    def _written(self, count: int) -> None:
        self.done += count
        self.caution = self.caution.past(self.done)


@given(st.frozensets(st.integers(0, 299), max_size=3))
def test_exactly_the_rows_that_kill_are_to_blame(poison: frozenset[int]) -> None:
    run = Simulated(300, poison)
    while not run.start():
        assert run.starts < 12 * (len(poison) + 1)
    assert run.blamed == sorted(poison)


@given(st.lists(st.integers(1, 40), max_size=40))
def test_kills_never_blame_a_row_while_rows_get_on(kills: list[int]) -> None:
    run = Simulated(300)
    for kill_after in kills:
        if run.start(kill_after):
            break
    run.start()
    assert (run.done, run.blamed) == (300, [])


def test_one_crash_changes_nothing() -> None:
    assert Caution().beginning(1000).after_crash(10).block is None


def test_a_row_that_is_blamed_has_been_alone_so_often() -> None:
    run = Simulated(300, frozenset({70}))
    alone = 0
    while not run.start():
        alone = max(alone, run.caution.crashes_alone)
    assert alone == MOST_CRASHES_ALONE
