"""What clients have loaded and unloaded, so that every later replica gets the same models. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from urllib.parse import quote

# Of all bodies of loads that are remembered; files of models may come in them.
MOST_BYTES = 1 << 30


@dataclass(frozen=True, slots=True)
class ModelRequest:
    """A load, or an unload: the model, and the body of its request."""

    model: str
    is_load: bool
    body: bytes = b""

    @property
    def target(self) -> str:
        return f"/v2/repository/models/{quote(self.model, safe='')}/{'load' if self.is_load else 'unload'}"


class TooMuchToRemember(Exception):
    """The bodies of all loads are larger than what may be kept."""


@dataclass(slots=True)
class ModelRecords:
    """The last request for each model, in the order in which they came."""

    _last: dict[str, ModelRequest] = field(default_factory=dict)

    def __iter__(self) -> Iterator[ModelRequest]:
        return iter([*self._last.values()])

    def of(self, model: str) -> ModelRequest | None:
        return self._last.get(model)

    def check_room(self, request: ModelRequest) -> None:
        """Raises TooMuchToRemember."""
        others = sum(len(each.body) for each in self if each.model != request.model)
        if others + len(request.body) > MOST_BYTES:
            raise TooMuchToRemember(
                f"the overrides of all models that were loaded are larger than {MOST_BYTES} bytes, which is the most "
                f"that a fleet keeps for later replicas; put model '{request.model}' into the repository"
            )

    def note(self, request: ModelRequest) -> None:
        """It has succeeded on every replica."""
        self._last.pop(request.model, None)
        self._last[request.model] = request
