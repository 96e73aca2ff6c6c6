"""Picture tokens: what pictures take of a prompt, for models where each takes the same. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec


class PictureTokens(msgspec.Struct, frozen=True):
    """Each picture takes `size` tokens in place of its mark, a token that the template writes."""

    mark: int
    size: int

    def more(self, ids: Sequence[int], pictures: int) -> int:
        """How many tokens a prompt has besides those of its text, of which the marks are some."""
        return pictures * self.size - min(pictures, ids.count(self.mark) if pictures else 0)

    def expanded(self, ids: Sequence[int], pictures: int) -> list[int]:
        """The prompt with each mark as often as its picture has tokens. Those of pictures without one come first."""
        unmarked = max(pictures - ids.count(self.mark), 0)
        return [self.mark] * (unmarked * self.size) + list(self._expanded(ids, pictures))

    def _expanded(self, ids: Sequence[int], pictures: int) -> Iterator[int]:
        for each in ids:
            is_seen = each == self.mark and pictures > 0
            pictures -= is_seen
            yield from (each,) * (self.size if is_seen else 1)
