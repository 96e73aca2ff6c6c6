"""`trioton repo add`: adds a model to a repository, with a generated configuration."""

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
from repository.text_models import text_tensors
from trioton.flags.fields import Flag, UsageError, filesystem_path, flag, integer, repeatable, rows, switch
from trioton.flags.store import local_path
from trioton.folders import folder_of_word
from trioton.settings import TOOLS
from trioton.tools.adding import Added, add_model
from trioton.tools.conversions_command import ConversionFlags, run_conversions
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
    repository: Path | None = flag(  # noqa: RUF009 (a field, as its neighbours)
        None,
        filesystem_path,
        group=TOOLS,
        metavar="<path>",
        help="The repository, in place of the first word.",
    )
    copy: bool = switch(group=TOOLS, help="Copy the files into the repository, which is done unless --link is given.")
    link: bool = switch(
        group=TOOLS,
        help="Leave the files of a language model where they are: its version has a model.json that names the folder.",
    )
    force: bool = switch(group=TOOLS, help="Replace what is there already.")


def repo_table() -> tuple[Flag, ...]:
    return (*tool_table(AddFlags), *(row for row in rows(ConversionFlags) if row.name != "json"))


def run_repo(words: Sequence[str], environment: Mapping[str, str]) -> int:
    """Add a model; answers the exit code: 1 where a server would not load it, with the reason on stderr, and nothing
    changed.

    Raises:
        UsageError: see `trioton.flags`; there is no model to add, or one is there already.
    """
    if list(words[:1]) == ["conversions"]:
        return run_conversions(words[1:], environment)
    if list(words[:1]) != ["add"]:
        raise UsageError(f"trioton repo knows two words: add and conversions, got {words[0] if words else 'none'}")
    parsed = parse_words(AddFlags, words[1:], environment)
    own = AddFlags(**parsed.own)
    if own.copy and own.link:
        raise UsageError("--copy and --link exclude each other")
    repository, source = _places(parsed.places, own.repository)
    backend = own.backend or parsed.tool.engine
    wishes = Wishes(own.name, own.version, backend, own.max_batch_size, own.config, own.input, own.output, own.link)
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


def _places(words: Sequence[str], repository: Path | None) -> tuple[Path, Path]:
    """The repository and the model, which may also be given as an id of Hugging Face's hub. Raises UsageError."""
    expected = 2 if repository is None else 1
    if len(words) != expected:
        what = "a repository and a model" if repository is None else "a model beside --repository"
        raise UsageError(f"trioton repo add takes {what}, got {len(words)} places: {' '.join(words) or 'none'}")
    source = words[-1]
    return repository or local_path(words[0]), folder_of_word(source) or local_path(source)


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
    names = text_tensors(config)
    if names is not None and names.text_input:
        body = json.dumps({"model": config.name, "prompt": "Once upon a time", "max_tokens": 32})
        lines.append(f"ask it: curl localhost:8000/v1/completions -H 'Content-Type: application/json' -d '{body}'")
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
