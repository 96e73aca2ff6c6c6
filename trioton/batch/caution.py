"""Caution: how few rows are run at a time after the process has died in the middle of them. Pure.

A row can crash the process of the model, or this one. In which row that was nobody can say afterwards, only which rows
had begun. So after some crashes these run in small blocks, each written before the next one begins, and at last one by
one; a row that is alone in a crash again and again is to blame. Whoever kills this process crashes it, too: therefore
one crash changes nothing, and rows that get on are never to blame.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

# How many rows run at a time after so many crashes in a row, and after more.
_BLOCKS = {2: 16}
_ALONE = 1
# So often one row alone was there when the process died.
MOST_CRASHES_ALONE = 3


@dataclass(frozen=True, slots=True)
class Caution:
    """What is known of crashes.

    Attributes:
        begun: rows before this one may have begun when the state was written.
        crashes: how often the process has died since it was past `until`.
        until: the end of the rows that may have been to blame.
        crashes_alone: how often it has died while the first row that was not written ran alone.
    """

    begun: int = 0
    crashes: int = 0
    until: int = 0
    crashes_alone: int = 0

    @property
    def block(self) -> int | None:
        """So many rows at a time; None for as many as one likes."""
        return None if self.crashes < min(_BLOCKS) else _BLOCKS.get(self.crashes, _ALONE)

    @property
    def blames_the_next(self) -> bool:
        """Whether the first row that is not written is to blame."""
        return self.crashes_alone >= MOST_CRASHES_ALONE

    def after_crash(self, next_row: int) -> Caution:
        """The process has died, with everything before `next_row` written."""
        was_alone = self.block == _ALONE and self.begun == next_row + 1
        return replace(
            self,
            crashes=self.crashes + 1,
            until=max(self.until, self.begun),
            crashes_alone=self.crashes_alone + 1 if was_alone else 0,
        )

    def past(self, next_row: int) -> Caution:
        """Everything before `next_row` has been written."""
        if next_row >= self.until:
            return Caution(begun=self.begun)
        return replace(self, crashes_alone=0)

    def beginning(self, end: int) -> Caution:
        """Rows before `end` may begin."""
        return replace(self, begun=max(end, self.begun) if self.block is None else end)
