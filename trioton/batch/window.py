"""Window: the rows that were taken and whose results are not written yet; gives results out in the rows' order. Pure.

Rows are taken in order and end in any order. A result waits here for those of the rows before it, so the window is
bounded: by rows, and by the bytes of the results that wait. The first row always runs, so it always moves on.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from protocol.jobs.rows import ResultRow
from protocol.jobs.source import Position
from trioton.batch.openai_lines import RouteResult


@dataclass(slots=True)
class Window:
    """Of one run.

    Attributes:
        most: rows in it at most.
        most_bytes: above so many bytes of results that wait, no row is taken.
        position: behind the last row that has left.
    """

    most: int
    most_bytes: int
    position: Position = Position()  # noqa: RUF009 (frozen)
    _taken: dict[int, ResultRow | None] = field(default_factory=dict)  # in the rows' order
    _ends: dict[int, Position] = field(default_factory=dict)
    _bytes: int = 0

    def __len__(self) -> int:
        return len(self._taken)

    def has_room(self) -> bool:
        return len(self._taken) < self.most and (self._bytes < self.most_bytes or not self._taken)

    def take(self, index: int, end: Position) -> None:
        """A row begins; its number is larger than those before. `end` is the position behind it."""
        self._taken[index] = None
        self._ends[index] = end

    def end(self, ended: ResultRow) -> bool:
        """A row has ended; returns whether there is something to write now."""
        self._taken[ended.index] = ended
        self._bytes += byte_size(ended)
        return next(iter(self._taken)) == ended.index

    def ready(self, most: int) -> list[ResultRow]:
        """The first rows, as far as they have ended, at most so many; they leave the window."""
        found: list[ResultRow] = []
        for ended in self._taken.values():
            if ended is None or len(found) == most:
                break
            found.append(ended)
        for ended in found:
            del self._taken[ended.index]
            self.position = self._ends.pop(ended.index)
            self._bytes -= byte_size(ended)
        return found


def byte_size(ended: ResultRow) -> int:
    """Of all tensors of a result, or of a route's answer."""
    tensors = sum(tensor.byte_size for response in ended.responses for tensor in response.outputs)
    return tensors + (len(ended.answer) if isinstance(ended, RouteResult) else 0)
