"""A model with an engine in this process, and what tests ask of it."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import trio

from actors.core.server_core import ControlMode, CoreSettings, ServerCore
from backends.engines import OpenVinoGenAiBackend, ScriptedBackend
from backends.interface import Backend
from backends.registry import BackendRegistry
from protocol.gen_ai import GenAi
from protocol.messages import InferenceRequest, InferenceResponse, Tensor
from tests.backends.engines.models import sampling
from tests.backends.helpers import objects
from tests.backends.python.processes import children, until
from trioton.testing.model_object import find_tested_model

RESTART_SECONDS = 30.0
EXIT_SECONDS = 10.0
BACKENDS: dict[str, type[Backend]] = {"scripted": ScriptedBackend, "openvino_genai": OpenVinoGenAiBackend}


class Served:
    """One that is being served."""

    def __init__(self, core: ServerCore) -> None:
        self.core = core

    def request(self, text: str, *, request_id: str = "", **options: Any) -> InferenceRequest:
        """Members of `options` that are flags are tensors of their own, those below are the request's own, and all
        others are sampling fields."""
        own = {
            name: options.pop(name) for name in ("timeout_microseconds", "parameters", "priority") if name in options
        }
        inputs = {"text_input": objects(text)}
        if "prompt_token_ids" in options:
            inputs["prompt_token_ids"] = np.array(options.pop("prompt_token_ids"), np.int32)
        for name in [name for name, value in options.items() if isinstance(value, bool) and name != "ignore_eos"]:
            inputs[name] = np.array([options.pop(name)])
        if (priority := options.pop("sampling_priority", None)) is not None:
            options["priority"] = priority
        inputs["sampling_parameters"] = objects(sampling(**options))
        tensors = [Tensor.from_numpy(name, array) for name, array in inputs.items()]
        return InferenceRequest("m", tensors, id=request_id, **own)

    async def responses(self, text: str, **options: Any) -> list[dict[str, Any]]:
        """All responses to one request."""
        found: list[dict[str, Any]] = []

        async def respond(response: InferenceResponse) -> None:
            if response.outputs:
                found.append(outputs(response))

        await self.core.infer_stream(self.request(text, **options), respond)
        return found

    async def text(self, text: str, **options: Any) -> str:
        """All that is generated, joined."""
        options.setdefault("exclude_input_in_output", True)
        return "".join(each["text_output"] for each in await self.responses(text, **options))

    def load(self) -> dict[str, float]:
        """The gauges and counters of the engine, without their prefix."""
        families = {family.name: list(family.values) for family in self.core.custom_metrics.values()}
        return {name.removeprefix("vllm:"): values[0].value for name, values in families.items() if values}

    async def wait_running(self, count: int = 1) -> None:
        await until(lambda: self.load().get("num_requests_running") == count)

    async def wait_waiting(self, count: int) -> None:
        await until(lambda: self.load().get("num_requests_waiting") == count)

    async def wait_free(self) -> None:
        """Until nothing runs or waits, and nothing is left in the cache."""
        names = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
        await until(lambda: [self.load().get(name) for name in names] == [0, 0, 0])

    async def wait_ready(self) -> None:
        await until(lambda: self.core.is_model_ready("m"))


def outputs(response: InferenceResponse) -> dict[str, Any]:
    """The one element of each output."""
    found = {}
    for tensor in response.outputs:
        [value] = tensor.as_numpy().reshape(-1)
        found[tensor.name] = value.decode() if isinstance(value, bytes) else value.item()
    return found


@asynccontextmanager
async def serve(folder: Path, gen_ai: GenAi | None = None, **more: Any) -> AsyncIterator[Served]:
    """The model in a folder of the name `m`, whose processes are gone afterwards. Requests wait for a restart. Calls
    are observed by `gen_ai`; `more` are settings of the core."""
    before = set(children())
    settings = CoreSettings(
        (find_tested_model(folder),), control_mode=ControlMode.EXPLICIT, restart_wait_seconds=RESTART_SECONDS, **more
    )
    core = ServerCore(settings, BackendRegistry(BACKENDS), gen_ai=gen_ai)
    failure: Exception | None = None
    async with trio.open_nursery() as nursery:
        await nursery.start(core.run)
        try:
            await core.load_model("m")
            yield Served(core)
        except Exception as error:  # raised below, not in a group
            failure = error
        core.stop()
        nursery.cancel_scope.deadline = trio.current_time() + EXIT_SECONDS
    assert set(children()) <= before
    if failure is not None:
        raise failure


def kill_workers(ours: Sequence[int]) -> None:
    """End the processes of engines, as the kernel would."""
    for pid in ours:
        os.kill(pid, signal.SIGKILL)


async def gather(*calls: Any) -> list[Any]:
    """The results of calls that run beside each other; an error in the place of one that raises it."""
    results: dict[int, Any] = {}

    async def run(place: int, call: Any) -> None:
        try:
            results[place] = await call
        except Exception as error:
            results[place] = error

    async with trio.open_nursery() as nursery:
        for place, call in enumerate(calls):
            nursery.start_soon(run, place, call)
    return [results[place] for place in range(len(calls))]
