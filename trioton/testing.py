"""Tests of a `model.py` without a server: in this process, with the real scheduler in front of it.

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

import importlib.util
import json
import os
import sys
import threading
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias, TypeVar

import numpy as np
import trio
from numpy.typing import ArrayLike, NDArray

from actors.core import ControlMode, CoreSettings, ServerCore
from backends.python.in_process import offer_utilities
from backends.python.testing import in_process_backend
from backends.registry import BackendRegistry
from protocol.core import LoadParameters, ModelStatistics
from protocol.datatypes import DataType
from protocol.errors import ServerError
from protocol.messages import InferenceRequest, InferenceResponse, ParameterValue, Tensor
from repository.backend_fields import PYTHON_RUNTIME
from repository.json_form import to_json_form
from repository.layout import ModelDirectory, first_version_directory
from repository.loader import read_config
from trioton.flags import UsageError
from trioton.run import find_run_model

__all__ = [
    "Answer",
    "AsyncModel",
    "Model",
    "ServerError",
    "initialize_arguments",
    "model_class",
    "open_model",
    "serve_model",
]

Inputs: TypeAlias = Mapping[str, ArrayLike]
PathLike: TypeAlias = str | os.PathLike[str]
T = TypeVar("T")

# What is still running at the end may take this long; a model that hangs fails no other test.
_EXIT_SECONDS = 10.0
# Exceptions of models that are remembered, to be shown as the cause of a request's error.
_MOST_FAILURES = 64
# All models are in this process, also those that ask for it.
_BACKEND_CONFIG = {"python": {"allow-in-process": "true"}}

offer_utilities()


class Answer(dict[str, NDArray[Any]]):
    """The outputs of one response by name, and what else it carries."""

    def __init__(self, response: InferenceResponse) -> None:
        super().__init__((tensor.name, tensor.as_numpy()) for tensor in response.outputs)
        self.parameters: Mapping[str, ParameterValue] = dict(response.parameters)
        self.request_id = response.id
        self.model_version = response.model_version


@dataclass(frozen=True, slots=True)
class _Failures:
    """The last exceptions that models have raised, with their tracebacks."""

    raised: deque[BaseException] = field(default_factory=lambda: deque(maxlen=_MOST_FAILURES))

    def cause_of(self, error: ServerError) -> BaseException | None:
        """The exception that an error's text tells of."""
        text = str(error)
        for failure in reversed(self.raised):
            if f"{type(failure).__name__}: {failure}" in text:
                return failure
        return None


class AsyncModel:
    """A model that serves, for tests that run on Trio. Its methods may be called by many tasks at once.

    A request's error is raised as `ServerError` (the kinds are in `protocol.errors`), with the exception that the model
    raised as its cause.
    """

    def __init__(self, core: ServerCore, name: str, failures: _Failures) -> None:
        self.name = name
        self._core = core
        self._failures = failures
        self._datatypes = {tensor.name: tensor.datatype for tensor in core.model_metadata(name).inputs}

    @property
    def config(self) -> dict[str, Any]:
        """The completed configuration in Triton's JSON form."""
        return self._core.model_config(self.name)

    @property
    def statistics(self) -> ModelStatistics:
        """What a server's statistics extension would say: how many requests and batches there were, and so on."""
        (found,) = self._core.model_statistics(self.name)
        return found

    async def infer(self, inputs: Inputs, **more: Any) -> Answer:
        """The one response to one request.

        Args:
            inputs: arrays by name, batch dimension included where there is one. What is no array becomes one of the
                configured datatype.
            more: `outputs` (names), `id`, `parameters`, `priority`, `timeout_microseconds`, and `sequence_id`,
                `sequence_start`, `sequence_end`.
        """
        with self._told():
            return Answer(await self._core.infer(self._request(inputs, more)))

    async def infer_many(self, requests: Sequence[Inputs], **more: Any) -> list[Answer | ServerError]:
        """Requests at the same time, so that the scheduler may put them into one batch; answers and errors in their
        places."""
        answers: dict[int, Answer | ServerError] = {}

        async def ask(index: int) -> None:
            try:
                answers[index] = await self.infer(requests[index], **more)
            except ServerError as error:
                answers[index] = error

        async with trio.open_nursery() as nursery:
            for index in range(len(requests)):
                nursery.start_soon(ask, index)
        return [answers[index] for index in range(len(requests))]

    async def stream(self, inputs: Inputs, **more: Any) -> list[Answer]:
        """All responses to one request, as a decoupled model sends them; arguments as of `infer`.

        Raises what the request ended with, also after responses. Cancelled, the model can see that the request is.
        """
        received: list[Answer] = []

        async def respond(response: InferenceResponse) -> None:
            if response.outputs or response.parameters:  # else it says only that it is the last one
                received.append(Answer(response))

        with self._told():
            await self._core.infer_stream(self._request(inputs, more), respond)
        return received

    async def is_ready(self) -> bool:
        return self._core.is_model_ready(self.name)

    def _request(self, inputs: Inputs, more: Mapping[str, Any]) -> InferenceRequest:
        named = dict(more)
        outputs = tuple(named.pop("outputs", ()))
        tensors = [Tensor.from_numpy(name, self._array(name, value)) for name, value in inputs.items()]
        return InferenceRequest(self.name, tensors, requested_outputs=outputs, **named)

    def _array(self, name: str, value: ArrayLike) -> NDArray[Any]:
        if isinstance(value, np.ndarray):
            return value.astype(np.object_) if value.dtype.kind == "U" else value
        datatype = self._datatypes.get(name)
        return np.array(value, dtype=None if datatype is None else DataType[datatype].dtype)

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except ServerError as error:
            raise error from self._failures.cause_of(error)


