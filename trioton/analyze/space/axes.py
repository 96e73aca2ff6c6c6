"""Axes: settings with the options that each has, and the candidates that they span. Pure."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from trioton.analyze.search.candidates import Candidate

Settings: TypeAlias = Mapping[str, str]
"""An option for each axis that differs from the default."""

_MOST_COMBINATIONS = 4_000
# Of the best prediction: what is expected to be worse is sorted out.
_WORTHWHILE = 0.5
# One of so many of the first candidates is none that the formula has chosen.
_EVERY = 3


@dataclass(frozen=True, slots=True)
class Axis:
    """A setting.

    Attributes:
        options: as texts; the first one is the default's.
        is_ordered: options have an order beside that: neighbours are those next to each other by `order`.
        is_predicted: the formula knows what the setting does.
    """

    name: str
    options: tuple[str, ...]
    is_predicted: bool = False
    order: tuple[str, ...] = ()

    def near(self, option: str) -> Iterator[str]:
        """Options that a neighbour may have."""
        if not self.order:
            yield from (other for other in self.options if other != option)
            return
        at = self.order.index(option)
        for place in (at - 1, at + 1):
            if 0 <= place < len(self.order):
                yield self.order[place]


def key_of(settings: Settings) -> str:
    """`delay=500us,instances=2`; empty for the default."""
    return ",".join(f"{name}={option}" for name, option in sorted(settings.items()))


@dataclass(slots=True)
class AxesSpace:
    """Implements `Space`. `predict` is the greatest rate by the formula, `is_allowed` says whether options go together;
    both get all settings, the default's included."""

    axes: Sequence[Axis]
    predict: Callable[[Settings], float | None]
    is_allowed: Callable[[Settings], bool] = lambda _: True
    settings: dict[str, Settings] = field(default_factory=dict)
    _made: dict[str, Candidate] = field(default_factory=dict)

    def first(self) -> Sequence[Candidate]:
        default = self._candidate({})
        assert default is not None
        core = self._predicted()
        tried = self._single_changes(core[0] if core else default)
        chosen = [default]
        rest = _by_turns(core, self._group)
        while rest or tried:
            chosen += rest[: _EVERY - 1]
            del rest[: _EVERY - 1]
            if tried:
                chosen.append(tried.pop(0))
        return list({each.key: each for each in chosen}.values())

    def neighbours(self, candidate: Candidate) -> Sequence[Candidate]:
        now = self.settings[candidate.key]
        found = []
        for axis in self.axes:
            for option in axis.near(now.get(axis.name, axis.options[0])):
                made = self._candidate({**now, axis.name: option})
                if made is not None:
                    found.append(made)
        return sorted(found, key=lambda each: -(each.predicted or 0.0))

    @property
    def choices(self) -> Sequence[tuple[str, tuple[str, ...]]]:
        """The options of each axis."""
        return [(axis.name, axis.options) for axis in self.axes]

    def made_of(self, options: Settings) -> Candidate | None:
        """The candidate with an option for each axis; None where they do not go together."""
        return self._candidate(options)

    def options_of(self, candidate: Candidate) -> Settings:
        """An option for each axis."""
        return {**{axis.name: axis.options[0] for axis in self.axes}, **self.settings[candidate.key]}

    def _candidate(self, settings: Settings) -> Candidate | None:
        """None where the options do not go together."""
        defaults = {axis.name: axis.options[0] for axis in self.axes}
        changed = {name: option for name, option in settings.items() if option != defaults[name]}
        whole = {**defaults, **changed}
        if changed and not self.is_allowed(whole):
            return None
        key = key_of(changed)
        if key not in self._made:
            self.settings[key] = changed
            self._made[key] = Candidate(key, len(changed), self.predict(whole))
        return self._made[key]

    def _predicted(self) -> list[Candidate]:
        """Combinations of what the formula knows, the best first."""
        axes = [axis for axis in self.axes if axis.is_predicted]
        products = itertools.islice(itertools.product(*(axis.options for axis in axes)), _MOST_COMBINATIONS)
        names = [axis.name for axis in axes]
        made = [self._candidate(dict(zip(names, options, strict=True))) for options in products]
        there = [each for each in made if each is not None and each.key]
        best = max((each.predicted or 0.0 for each in there), default=0.0)
        kept = [each for each in there if (each.predicted or 0.0) >= _WORTHWHILE * best]
        return sorted(kept, key=lambda each: (-(each.predicted or 0.0), each.changes))

    def _single_changes(self, best: Candidate) -> list[Candidate]:
        """What the formula does not know, added to what it thinks best, an option of each axis first."""
        axes = [axis for axis in self.axes if not axis.is_predicted]
        now = self.settings[best.key]
        options = itertools.zip_longest(*([(axis.name, option) for option in axis.options[1:]] for axis in axes))
        pairs = [pair for row in options for pair in row if pair is not None]
        made = [self._candidate({**now, name: option}) for name, option in pairs]
        return [each for each in made if each is not None]

    def _group(self, candidate: Candidate) -> tuple[str, ...]:
        """Candidates of one group are much alike: of those axes that the formula knows they share the first two."""
        axes = [axis for axis in self.axes if axis.is_predicted][:2]
        return tuple(self.settings[candidate.key].get(axis.name, axis.options[0]) for axis in axes)


def _by_turns(candidates: Sequence[Candidate], group: Callable[[Candidate], tuple[str, ...]]) -> list[Candidate]:
    """The best of each group, then the second of each: a prediction that errs about a group errs about all of it."""
    groups: dict[tuple[str, ...], list[Candidate]] = {}
    for each in candidates:
        groups.setdefault(group(each), []).append(each)
    rows = itertools.zip_longest(*groups.values())
    return [each for row in rows for each in row if each is not None]
