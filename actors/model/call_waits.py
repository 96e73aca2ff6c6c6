"""Wait graph of model calls (BLS): refuses a call that could never end, since models would wait for each other.

Consulted by the core's model calls and by the models. Plain state, changed between two checkpoints.

A batch that calls another model occupies a slot of its instance until the response is there. If every instance of the
called model is held in that way by batches that wait, directly or through others, for this very call, no answer can
come: the call that would close such a cycle is refused. Others are not: a batch that waits for no other will end. An
instance that needs resources of the rate limiter is held as well by those batches that hold too much of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from actors.instance.rate_limit_policy import Claim, Pool
from backends.services import Execution
from protocol.errors import Unavailable


class CalledModel(Protocol):
    """What must be known of a model that is called; `actors.model.model.Model` is one. `source` is that of its
    instances' specs, None for a model without any; `instance_count` is how many of them live; `is_ordered` if its
    answers leave in the order of the requests (`preserve_ordering`)."""

    @property
    def name(self) -> str: ...

    @property
    def source(self) -> object: ...

    @property
    def instance_count(self) -> int: ...

    @property
    def is_ordered(self) -> bool: ...


class SharedResources(Protocol):
    """What is needed of the rate limiter; `actors.instance.rate_limiter.RateLimiter` implements it."""

    def claims(self, source: object) -> Mapping[str, Claim]:
        """The claims of those instances with this source that need any resources, by their names."""

    def count(self, pool: Pool) -> int:
        """The total of each resource."""


class EndlessWait(Unavailable):
    """A call that could never be answered (deadlock)."""


@dataclass(eq=False, slots=True)
class CallWaits:
    """The waiting batches of one server, and the models that each of them waits for, with multiplicity. `resources`
    exist where the rate limiter is on."""

    resources: SharedResources | None = None
    _waits: dict[Execution, list[CalledModel]] = field(default_factory=dict)
    # Instances may wait from each model, by its source: most calls need to know no more.
    _callers: dict[int, int] = field(default_factory=dict)

    def add(self, caller: Execution, target: CalledModel) -> None:
        """Raises EndlessWait, and records nothing, if the caller would wait for itself."""
        targets = self._waits.get(caller)
        if targets is None:
            targets = self._waits[caller] = []
            self._callers[id(caller.source)] = self._callers.get(id(caller.source), 0) + 1
        targets.append(target)
        is_open = id(target.source) not in self._callers and not self._claims(target.source)
        if not is_open and self._is_stuck(caller):
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
                if not any(self._is_taken(target, stuck) for target in self._waits[execution])
            }
            if not free:
                return True
            stuck -= free
        return False

    def _claims(self, source: object) -> Mapping[str, Claim]:
        return {} if self.resources is None else self.resources.claims(source)

    def _is_taken(self, target: CalledModel, stuck: Iterable[Execution]) -> bool:
        """Whether stuck batches occupy every slot of every instance, or what it needs to run, or whether one precedes
        it in an ordered model."""
        if not target.instance_count:
            return False  # it refuses by itself
        held: Counter[str] = Counter()
        full = set(self._kept_from_running(target, stuck))
        for execution in stuck:
            if execution.source is target.source:
                held[execution.instance_name] += 1
                if target.is_ordered:
                    return True
                if held[execution.instance_name] >= execution.concurrency:
                    full.add(execution.instance_name)
        # Of a dead instance, which may be among the full ones, it is not known whether it comes back in time.
        return len(full) >= max(target.instance_count, len(self._claims(target.source)))

    def _kept_from_running(self, target: CalledModel, stuck: Iterable[Execution]) -> dict[str, Pool]:
        """The instances for which stuck batches leave too little of some resource, and of which."""
        claims = self._claims(target.source)
        if self.resources is None or not claims:
            return {}
        used: Counter[Pool] = Counter()
        for execution in stuck:
            claim = self._claims(execution.source).get(execution.instance_name)
            used.update({} if claim is None else claim.needs)
        return {
            name: pool
            for name, claim in claims.items()
            for pool, need in claim.needs.items()
            if self.resources.count(pool) - used[pool] < need
        }

    def _text(self, caller: Execution, target: CalledModel) -> str:
        begin = f"the call from model '{caller.model_name}' could never be answered:"
        chain = " → ".join(self._chain(caller, target))
        running = [execution for execution in self._waits if execution.is_running]
        missing = self._kept_from_running(target, running)
        if missing:
            resource, _ = next(iter(missing.values()))
            return (
                f"{begin} model '{target.name}' needs resource \"{resource}\", of which too much is held until the end "
                f"of this call ({chain}); more of it (--rate-limit-resource) would help"
            )
        help = "preserve_ordering makes them one" if target.is_ordered else "more instances of it would help"
        return f"{begin} every instance of model '{target.name}' waits for the end of this call ({chain}); {help}"

    def _chain(self, caller: Execution, target: CalledModel) -> list[str]:
        """A cycle from the caller back to itself, or to a model that is kept from running, by the models' names."""
        names = [caller.model_name]
        here, seen = target, {caller}
        while here.source is not caller.source:
            names.append(here.name)
            following = next((each for each in self._waits if each.source is here.source and each not in seen), None)
            if following is None:
                return names
            seen.add(following)
            here = self._waits[following][0]
        return [*names, here.name]


@dataclass(eq=False, slots=True)
class WaitingCall:
    """Implements `protocol.messages.Caller`: goes with a request, and with those that are made to answer it."""

    waits: CallWaits
    execution: Execution

    def begin_wait(self, target: CalledModel) -> None:
        self.waits.add(self.execution, target)

    def end_wait(self, target: CalledModel) -> None:
        self.waits.remove(self.execution, target)
