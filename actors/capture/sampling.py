"""Which requests are captured: a share of those to each model, evenly. A plain policy."""

from __future__ import annotations

from collections.abc import Mapping

# Names of models may be a client's inventions; when there are too many all begin anew.
_MOST_NAMES = 4096
# Models are folders, whose names are no longer; what is longer is no model.
_LONGEST_NAME = 255


class CaptureSampling:
    """Of n requests to a model, share * n are taken, to within one."""

    def __init__(self, share: float, shares: Mapping[str, float]) -> None:
        self._share = share
        self._shares = shares
        self._due: dict[str, float] = {}

    def takes(self, model: str) -> bool:
        """Whether the next request to a model is one of them."""
        share = self._shares.get(model, self._share)
        if not share or len(model) > _LONGEST_NAME:
            return False
        due = self._due.get(model, 0.5) + share
        is_taken = due >= 1
        if len(self._due) >= _MOST_NAMES and model not in self._due:
            self._due.clear()
        self._due[model] = due - is_taken
        return is_taken
