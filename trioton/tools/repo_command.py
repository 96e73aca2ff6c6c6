"""`trioton repo add`: adds a model file to a repository, with a generated configuration."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import trio

from backends.registry import BackendRegistry
from protocol.errors import ServerError
from repository.json_form import to_json_form
from repository.layout import CONFIG_FILE
from repository.model_config import ModelConfig, ModelInput, ModelOutput
from trioton.flags import Flag, UsageError, filesystem_path, flag, integer, repeatable, switch
from trioton.settings import TOOLS
from trioton.store_flags import local_path
from trioton.tools.adding import Added, add_model
from trioton.tools.flags import OutputFlags, parse_words, tool_table
from trioton.tools.mends import mend_of
from trioton.tools.model_sources import Wishes, given_input, given_output, recognise
from trioton.tools.quiet import without_log


@dataclass(frozen=True, slots=True, kw_only=True)
class AddFlags(OutputFlags):
    """What `trioton repo add` can be told."""

    name: str = flag("", str, group=TOOLS, metavar="<name>", help="The model's name; where absent, that of the file.")
    version: int | None = flag(
        None,
        integer(1, 2**63 - 1),
        group=TOOLS,
        metavar="<integer>",
        help="The version that it becomes; where absent, 1. A model that is there already gets it beside its others.",
    )
    backend: str = flag(
        "", str, group=TOOLS, metavar="<name>", help="What runs it; where absent, what such files are usually for."
    )
    max_batch_size: int | None = flag(
        None,
        integer(0),
        group=TOOLS,
        metavar="<integer>",
        help="The largest batch; 0 for tensors without a batch dimension. Where absent, what the model allows.",
    )
    input: tuple[ModelInput, ...] = repeatable(
        given_input,
        group=TOOLS,
        metavar="<name>:<type>:<dims>",
        help="An input of a model that does not tell its own (TorchScript): INPUT__0:FP32:3,224,224, without the batch "
        "dimension where --max-batch-size is not 0. May be given several times.",
    )
    output: tuple[ModelOutput, ...] = repeatable(
        given_output, group=TOOLS, metavar="<name>:<type>:<dims>", help="The same of an output: OUTPUT__0:FP32:1000."
    )
    config: Path | None = flag(  # noqa: RUF009 (a field, as its neighbours)
        None, filesystem_path, group=TOOLS, metavar="<path>", help="A config.pbtxt for it; where absent, one is made."
    )
    force: bool = switch(group=TOOLS, help="Replace what is there already.")


def repo_table() -> tuple[Flag, ...]:
    return tool_table(AddFlags)


def run_repo(words: Sequence[str], environment: Mapping[str, str]) -> int:
    """Add a model; answers the exit code: 1 where a server would not load it, with the reason on stderr, and nothing
    changed.

    Raises:
        UsageError: see `trioton.flags`; there is no model to add, or one is there already.
    """
    if list(words[:1]) != ["add"]:
        raise UsageError(f"trioton repo knows one word: add, got {words[0] if words else 'none'}")
    parsed = parse_words(AddFlags, words[1:], environment)
    if len(parsed.places) != 2:
        raise UsageError(
            f"trioton repo add takes a repository and a model, got {len(parsed.places)} places: "
            f"{' '.join(parsed.places) or 'none'}"
        )
    own = AddFlags(**parsed.own)
    repository, source = map(local_path, parsed.places)
    wishes = Wishes(own.name, own.version, own.backend, own.max_batch_size, own.config, own.input, own.output)
    with without_log():
        given = recognise(source, wishes, BackendRegistry(directories=parsed.tool.backend_directory))

        async def add() -> Added:
            return await add_model(repository, given, parsed.tool, replaces=own.force)

        try:
            added = trio.run(add)
        except ServerError as error:
            mend = mend_of(error.message)
            print(f"'{source}' is not added, a server would not load it: {error}", file=sys.stderr)
            if mend:
                print(f"mend: {mend}", file=sys.stderr)
            return 1
    print(json.dumps(_as_json(added), indent=2) if own.json else _as_text(repository, added))
    return 0


def _as_json(added: Added) -> Mapping[str, object]:
    return {
        "name": added.config.name,
        "directory": str(added.directory),
        "versions": list(added.versions),
        "config": to_json_form(added.config),
    }


def _as_text(repository: Path, added: Added) -> str:
    config = added.config
    versions = f"version{'s' if len(added.versions) > 1 else ''} {', '.join(map(str, added.versions))}"
    lines = [f"added '{config.name}', {versions}: {added.directory}"]
    lines += [f"  {line}" for line in _summary(config)]
    lines.append(f"its configuration: {added.directory / CONFIG_FILE}")
    lines.append(f"serve it: trioton serve --model-repository={repository}")
    return "\n".join(lines)


def _summary(config: ModelConfig) -> list[str]:
    """For whom the model is, and what it takes and gives."""
    backend = config.backend or config.platform
    lines = [f"{backend}, " + (f"batches of up to {config.max_batch_size}" if config.is_batching else "no batches")]
    for which, tensors in (("input", config.input), ("output", config.output)):
        lines += (
            f"{which} {tensor.name}: {tensor.data_type.value} [ {', '.join(map(str, tensor.dims))} ]"
            for tensor in tensors
        )
    return lines
