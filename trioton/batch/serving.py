"""The server of a run, without edges, and the run on it, until its end or a signal.

SIGINT and SIGTERM end the run in order, with a checkpoint; a second one ends the process at once.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import trio

from actors.jobs.data.places import InputFile, Place
from protocol.core import LoadParameters
from protocol.errors import ServerError
from protocol.http.codec.job_rows import RowDecoder
from protocol.http.openai.batches.execution import LineExecutor
from protocol.jobs.model_inputs import ModelInputs
from protocol.jobs.source import DataFormat
from trioton.batch.attempts import Attempts, ModelUnavailable
from trioton.batch.flags import BatchFlags
from trioton.batch.input import Input
from trioton.batch.openai_lines import Routes
from trioton.batch.output import FolderOutput, LinesOutput
from trioton.batch.places import OutputPlace, States
from trioton.batch.progress import ProgressLine
from trioton.batch.run import Run
from trioton.batch.state import Identity, State, UnusableState
from trioton.batch.window import Window
from trioton.batch_service import line_executor
from trioton.edges import services_of_batches
from trioton.process import STOP_SIGNALS, end_process
from trioton.server import ExitTimeoutExpired, Server, StartError
from trioton.settings import Settings

# So many rows are in flight at most where nothing is said, and where a model's room is not known.
_MOST_IN_FLIGHT = 1024
_UNKNOWN_IN_FLIGHT = 64
# Of results that wait for those of rows before them.
_WINDOW_BYTES = 256 << 20
_LEAST_WINDOW = 1024


@dataclass(frozen=True, slots=True)
class BatchJob:
    """What is to be run. `config` is the model's configuration where it is not to have its own."""

    flags: BatchFlags
    settings: Settings
    model: str
    input: Place
    input_format: DataFormat
    output: OutputPlace
    identity: Identity
    environment: Mapping[str, str]
    config: str | None = None


class _Server(Server):
    """One that runs lines of OpenAI's batch files, too, without an edge."""

    def line_executor(self) -> LineExecutor:
        services = services_of_batches(self._parts.shared())
        return line_executor(self.settings, self.core, services)


class Serving:
    """One run. `signal` is the one that has ended it, 0 for none."""

    def __init__(self, job: BatchJob, states: States, state: State, files: Sequence[InputFile]) -> None:
        self.signal = 0
        self._job, self._states, self._state, self._files = job, states, state, files
        settings = job.settings if job.config is None else replace(job.settings, load_model=())
        self._server = _Server(settings)
        self._whole = trio.CancelScope()
        self._run: Run | None = None
        self._failure: Exception | None = None

    async def run(self) -> State:
        """Returns the last state.

        Raises:
            StartError: the model does not load.
            ModelUnavailable, UnusableState, ServerError, OSError: as `Run.run`.
        """
        with trio.open_signal_receiver(*STOP_SIGNALS) as signals:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._stop_on_signals, signals)
                async with trio.open_nursery() as serving:
                    with self._whole:
                        try:
                            await serving.start(self._serve)
                            await self._load()
                            await self._run_rows()
                        except (StartError, ModelUnavailable, UnusableState, ServerError, OSError) as error:
                            self._failure = error
                    self._server.stop()
                nursery.cancel_scope.cancel()
        if self._failure is not None:
            raise self._failure
        return self._state

    async def _load(self) -> None:
        """Raises StartError, ServerError."""
        models, name = self._server.models, self._job.model
        if self._job.config is not None:
            await models.load_model(name, LoadParameters(self._job.config))
        try:
            models.is_decoupled(name, self._job.identity.version)
        except ServerError as error:
            reasons = [entry.reason for entry in await models.repository_index() if entry.name == name and entry.reason]
            raise StartError(f"model '{name}' cannot be run: {reasons[0] if reasons else error}") from None

    async def _serve(self, *, task_status: trio.TaskStatus[None]) -> None:
        with suppress(ExitTimeoutExpired):  # the model hangs; what there is of results is written
            await self._server.run(task_status=task_status)

    async def _stop_on_signals(self, signals: AsyncIterator[int]) -> None:
        self.signal = await anext(signals)
        if self._run is None:
            self._whole.cancel()
        else:
            self._run.stop()
        end_process(128 + await anext(signals))

    async def _run_rows(self) -> None:
        job, models = self._job, self._server.models
        version = job.identity.version
        is_batched = models.model_config(job.model, version).get("max_batch_size", 0) > 0
        tensors = [
            (each.name, each.datatype, tuple(each.shape)) for each in models.model_metadata(job.model, version).inputs
        ]
        inputs = ModelInputs(job.model, tensors, is_batched=is_batched)
        routes = await self._routes()
        rows = Input(
            self._files,
            job.input_format,
            RowDecoder(inputs, version, job.settings.http_max_input_size),
            has_routes=routes is not None,
            start=self._state.position,
            shard=job.flags.shard,
            limit=job.flags.limit,
        )
        attempts = Attempts(models, models.is_decoupled(job.model, version), job.flags.retry_secs, routes)
        try:
            with job.output.results(self._state, job.environment, is_batched=is_batched) as results:
                await self._run_to(rows, results, attempts)
        finally:
            rows.close()

    async def _routes(self) -> Routes | None:
        """OpenAI's, where the model has text and they would ask the version that is wanted."""
        core, job = self._server.core, self._job
        try:
            await core.text_model(job.model)
        except ServerError:
            return None
        if job.flags.version is not None:
            return None
        return Routes(core, self._server.line_executor(), job.model, job.settings.openai().lora_separator)

    async def _run_to(self, rows: Input, results: LinesOutput | FolderOutput, attempts: Attempts) -> None:
        job = self._job
        in_flight = job.flags.in_flight or self._usual_in_flight()
        window = Window(max(4 * in_flight, _LEAST_WINDOW), _WINDOW_BYTES, self._state.position)
        run = self._run = Run(rows, results, self._states, attempts, self._state, in_flight=in_flight, window=window)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_show, run)
                await self._complete(run)
                nursery.cancel_scope.cancel()
        finally:
            self._run = None
            self._state = run.state

    async def _complete(self, run: Run) -> None:
        try:
            await run.run()
        except (ModelUnavailable, ServerError, OSError) as error:  # told outside of all nurseries
            self._failure = error

    def _usual_in_flight(self) -> int:
        """So many that while a batch runs the next one is full, and the one after it too."""
        capacity = self._server.core.load_of(self._job.model).capacity
        return min(3 * capacity, _MOST_IN_FLIGHT) if capacity else _UNKNOWN_IN_FLIGHT


async def _show(run: Run) -> None:
    """Progress, until it is cancelled."""
    line = ProgressLine()
    line.begin(run.progress(), trio.current_time())
    try:
        while True:
            await trio.sleep(line.seconds)
            line.show(run.progress(), trio.current_time())
    finally:
        line.clear()
