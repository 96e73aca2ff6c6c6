"""Public: tests of a model without a server: in this process, with the real scheduler in front of it.

The model may be a `model.py`, or one of any backend, also of one that is being written.

Flow: test → [testing] → core → model, scheduler and model instance, as in a server → a thread that runs the model.

    import numpy as np
    import trioton.testing

    def test_doubles():
        with trioton.testing.serve_model("models/double") as model:
            assert model.infer({"IN": np.ones((1, 2), np.float32)})["OUT"].tolist() == [[2, 2]]

Importing this module lets the process import `triton_python_backend_utils`, too, so that a test may make a model's
object itself.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from typing import Any

import trio

from actors.core.server_core import ControlMode, CoreSettings, ServerCore
from backends.interface import Backend
from backends.python.testing import in_process_backend
from backends.python.workers.in_process import offer_utilities
from backends.registry import BackendRegistry
from protocol.core import LoadParameters
from protocol.errors import ServerError
from repository.json_form import to_json_form
from repository.layout import ModelDirectory
from repository.loader import read_config
from trioton.testing.model_object import PathLike, find_tested_model, initialize_arguments, model_class
from trioton.testing.models import Answer, AsyncModel, Failures, Inputs, Model, RequestFields
from trioton.testing.runner import Runner

__all__ = [
    "Answer",
    "AsyncModel",
    "Inputs",
    "Model",
    "PathLike",
    "RequestFields",
    "ServerError",
    "initialize_arguments",
    "model_class",
    "open_model",
    "serve_model",
]

# What is still running at the end may take this long; a model that hangs fails no other test.
_EXIT_SECONDS = 10.0
# All models are in this process, also those that ask for it.
_BACKEND_CONFIG = {"python": {"allow-in-process": "true"}}

offer_utilities()


@asynccontextmanager
async def open_model(
    path: PathLike,
    *,
    models: Sequence[PathLike] = (),
    config: Mapping[str, Any] | None = None,
    backends: Mapping[str, type[Backend]] | None = None,
) -> AsyncIterator[AsyncModel]:
    """Load a model in this process, for the time of the block, without a server around it. At its end requests are
    finished and the models unloaded, for 10 seconds at most; then, or when the block is cancelled, what runs is
    cancelled.

    Args:
        path: its directory, as for `trioton run`: with or without version directories and configuration.
        models: others that it needs: those that it calls, or that an ensemble is composed of.
        config: fields of the configuration in Triton's JSON form, to take the place of those of the file.
        backends: classes of backends by the names that configurations give them, besides those that are installed.

    Raises:
        ValueError: there is no model at a path.
        ServerError: one does not load; the exception that it raised is the cause.
    """
    wanted, *others = [find_tested_model(each) for each in (path, *models)]
    failures = Failures()
    registry = BackendRegistry({"python": in_process_backend(failures.raised.append), **(backends or {})})
    settings = CoreSettings((wanted, *others), control_mode=ControlMode.EXPLICIT, backend_config=_BACKEND_CONFIG)
    core = ServerCore(settings, registry)
    failure: BaseException | None = None
    async with trio.open_nursery() as nursery:
        await nursery.start(core.run)
        try:
            for each in others:
                await core.load_model(each.name)
            await core.load_model(wanted.name, _override(wanted, config))
            yield AsyncModel(core, wanted.name, failures)
        except ServerError as error:
            failure = error
            failure.__cause__ = failure.__cause__ or failures.cause_of(error)
        except (trio.Cancelled, GeneratorExit):
            raise
        except BaseException as error:  # raised below, not in a group; pytest has some that are no Exception
            failure = error
        core.stop()
        nursery.cancel_scope.deadline = trio.current_time() + _EXIT_SECONDS
    if failure is not None:
        raise failure


@contextmanager
def serve_model(
    path: PathLike,
    *,
    models: Sequence[PathLike] = (),
    config: Mapping[str, Any] | None = None,
    backends: Mapping[str, type[Backend]] | None = None,
) -> Iterator[Model]:
    """As `open_model`, for tests that do not run on Trio: its loop runs in a thread of its own.

    Raises:
        ValueError: there is no model at a path.
        ServerError: one does not load; the exception that it raised is the cause.
    """
    runner = Runner(partial(open_model, path, models=models, config=config, backends=backends))
    model = runner.start()
    try:
        yield model
    finally:
        runner.stop()


def _override(directory: ModelDirectory, config: Mapping[str, Any] | None) -> LoadParameters:
    if config is None:
        return LoadParameters()
    return LoadParameters(config=json.dumps({**to_json_form(read_config(directory)), **config}))
