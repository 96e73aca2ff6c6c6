"""Composition: an ensemble bound to the models of its steps (composing models), and whether they still fit it.

Flow: model loader → [composition] → ensemble. Models are looked up anew for each step that runs, so that a
composing model can be replaced while its ensembles serve; the manager then has the composition checked again.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from actors.ensemble.graph import EnsembleGraph
from actors.ensemble.validation import check_composition
from actors.instance.readiness import all_ready
from actors.model.servable import FindModel
from protocol.errors import InvalidArgument, NotFound, ServerError, Unavailable
from protocol.messages import LATEST_VERSION
from repository.model_config import EnsembleStep, ModelConfig

logger = logging.getLogger("trioton.ensemble")


class Composition:
    """The ensemble of a valid configuration.

    `config` is marked decoupled if a step is. `labels` are those of the ensemble's own label files, and where an output
    has none, those of the composing model that it comes from. `failure` is why the ensemble cannot serve since a
    composing model was replaced.

    Raises:
        InvalidArgument: the ensemble and the models of its steps do not fit each other.
    """

    def __init__(self, config: ModelConfig, find: FindModel, labels: Mapping[str, Sequence[str]] | None = None) -> None:
        assert config.ensemble_scheduling is not None
        self.find = find
        self.failure: ServerError | None = None
        self._steps = config.ensemble_scheduling.step
        self._own_labels = dict(labels or {})
        self._left_out: set[str] = set()
        self._composing = self._find_all(config)
        self.config = check_composition(config, self._composing)
        self.graph = self._graph(self.config, self._composing)
        self.labels: dict[str, Sequence[str]] = {}
        self._take_labels()

    @property
    def is_ready(self) -> bool:
        """Whether every composing model is."""
        if self.failure is not None:
            return False
        try:
            return all(self.find(step.model_name, step.model_version).is_ready for step in self._steps)
        except ServerError:
            return False

    @property
    def queue_takes_timeout(self) -> bool:
        """Whether a composing model limits a request's time in its queue by the request's `timeout`."""
        try:
            return any(self.find(step.model_name, step.model_version).queue_takes_timeout for step in self._steps)
        except ServerError:
            return False

    async def check_ready(self) -> bool:
        """As `is_ready`, also asking the composing models themselves."""
        if not self.is_ready:
            return False
        models = {(step.model_name, step.model_version) for step in self._steps}
        return await all_ready([self.find(name, version).check_ready for name, version in models])

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
            composing = self._find_all(self.config)
            if composing != self._composing:
                if check_composition(self.config, composing).is_decoupled != self.config.is_decoupled:
                    raise InvalidArgument(
                        f"ensemble '{self.config.name}' has become decoupled with a composing model, load it again"
                    )
                self.graph = self._graph(self.config, composing)
                self._composing = composing
            self._take_labels()
            self.failure = None
        except ServerError as error:
            self.failure = Unavailable(f"ensemble '{self.config.name}' does not fit its composing models: {error}")

    def _graph(self, config: ModelConfig, composing: Sequence[ModelConfig]) -> EnsembleGraph:
        on_device = {
            index
            for index, step in enumerate(self._steps)
            if self.find(step.model_name, step.model_version).takes_device_tensors
        }
        return EnsembleGraph(config, composing, on_device=on_device)

    def _find_all(self, config: ModelConfig) -> list[ModelConfig]:
        return [self._find_step(config, step) for step in self._steps]

    def _find_step(self, config: ModelConfig, step: EnsembleStep) -> ModelConfig:
        try:
            return self.find(step.model_name, step.model_version).config
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

    def _take_labels(self) -> None:
        """In place, since the model of the ensemble reports this very mapping."""
        self.labels.clear()
        wanted = {output.name for output in self.config.output}
        for step in self._steps:
            labels = self.find(step.model_name, step.model_version).labels
            for output, tensor in step.output_map.items():
                if tensor in wanted and output in labels:
                    self.labels.setdefault(tensor, labels[output])
        self.labels.update(self._own_labels)
