"""Composition: an ensemble bound to the models of its steps (composing models), and whether they still fit it.

Flow: model loader → [composition] → ensemble. Models are looked up anew for each step that runs, so that a
composing model can be replaced while its ensembles serve; the manager then has the composition checked again.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from actors.ensemble.graph import EnsembleGraph
from actors.ensemble.validation import check_composition
from actors.instance.readiness import all_ready
from actors.model.servable import FindModel
from protocol.errors import InvalidArgument, NotFound, ServerError, Unavailable
from protocol.messages import LATEST_VERSION
from repository.model_config import EnsembleStep, ModelConfig

logger = logging.getLogger("trioton.ensemble")

# A model as a step names it: its name and its version.
ModelKey: TypeAlias = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Composing:
    """The models of an ensemble's steps, as they are now: of each, however many steps have it, its configuration, and
    whether it takes tensors where they lie on a device."""

    models: Mapping[ModelKey, tuple[ModelConfig, bool]]

    def of_steps(self, steps: Sequence[EnsembleStep]) -> tuple[list[ModelConfig], set[int]]:
        """The configuration of each step's model, and which steps' models take tensors on a device."""
        found = [self.models[step.model_name, step.model_version] for step in steps]
        return [config for config, _ in found], {index for index, (_, is_on_device) in enumerate(found) if is_on_device}


@dataclass(frozen=True, slots=True)
class Composed:
    """What is made of an ensemble and its models. `config` is marked decoupled if a step is; `writers` are the steps
    that write outputs of the ensemble."""

    config: ModelConfig
    graph: EnsembleGraph
    writers: tuple[EnsembleStep, ...]


def find_composing(config: ModelConfig, find: FindModel) -> Composing:
    """Raises InvalidArgument for a model that does not serve."""
    assert config.ensemble_scheduling is not None
    models: dict[ModelKey, tuple[ModelConfig, bool]] = {}
    for step in config.ensemble_scheduling.step:
        key = (step.model_name, step.model_version)
        if key not in models:
            models[key] = _find_step(config, step, find)
    return Composing(models)


def compose(config: ModelConfig, composing: Composing) -> Composed:
    """Judge an ensemble with its models, and make its graph: some 0.1 ms for each step, so for a thread.

    Raises:
        InvalidArgument: the ensemble and the models of its steps do not fit each other.
    """
    assert config.ensemble_scheduling is not None
    steps = config.ensemble_scheduling.step
    configs, on_device = composing.of_steps(steps)
    config = check_composition(config, configs)
    graph = EnsembleGraph(config, configs, on_device=on_device)
    outputs = {output.name for output in config.output}
    writers = (step for step in steps if not outputs.isdisjoint(step.output_map.values()))
    return Composed(config, graph, tuple(writers))


class Composition:
    """The ensemble of a valid configuration. `composing` and `composed` are its models and what `compose` has made of
    them, if it was called before.

    `config` is marked decoupled if a step is. `labels` are those of the ensemble's own label files, and where an output
    has none, those of the composing model that it comes from. `failure` is why the ensemble cannot serve since a
    composing model was replaced.

    Raises:
        InvalidArgument: the ensemble and the models of its steps do not fit each other.
    """

    def __init__(
        self,
        config: ModelConfig,
        find: FindModel,
        labels: Mapping[str, Sequence[str]] | None = None,
        *,
        composing: Composing | None = None,
        composed: Composed | None = None,
    ) -> None:
        self.find = find
        self.failure: ServerError | None = None
        self._own_labels = dict(labels or {})
        self._left_out: set[str] = set()
        self._composing = composing or find_composing(config, find)
        composed = composed or compose(config, self._composing)
        self.config, self.graph, self._writers = composed.config, composed.graph, composed.writers
        self.labels: dict[str, Sequence[str]] = {}
        self._take_labels()

    @property
    def is_ready(self) -> bool:
        """Whether every composing model is."""
        if self.failure is not None:
            return False
        try:
            return all(self.find(name, version).is_ready for name, version in self._composing.models)
        except ServerError:
            return False

    @property
    def queue_takes_timeout(self) -> bool:
        """Whether a composing model limits a request's time in its queue by the request's `timeout`."""
        try:
            return any(self.find(name, version).queue_takes_timeout for name, version in self._composing.models)
        except ServerError:
            return False

    async def check_ready(self) -> bool:
        """As `is_ready`, also asking the composing models themselves."""
        if not self.is_ready:
            return False
        return await all_ready([self.find(name, version).check_ready for name, version in self._composing.models])

    def note_left_out(self, outputs: Sequence[str]) -> None:
        """The models of a request's steps did not return these outputs; each is logged as a warning once, then
        verbosely."""
        for output in outputs:
            level = logging.DEBUG if output in self._left_out else logging.WARNING
            self._left_out.add(output)
            logger.log(
                level,
                "ensemble '%s': composing models did not give output '%s', a response lacks it",
                self.config.name,
                output,
            )

    def check_again(self) -> None:
        """A composing model was replaced: use its new configuration, or note in `failure` why that is impossible.
        Requests in flight go on as they began."""
        try:
            composing = find_composing(self.config, self.find)
            if composing != self._composing:
                composed = compose(self.config, composing)
                if composed.config.is_decoupled != self.config.is_decoupled:
                    raise InvalidArgument(
                        f"ensemble '{self.config.name}' has become decoupled with a composing model, load it again"
                    )
                self.graph, self._composing = composed.graph, composing
            self._take_labels()
            self.failure = None
        except ServerError as error:
            self.failure = Unavailable(f"ensemble '{self.config.name}' does not fit its composing models: {error}")

    def _take_labels(self) -> None:
        """In place, since the model of the ensemble reports this very mapping."""
        self.labels.clear()
        wanted = {output.name for output in self.config.output}
        for step in self._writers:
            labels = self.find(step.model_name, step.model_version).labels
            for output, tensor in step.output_map.items():
                if tensor in wanted and output in labels:
                    self.labels.setdefault(tensor, labels[output])
        self.labels.update(self._own_labels)


def _find_step(config: ModelConfig, step: EnsembleStep, find: FindModel) -> tuple[ModelConfig, bool]:
    try:
        model = find(step.model_name, step.model_version)
        return model.config, model.takes_device_tensors
    except ServerError as error:
        if step.model_version == LATEST_VERSION or not isinstance(error, NotFound):
            raise InvalidArgument(
                f"ensemble '{config.name}' depends on '{step.model_name}' which has no loaded version."
            ) from None
        hint = " (-1 is the latest; where model_version is left out it is 0)" if step.model_version == 0 else ""
        raise InvalidArgument(
            f"ensemble '{config.name}' depends on '{step.model_name}' whose required version {step.model_version} "
            f"is not loaded.{hint}"
        ) from None
