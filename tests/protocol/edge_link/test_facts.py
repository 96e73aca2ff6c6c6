"""Facts of models that an edge process has at hand before it asks: nobody waits for the core within a callback."""

from __future__ import annotations

import math
import socket
from typing import Any, cast

import pytest
import trio

from protocol.core import InferenceCore, ModelMetadata
from protocol.edge_link.errors import NotLinked
from protocol.errors import NotFound
from protocol.messages import LATEST_VERSION
from tests.protocol.edge_link.links import linked, settled
from tests.protocol.edge_link.scripted_core import ScriptedCore


class Known(ScriptedCore):
    """Its models are all alike, but for one that is missing."""

    def is_decoupled(self, name: str, version: int = LATEST_VERSION) -> bool:
        self.asked.append((name, version))
        if name == "missing":
            raise NotFound("there is no such model")
        return self.batching

    def model_metadata(self, name: str, version: int = LATEST_VERSION) -> ModelMetadata:
        return ModelMetadata(name, ("1",), "", (), ())

    def model_config(self, name: str, version: int = LATEST_VERSION) -> dict[str, Any]:
        return {"name": name, "max_batch_size": 4}

    def labels(self, name: str, version: int, output: str) -> tuple[str, ...]:
        return (f"{output} of {name}",)


def never(control: socket.socket, events: int, deadline: float) -> None:
    raise AssertionError("the process waits")


async def test_all_that_inference_asks_is_there_without_a_wait() -> None:
    core = Known()
    async with linked(cast(InferenceCore, core)) as link:
        link.core.queries.wait = never
        async with trio.open_nursery() as nursery:
            for _ in range(10):
                nursery.start_soon(link.core.facts.know, "m", 1, ("OUT",))
        assert core.asked.count(("m", 1)) == 2  # is_batching and is_decoupled, once each
        assert link.core.is_decoupled("m", 1)
        assert link.core.is_batching("m", 1)
        assert link.core.model_metadata("m", 1).name == "m"
        assert link.core.model_config("m", 1)["max_batch_size"] == 4
        assert list(link.core.labels("m", 1, "OUT")) == ["OUT of m"]
        core.batching = False
        link.generation.bump()
        await link.core.facts.know("m", 1)
        assert not link.core.is_decoupled("m", 1)


async def test_what_has_changed_while_it_was_told_is_not_kept() -> None:
    core = Known()
    async with linked(cast(InferenceCore, core)) as link:

        def changes(name: str, version: int = LATEST_VERSION) -> bool:
            link.generation.bump()
            return True

        core.is_decoupled = changes  # type: ignore[method-assign]
        await link.core.facts.know("m", 1)
        assert not link.core.queries.knows("is_decoupled", ("m", 1))


async def test_an_error_is_for_who_asks() -> None:
    core = Known()
    async with linked(cast(InferenceCore, core)) as link:
        await link.core.facts.know("missing", 1)
        with pytest.raises(NotFound):
            link.core.is_decoupled("missing", 1)
        assert link.core.model_config("missing", 1)["name"] == "missing"


async def test_nobody_waits_within_a_callback() -> None:
    core = Known()
    async with linked(cast(InferenceCore, core)) as link:
        await settled()
        link.core._poller.burst = 1
        try:
            with pytest.raises(NotLinked, match="is_decoupled"):
                link.core.is_decoupled("m", 1)
        finally:
            link.core._poller.burst = 0
        assert link.core.is_decoupled("m", 1)


async def test_what_is_known_of_a_model_stays_when_others_change() -> None:
    core = Known()
    async with linked(cast(InferenceCore, core)) as link:
        link.core.queries._kept_until = math.inf
        await link.core.facts.know("m", 1)
        asked = len(core.asked)
        for number in range(200):
            link.generation.bump_model(f"model_{number}")
            await link.core.facts.know("m", 1)
            assert link.core.is_batching("m", 1)
        assert len(core.asked) == asked
        core.batching = False
        link.generation.bump_model("m")
        await link.core.facts.know("m", 1)
        assert not link.core.is_batching("m", 1)
