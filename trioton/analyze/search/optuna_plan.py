"""Search by Optuna, in place of rounds that halve the field; baseline and finals are as of any plan.

Optuna proposes the options of all axes, and is told the greatest rate of each candidate. The same seed and outcomes
lead to the same proposals.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from trioton.analyze.search.candidates import Candidate, Space
from trioton.analyze.search.plan import UNTIL_FINALS, Plan, Trials, grid_index
from trioton.flags.fields import UsageError

if TYPE_CHECKING:
    import optuna

PROPOSED = "optuna"
_STEP = 2
_START_UPS = 8
# Proposals in a row that are known already: it has nothing new to say.
_MOST_REPEATS = 40
_MOST_PROPOSALS = 200


class OptionSpace(Space, Protocol):
    """A space whose candidates can be made of options."""

    @property
    def choices(self) -> Sequence[tuple[str, tuple[str, ...]]]:
        """The options of each axis."""

    def made_of(self, options: Mapping[str, str]) -> Candidate | None:
        """None where they do not go together."""

    def options_of(self, candidate: Candidate) -> Mapping[str, str]:
        """One for each axis."""


def check_installed() -> None:
    """Raises UsageError."""
    if importlib.util.find_spec("optuna") is None:
        raise UsageError("--search=optuna needs a package: pip install 'trioton[optuna]'")


@dataclass(slots=True, kw_only=True)
class OptunaPlan(Plan):
    """`seed` is that of the sampler."""

    options: OptionSpace
    seed: int = 0
    study: optuna.Study | None = field(default=None)

    def _rounds(self, first: Sequence[Candidate]) -> Trials:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        sampler = optuna.samplers.TPESampler(seed=self.seed, n_startup_trials=_START_UPS, constant_liar=True)
        self.study = optuna.create_study(direction="maximize", sampler=sampler)
        for each in first[1 : _START_UPS // 2 + 1]:  # what the formula thinks best
            self.study.enqueue_trial(dict(self.options.options_of(each)))
        repeats = 0
        for _ in range(_MOST_PROPOSALS):
            seconds = self._seconds(self._reference_rate(), 0.0)
            if not self._has_time(seconds, UNTIL_FINALS) or repeats > _MOST_REPEATS:
                return
            proposal = self.study.ask()
            options = {name: proposal.suggest_categorical(name, texts) for name, texts in self.options.choices}
            candidate = self.options.made_of(options)
            if candidate is None:
                self.study.tell(proposal, state=optuna.trial.TrialState.FAIL)
                repeats += 1
                continue
            self._know([candidate])
            if candidate.key in self.records:
                repeats += 1
            else:
                repeats = 0
                yield from self._look_at(candidate.key, seconds)
            value = self.value(self.records[candidate.key]) if candidate.key in self.records else -math.inf
            if math.isfinite(value):
                self.study.tell(proposal, value)
            else:
                self.study.tell(proposal, state=optuna.trial.TrialState.FAIL)

    def _look_at(self, key: str, seconds: float) -> Trials:
        if self.aim.has_fixed_rate:
            yield from self._measure(key, self.rate, seconds, PROPOSED)
        else:
            start = grid_index(self._default_rate()) // _STEP * _STEP
            yield from self._climb(key, start, _STEP, seconds, PROPOSED, UNTIL_FINALS, most_down=1)

    def _near_the_best(self) -> Trials:
        """Optuna has looked there."""
        yield from ()
