"""Call waits: which models wait for which, while models call each other, so that a wait that cannot end is refused.

Consulted by the core's model calls and by the models. Plain state, changed between two checkpoints.

A batch that calls another model holds a place of its instance until the answer is there. If every instance of the
called model is held in that way by batches that wait, directly or through others, for this very call, no answer can
come: the call that would close such a circle is refused. Others are not: a batch that waits for nobody will end.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from backends.services import Execution
from protocol.errors import Unavailable


class CalledModel(Protocol):
    """What must be known of a model that is called; `actors.model.Model` is one. `source` is that of its instances'
    specs, None for a model without any; `instance_count` is how many of them live; `is_ordered` if its answers leave in
    the order of the requests (`preserve_ordering`)."""

    @property
    def name(self) -> str: ...

    @property
    def source(self) -> object: ...

    @property
    def instance_count(self) -> int: ...

    @property
    def is_ordered(self) -> bool: ...


class EndlessWait(Unavailable):
    """A call that could never be answered."""


@dataclass(eq=False, slots=True)
class CallWaits:
    """One server's waiting batches, and the models that each of them waits for, as often as it does."""

    _waits: dict[Execution, list[CalledModel]] = field(default_factory=dict)
    # Instances may wait from each model, by its source: most calls need to know no more.
    _callers: dict[int, int] = field(default_factory=dict)

    def add(self, caller: Execution, target: CalledModel) -> None:
        """Raises EndlessWait, and notes nothing, if the caller would wait for itself."""
        targets = self._waits.get(caller)
        if targets is None:
            targets = self._waits[caller] = []
            self._callers[id(caller.source)] = self._callers.get(id(caller.source), 0) + 1
        targets.append(target)
        if id(target.source) in self._callers and self._is_stuck(caller):
            text = self._text(caller, target)
            self.remove(caller, target)
            raise EndlessWait(text)

    def remove(self, caller: Execution, target: CalledModel) -> None:
        targets = self._waits[caller]
        targets.remove(target)
        if not targets:
            del self._waits[caller]
            source = id(caller.source)
            self._callers[source] -= 1
            if not self._callers[source]:
                del self._callers[source]

    def _is_stuck(self, caller: Execution) -> bool:
        """Whether nothing that runs can let this batch end: what can end is taken out until nothing more can."""
        stuck = {execution for execution in self._waits if execution.is_running}
        while caller in stuck:
            free = {
                execution
                for execution in stuck
                if not any(_is_taken(target, stuck) for target in self._waits[execution])
            }
            if not free:
                return True
            stuck -= free
        return False

    def _text(self, caller: Execution, target: CalledModel) -> str:
        chain = self._chain(caller, target)
        help = "preserve_ordering makes them one" if target.is_ordered else "more instances of it would help"
        return (
            f"the call from model '{caller.model_name}' could never be answered: every instance of model "
            f"'{target.name}' waits for the end of this call ({' → '.join(chain)}); {help}"
        )

    def _chain(self, caller: Execution, target: CalledModel) -> list[str]:
        """One way from the caller back to itself, by the models' names."""
        names = [caller.model_name]
        here, seen = target, {caller}
        while here.source is not caller.source:
            names.append(here.name)
            following = next((each for each in self._waits if each.source is here.source and each not in seen), None)
            if following is None:
                break
            seen.add(following)
            here = self._waits[following][0]
        return [*names, here.name]


def _is_taken(target: CalledModel, stuck: Iterable[Execution]) -> bool:
    """Whether stuck batches hold every place of every instance, or one before which no other is answered."""
    if not target.instance_count:
        return False  # it refuses by itself
    held: Counter[str] = Counter()
    full: set[str] = set()
    for execution in stuck:
        if execution.source is target.source:
            held[execution.instance_name] += 1
            if target.is_ordered:
                return True
            if held[execution.instance_name] >= execution.concurrency:
                full.add(execution.instance_name)
    return len(full) >= target.instance_count


@dataclass(eq=False, slots=True)
class WaitingCall:
    """Implements `protocol.messages.Caller`: goes with a request, and with those that are made to answer it."""

    waits: CallWaits
    execution: Execution

    def begin_wait(self, target: CalledModel) -> None:
        self.waits.add(self.execution, target)

    def end_wait(self, target: CalledModel) -> None:
        self.waits.remove(self.execution, target)
