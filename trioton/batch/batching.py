"""The configuration of a model that is to run batches of another size than its own says: `--batch`. Blocks."""

from __future__ import annotations

import json
from collections.abc import Sequence

import msgspec

from protocol.errors import InvalidArgument, ServerError
from repository.json_form import to_json_form
from repository.layout import Repository, find_model
from repository.model_config import ModelConfig, ModelDynamicBatching
from repository.pbtxt import parse_pbtxt
from trioton.flags.fields import UsageError


def batched_config(repositories: Sequence[Repository], model: str, size: int) -> str:
    """The model's configuration as JSON, with batches of up to `size` rows, which are joined from rows.

    Raises:
        UsageError: the model has none that can be changed so.
    """
    directory = find_model(repositories, model).models.get(model)
    if directory is None or directory.remote is not None or not directory.config_file.is_file():
        raise UsageError(
            f"--batch needs a config.pbtxt of model '{model}' on this machine, which it changes for the run"
        )
    try:
        config = parse_pbtxt(directory.config_file.read_text(encoding="utf-8"), source=str(directory.config_file))
        return json.dumps(to_json_form(_batched(config, size)))
    except (OSError, UnicodeDecodeError, ServerError) as error:
        raise UsageError(f"--batch: {error}") from None


def _batched(config: ModelConfig, size: int) -> ModelConfig:
    if config.max_batch_size <= 0 or config.is_ensemble or config.sequence_batching is not None:
        raise InvalidArgument(
            f"model '{config.name}' runs no batches that could be joined from rows: its max_batch_size is "
            f"{config.max_batch_size}, or it is an ensemble or has sequences"
        )
    return msgspec.structs.replace(
        config, max_batch_size=size, dynamic_batching=config.dynamic_batching or ModelDynamicBatching()
    )
