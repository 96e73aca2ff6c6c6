"""Inputs from the warm-up samples of a model's configuration."""

from __future__ import annotations

import json
from pathlib import Path

from protocol.errors import ServerError
from repository.json_form import from_json_form
from repository.warmup_data import warmup_samples
from trioton.perf.caller import DataError, ModelDescription
from trioton.perf.data.dataset import Dataset, Step

_NOWHERE = Path("no model directory was given")


def read_warmup(model: ModelDescription, directory: Path | None) -> Dataset:
    """A step for each sample. `directory` is the model's, where samples name files of it.

    Raises:
        DataError: the configuration has no samples, or they cannot be read.
    """
    entries = model.config.get("model_warmup") or ()
    if not entries:
        raise DataError(f"model '{model.name}' has no warm-up samples in its configuration")
    try:
        config = from_json_form(json.dumps(model.config), what=f"configuration of model '{model.name}'")
        samples = warmup_samples(config, directory or _NOWHERE)
    except ServerError as error:
        hint = "" if directory else "; where samples are files, give their model: --input-data warmup:<directory>"
        raise DataError(f"{error}{hint}") from None
    if not samples:
        raise DataError(f"all warm-up samples of model '{model.name}' have batch_size 0")
    rows = 1 if model.max_batch_size else None
    steps = tuple(Step(tensors={each.name: each for each in sample.tensors}, rows=rows) for sample in samples)
    return Dataset((steps,))
