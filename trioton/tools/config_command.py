"""`trioton config`: prints the completed configuration that a server would use for a model."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence

import trio

from protocol.errors import ServerError
from repository.json_form import to_json_form
from repository.layout import ModelDirectory, find_models
from repository.model_config import ModelConfig
from repository.pbtxt import format_pbtxt
from trioton.flags.fields import Flag, UsageError
from trioton.flags.store import local_path
from trioton.run import find_run_model
from trioton.tools.flags import OutputFlags, ToolFlags, parse_words, tool_table
from trioton.tools.prepared import PreparedModels, model_loader
from trioton.tools.quiet import without_log


def config_table() -> tuple[Flag, ...]:
    return tool_table(OutputFlags)


def run_config(words: Sequence[str], environment: Mapping[str, str]) -> int:
    """Print it; answers the exit code: 1 where a server would not load the model, with the reason on stderr.

    Raises:
        UsageError: see `trioton.flags`; there is no model.
    """
    parsed = parse_words(OutputFlags, words, environment)
    if len(parsed.places) != 1:
        raise UsageError(
            f"trioton config takes one model directory, got {len(parsed.places)}: {' '.join(parsed.places) or 'none'}"
        )
    directory = find_run_model(local_path(parsed.places[0]))
    try:
        with without_log():
            config = trio.run(completed_config, directory, parsed.tool)
    except ServerError as error:
        print(f"a server would not load model '{directory.name}': {error}", file=sys.stderr)
        return 1
    print(json.dumps(to_json_form(config), indent=2) if parsed.own.get("json") else format_pbtxt(config).rstrip("\n"))
    return 0


async def completed_config(directory: ModelDirectory, flags: ToolFlags) -> ModelConfig:
    """The configuration of the newest version to be served. What an ensemble needs is looked for beside it.

    Raises:
        ServerError: a server would not load the model; the text says why.
    """
    beside = find_models((directory.repository,)).models
    models = PreparedModels(await model_loader(flags), {**beside, directory.name: directory})
    return (await models.get(directory.name))[-1].config
