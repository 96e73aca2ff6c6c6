"""Checks of one model, its configuration and the files that it names; part of `trioton doctor`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import msgspec
import trio

from actors.lifecycle.loader import ModelLoader
from protocol.core import LoadParameters
from protocol.errors import ServerError
from repository.backend_fields import fill_backend_fields
from repository.faults import all_faults
from repository.initial_state import read_initial_states
from repository.instance_groups import NO_GPUS
from repository.labels import read_labels
from repository.layout import ModelDirectory, select_versions, version_directories
from repository.loader import config_file
from repository.model_config import ModelConfig
from repository.pbtxt import parse_on
from repository.traffic_split import is_split
from repository.unsupported import refuse_unbuilt
from repository.validation import normalise
from repository.warmup_data import warmup_samples
from trioton.tools.findings import Finding, Level
from trioton.tools.layout_checks import directory_findings, file_findings
from trioton.tools.mends import mend_of
from trioton.tools.prepared import PreparedModels

_replace = msgspec.structs.replace


@dataclass(frozen=True, slots=True)
class ModelCheck:
    """The check of one model among all. Nothing is told twice."""

    directory: ModelDirectory
    models: PreparedModels

    async def findings(self) -> list[Finding]:
        found = await trio.to_thread.run_sync(lambda: [*directory_findings(self.directory), *self._parse_findings()])
        given = await self._config_as_read()
        if given is not None:
            found += await trio.to_thread.run_sync(self._config_findings, given)
        config, error = await self._prepared()
        if config is not None:
            found += await trio.to_thread.run_sync(lambda: list(file_findings(self.directory, config)))
            found += _label_findings(self.directory, config)
            if not any(finding.level is Level.ERROR for finding in found):
                found += await self._file_mismatches(config)
        elif given is not None:
            found += await trio.to_thread.run_sync(lambda: list(file_findings(self.directory, given)))
        if error is not None and not any(finding.level is Level.ERROR for finding in found):
            found.append(self._finding(error))  # what only the whole way of a server shows
        return list(dict.fromkeys(found))

    def _finding(self, error: ServerError) -> Finding:
        return Finding(error.message, mend_of(error.message, self.models.directories))

    def _parse_findings(self) -> list[Finding]:
        path = config_file(self.directory, self.models.loader.config_name)
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            return []  # the server's own reading says it
        return [self._finding(error) for error in parse_on(text, source=str(path))[1]]

    async def _config_as_read(self) -> ModelConfig | None:
        """The configuration with what stage 1 of completion knows; of one with unknown names the rest."""
        try:
            return await self.models.loader.read_config(self.directory, LoadParameters())
        except ServerError:
            path = config_file(self.directory, self.models.loader.config_name)
            try:
                config, _ = parse_on(await trio.Path(path).read_text(encoding="utf-8"), source=str(path))
            except (OSError, UnicodeDecodeError):
                return None
            if config is None:
                return None
            try:
                named = _replace(config, name=self.directory.name)
                return fill_backend_fields(named, self.directory, self.models.loader.engines)
            except ServerError:
                return _replace(config, name=self.directory.name)

    def _config_findings(self, config: ModelConfig) -> list[Finding]:
        """Every fault that the configuration shows by itself."""
        if is_split(config):
            return []
        errors = _broken([partial(refuse_unbuilt, config)])
        loader = self.models.loader
        backend = None
        if config.backend:
            try:
                backend = loader.find_backend(self.directory, config)
            except ServerError as error:
                errors.append(error)
        try:
            config = normalise(
                config,
                gpus=loader.gpus,
                backend_default_cpu_count=1 if backend is None else backend.default_cpu_instance_count,
                backend_prefers_gpu=False if backend is None else backend.prefers_gpu,
            )
        except ServerError as error:
            errors.append(error)
            config = _replace(config, instance_group=())
            config = normalise(config, gpus=NO_GPUS, backend_default_cpu_count=1, backend_prefers_gpu=False)
        faults = all_faults(config)
        errors += faults or _broken(_reading(self.directory, config))
        return [self._finding(error) for error in errors]

    async def _prepared(self) -> tuple[ModelConfig | None, ServerError | None]:
        """The completed configuration, or why a server would not have it."""
        try:
            return (await self.models.get(self.directory.name))[-1].config, None
        except ServerError as error:
            return None, error

    async def _file_mismatches(self, config: ModelConfig) -> list[Finding]:
        """Each served version's files against the configuration."""
        if config.is_ensemble or is_split(config):
            return []
        loader: ModelLoader = self.models.loader
        backend = await trio.to_thread.run_sync(loader.find_backend, self.directory, config)
        available = await trio.to_thread.run_sync(version_directories, self.directory)
        found: list[Finding] = []
        for version in select_versions(config.version_policy, available, model=self.directory.name):
            source = loader.source(self.directory, config, version, backend)
            try:
                await backend.check_model(source)
                found += [
                    Finding(f"version {version}: {text}", level=Level.WARNING)
                    for text in await backend.model_warnings(source)
                ]
            except ServerError as error:
                finding = self._finding(error)
                found.append(Finding(f"version {version}: {finding.text}", finding.mend))
        return found


def _reading(directory: ModelDirectory, config: ModelConfig) -> Iterator[Callable[[], object]]:
    """One reading for each file that a valid configuration names."""
    for output in config.output:
        yield partial(read_labels, directory, _replace(config, output=(output,)))
    for sample in config.model_warmup:
        yield partial(warmup_samples, _replace(config, model_warmup=(sample,)), directory.path)
    if (sequences := config.sequence_batching) is not None:
        for state in sequences.state:
            alone = _replace(config, sequence_batching=_replace(sequences, state=(state,)))
            yield partial(read_initial_states, directory.path, alone)


def _broken(judges: Iterator[Callable[[], object]] | list[Callable[[], object]]) -> list[ServerError]:
    found: list[ServerError] = []
    for judge in judges:
        try:
            judge()
        except ServerError as error:
            found.append(error)
    return found


def _label_findings(directory: ModelDirectory, config: ModelConfig) -> list[Finding]:
    """Labels that cannot be one for each class."""
    found: list[Finding] = []
    for name, labels in read_labels(directory, config).items():
        (output,) = [output for output in config.output if output.name == name]
        classes = math.prod(output.dims)
        if -1 not in output.dims and len(labels) != classes:
            found.append(
                Finding(
                    f"label file '{output.label_filename}' has {len(labels)} labels, but output '{name}' has {classes} "
                    "classes",
                    "give each class a line",
                    Level.WARNING,
                )
            )
    return found