class Model:
    """`AsyncModel` for tests that do not run on Trio: each method waits, and may be called from any thread."""

    def __init__(self, model: AsyncModel, token: trio.lowlevel.TrioToken) -> None:
        self._model = model
        self._token = token
        self.name = model.name

    @property
    def config(self) -> dict[str, Any]:
        """As `AsyncModel.config`."""
        return trio.from_thread.run_sync(lambda: self._model.config, trio_token=self._token)

    @property
    def statistics(self) -> ModelStatistics:
        """As `AsyncModel.statistics`."""
        return trio.from_thread.run_sync(lambda: self._model.statistics, trio_token=self._token)

    def infer(self, inputs: Inputs, **more: Any) -> Answer:
        """As `AsyncModel.infer`."""
        return self._wait(partial(self._model.infer, inputs, **more))

    def infer_many(self, requests: Sequence[Inputs], **more: Any) -> list[Answer | ServerError]:
        """As `AsyncModel.infer_many`."""
        return self._wait(partial(self._model.infer_many, requests, **more))

    def stream(self, inputs: Inputs, **more: Any) -> list[Answer]:
        """As `AsyncModel.stream`."""
        return self._wait(partial(self._model.stream, inputs, **more))

    def is_ready(self) -> bool:
        return self._wait(self._model.is_ready)

    def _wait(self, work: Callable[[], Awaitable[T]]) -> T:
        return trio.from_thread.run(work, trio_token=self._token)


@asynccontextmanager
async def open_model(
    path: PathLike, *, models: Sequence[PathLike] = (), config: Mapping[str, Any] | None = None
) -> AsyncIterator[AsyncModel]:
    """Load a model in this process, for the time of the block, without a server around it.

    Args:
        path: its directory, as for `trioton run`: with or without version directories and configuration.
        models: others that it needs: those that it calls, or that an ensemble is composed of.
        config: fields of the configuration in Triton's JSON form, to take the place of those of the file.

    Raises:
        ValueError: there is no model at a path.
        ServerError: one does not load; the exception that it raised is the cause.
    """
    wanted, *others = [_find(each) for each in (path, *models)]
    failures = _Failures()
    registry = BackendRegistry({"python": in_process_backend(failures.raised.append)})
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
    path: PathLike, *, models: Sequence[PathLike] = (), config: Mapping[str, Any] | None = None
) -> Iterator[Model]:
    """As `open_model`, for tests that do not run on Trio: its loop runs in a thread of its own."""
    runner = _Runner(partial(open_model, path, models=models, config=config))
    model = runner.start()
    try:
        yield model
    finally:
        runner.stop()


class _Runner:
    """A Trio loop in a thread, for as long as a block lasts."""

    def __init__(self, opened: Callable[[], Any]) -> None:
        self._opened = opened
        self._thread = threading.Thread(target=self._run, name="trioton.testing", daemon=True)
        self._is_decided = threading.Event()
        self._model: Model | None = None
        self._failure: BaseException | None = None
        self._token: trio.lowlevel.TrioToken | None = None
        self._stop = trio.Event()

    def start(self) -> Model:
        self._thread.start()
        try:
            self._is_decided.wait()
        except BaseException:  # an interrupt of the test
            self.stop()
            raise
        if self._model is None:
            assert self._failure is not None
            raise self._failure
        return self._model

    def stop(self) -> None:
        if self._token is not None:
            with suppress(trio.RunFinishedError):
                self._token.run_sync_soon(self._stop.set)
        self._thread.join()

    def _run(self) -> None:
        try:
            trio.run(self._main)
        except BaseException as error:
            self._failure = error
        finally:
            self._is_decided.set()

    async def _main(self) -> None:
        self._token = trio.lowlevel.current_trio_token()
        async with self._opened() as model:
            self._model = Model(model, self._token)
            self._is_decided.set()
            await self._stop.wait()


def model_class(path: PathLike) -> Any:
    """The class `TritonPythonModel` of a model, for a test that makes and calls its object itself.

    Raises:
        ValueError: there is no Python model at the path.
    """
    file = _model_file(_find(path))
    for folder in (file.parent, file.parent.parent):
        if str(folder) not in sys.path:
            sys.path.append(str(folder))
    spec = importlib.util.spec_from_file_location(f"_trioton_test_{abs(hash(file))}", file)
    if spec is None or spec.loader is None or not file.is_file():
        raise ValueError(f"'{path}' has no {file.name}")
    module: ModuleType = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module.TritonPythonModel


def initialize_arguments(path: PathLike, **changes: str) -> dict[str, str]:
    """What `initialize` gets, for a test that makes the model's object itself; `changes` take the place of some."""
    directory = _find(path)
    file = _model_file(directory)
    return {
        "model_config": json.dumps(to_json_form(read_config(directory))),
        "model_instance_kind": "CPU",
        "model_instance_name": f"{directory.name}_0",
        "model_instance_device_id": "0",
        "model_repository": str(directory.path),
        "model_version": "1" if directory.is_flat else file.parent.name,
        "model_name": directory.name,
        **changes,
    }


def _find(path: PathLike) -> ModelDirectory:
    try:
        return find_run_model(Path(path))
    except UsageError as error:
        raise ValueError(str(error)) from None


def _model_file(directory: ModelDirectory) -> Path:
    folder = first_version_directory(directory) or directory.path
    return folder / (read_config(directory).default_model_filename or PYTHON_RUNTIME)


def _override(directory: ModelDirectory, config: Mapping[str, Any] | None) -> LoadParameters:
    if config is None:
        return LoadParameters()
    return LoadParameters(config=json.dumps({**to_json_form(read_config(directory)), **config}))
