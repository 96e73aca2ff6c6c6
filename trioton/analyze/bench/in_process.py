"""Program that measures service times in its own process: no wire, one request at a time, for each batch size.

Reads its task as JSON from standard input, and writes what it has found to standard output.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from statistics import fmean, median, pstdev

import msgspec
import trio

from protocol.core import LoadParameters
from protocol.errors import ServerError
from protocol.messages import InferenceRequest, Tensor
from trioton.analyze.bench.requests import payloads_of
from trioton.perf.caller import DataError, ModelDescription, Payload
from trioton.perf.data.model_data import ModelData
from trioton.server import Models, Settings, open_server

from trioton.analyze.bench.task import Found, Task, Times  # isort: skip  (after the server, which sets up libraries)

_REQUESTS = 16
_WARM_UPS = 3
_LEAST_REPEATS, _MOST_REPEATS = 7, 200


def main() -> None:
    task = msgspec.json.decode(sys.stdin.buffer.read(), type=Task)
    found = trio.run(_run, task)
    sys.stdout.buffer.write(msgspec.json.encode(found))


async def _run(task: Task) -> Found:
    words = ["--model-control-mode=explicit", f"--load-model={task.model}", "--exit-on-error=false", *task.flags]
    silent = ["--allow-http=false", "--allow-grpc=false", "--allow-metrics=false", "--log-info=false"]
    settings = Settings.from_flags([*(f"--model-repository={place}" for place in task.repositories), *words, *silent])
    times: dict[str, Times] = {}
    failures: dict[str, str] = {}
    async with open_server(settings) as server:
        for option, config in task.configs.items():
            try:
                await server.models.load_model(task.model, LoadParameters(config=config))
                times[option] = await _times(server.models, task)
            except (ServerError, DataError) as error:
                failures[option] = str(error)
    return Found(times, failures)


async def _times(models: Models, task: Task) -> Times:
    seconds: dict[int, float] = {}
    variations: list[float] = []
    for rows in task.sizes:
        payloads = await _payloads(models, task, rows)
        took = await _measured(models, task.model, [list(each.inputs) for each in payloads], task.seconds)
        seconds[rows] = median(took)
        middle = sorted(took)[: max(2, len(took) * 9 // 10)]  # without the pauses of a busy machine
        variations.append(pstdev(middle) / fmean(middle))
    return Times(seconds, median(variations))


async def _measured(models: Models, model: str, requests: Sequence[list[Tensor]], limit: float) -> list[float]:
    took: list[float] = []
    began = time.perf_counter()
    for number in range(_WARM_UPS + _MOST_REPEATS):
        start = time.perf_counter()
        await models.infer(InferenceRequest(model, requests[number % len(requests)]))
        end = time.perf_counter()
        if number >= _WARM_UPS:
            took.append(end - start)
        if len(took) >= _LEAST_REPEATS and end - began > limit:
            break
    return took


async def _payloads(models: Models, task: Task, rows: int) -> list[Payload]:
    metadata = models.model_metadata(task.model)
    config = models.model_config(task.model)
    description = ModelDescription(task.model, "", metadata.inputs, metadata.outputs, config)
    return await payloads_of(ModelData(sources=task.sources, batch=rows), description, _REQUESTS)


if __name__ == "__main__":
    main()
