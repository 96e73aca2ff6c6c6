"""Step: a candidate on the server's own backends, without a wire: its answers to all cases, and its speed."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import trio

from protocol.errors import ServerError
from protocol.messages import InferenceRequest, Tensor
from trioton.convert.cases import Case, Way
from trioton.convert.programs.speed import measured_speed
from trioton.convert.storage import load_cases, save_answers
from trioton.convert.tensors import Arrays
from trioton.server import Models, Settings, open_server

import numpy as np  # isort: skip  (after the server, whose start sets what libraries read)


def run(arguments: dict[str, Any]) -> dict[str, Any]:
    """`repository` has one model, `model`. With `answers` it is asked the `cases`; with `levels` it is loaded by so
    many requests at a time, for `seconds` each, of single rows of the first case."""
    return trio.run(_run, arguments)


async def _run(arguments: dict[str, Any]) -> dict[str, Any]:
    settings = Settings(
        model_repository=(Path(arguments["repository"]),),
        allow_http=False,
        allow_grpc=False,
        allow_metrics=False,
        exit_on_error=False,  # the model's own reason is told below
        exit_timeout_secs=5,
    )
    name = arguments["model"]
    cases = load_cases(Path(arguments["cases"]))
    async with open_server(settings) as server:
        await _check_ready(server.models, name)
        asked = _Asked(server.models, name, tuple(arguments["scalar_inputs"]), tuple(arguments["scalar_outputs"]))
        if "answers" in arguments:
            answers = {case.name: await _answer(asked, case) for case in cases}
            save_answers(Path(arguments["answers"]), answers)
            return {}
        rows = [_single(case, index) for case in cases[: arguments["case_count"]] for index in range(case.rows)]
        requests = [asked.tensors(row) for row in rows]
        levels = await measured_speed(server.models, name, requests, arguments["levels"], arguments["seconds"])
        return {"levels": levels, "memory_bytes": _peak_memory()}


@dataclass(frozen=True, slots=True)
class _Asked:
    """The model. Scalars are tensors that have one element more for clients than in the model."""

    models: Models
    name: str
    scalar_inputs: tuple[str, ...]
    scalar_outputs: tuple[str, ...]

    async def infer(self, inputs: Arrays) -> Arrays:
        response = await self.models.infer(InferenceRequest(self.name, self.tensors(inputs)))
        found = {output.name: output.as_numpy().copy() for output in response.outputs}
        return {name: array[..., 0] if name in self.scalar_outputs else array for name, array in found.items()}

    def tensors(self, inputs: Arrays) -> list[Tensor]:
        return [
            Tensor.from_numpy(name, array[..., np.newaxis] if name in self.scalar_inputs else array)
            for name, array in inputs.items()
        ]


async def _check_ready(models: Models, name: str) -> None:
    """Raises RuntimeError, with the reason why it does not load."""
    if any(entry.name == name and entry.state == "READY" for entry in await models.repository_index()):
        return
    reasons = [entry.reason for entry in await models.repository_index() if entry.name == name and entry.reason]
    raise RuntimeError(reasons[0] if reasons else f"model '{name}' does not load")


async def _answer(asked: _Asked, case: Case) -> Arrays | str:
    try:
        if case.way is Way.TOGETHER:
            return await asked.infer(case.inputs)
        parts: list[Arrays] = [{}] * case.rows

        async def ask(index: int) -> None:
            parts[index] = await asked.infer(_single(case, index))

        if case.way is Way.ALONE:
            for index in range(case.rows):
                await ask(index)
        else:
            async with trio.open_nursery(strict_exception_groups=True) as nursery:
                for index in range(case.rows):
                    nursery.start_soon(ask, index)
        return {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}
    except ServerError as error:
        return str(error)
    except ExceptionGroup as group:
        errors = group.subgroup(ServerError)
        if errors is None or len(errors.exceptions) < len(group.exceptions):
            raise
        return str(errors.exceptions[0])


def _single(case: Case, index: int) -> Arrays:
    if case.rows == 1:
        return case.inputs
    return {name: array[index : index + 1] for name, array in case.inputs.items()}


def _peak_memory() -> int:
    import resource

    scale = 1 if os.uname().sysname == "Darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * scale
