"""Options of a model with an engine: `parameters` of its configuration, and the files `model.json` and
`multi_lora.json` of its version, as Triton's vLLM backend has them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from backends.engines.admission import AdmissionLimits
from backends.interface import ModelSource
from backends.parameters import parse_int
from backends.python.environments.environment import PARAMETER, VARIABLE_PREFIX, WORKING_DIRECTORY
from protocol.errors import InvalidArgument

ENGINE_ARGUMENTS, ADAPTERS = "model.json", "multi_lora.json"
# Requests that may wait for an engine, and their tokens, where the configuration does not say.
DEFAULT_QUEUED_REQUESTS = 4096
DEFAULT_QUEUED_TOKENS = 1 << 22

# The parameter for the seconds that a step may take, until its engine is taken for hung and started anew; 0 for ever.
STEP_TIMEOUT = "step_timeout_seconds"
DEFAULT_STEP_TIMEOUT = 600.0

_LIMITS = {
    "max_inflight_requests": 0,
    "max_inflight_tokens": 0,
    "max_queue_requests": DEFAULT_QUEUED_REQUESTS,
    "max_queue_tokens": DEFAULT_QUEUED_TOKENS,
}
_OF_SERVER = frozenset(
    {
        *(PARAMETER, WORKING_DIRECTORY, "REPORT_CUSTOM_METRICS", "ENABLE_VLLM_HEALTH_CHECK"),
        *(
            "tensor_names",
            "tokenizer",
            "chat_template",
            "tool_call_parser",
            "reasoning_parser",
            "openai_text_input",
            "openai_text_output",
        ),
        *("model", "max_model_len", "disable_log_stats", "memory_bytes"),
        *_LIMITS,
        STEP_TIMEOUT,
    }
)


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """`directory` has the engine's files, `options` are the engine's own; `tokenizer` names the folder of another
    tokenizer than theirs. `context_length` is 0 where it is not set."""

    directory: Path
    options: Mapping[str, Any]
    adapters: Mapping[str, str]
    context_length: int
    limits: AdmissionLimits
    tokenizer: str = ""
    step_timeout: float = 0.0

    @classmethod
    def of(cls, source: ModelSource) -> EngineSettings:
        """Read the configuration and the files. Blocks. Raises InvalidArgument."""
        place = f"model '{source.name}'"
        arguments = _read_object(source.version_directory / ENGINE_ARGUMENTS, place)
        given: dict[str, Any] = {
            **arguments,
            **{key: value.string_value for key, value in source.config.parameters.items()},
        }
        options = {
            key: value
            for key, value in given.items()
            if key not in _OF_SERVER and not key.startswith((VARIABLE_PREFIX, "openai_"))
        }
        limits = {key: _number(given.get(key, default), f"{place}: {key}") for key, default in _LIMITS.items()}
        return cls(
            _directory(source, str(given.get("model", ""))),
            options,
            _adapters(source, place) if not arguments or str(arguments.get("enable_lora")).lower() == "true" else {},
            _number(given.get("max_model_len", 0), f"{place}: max_model_len"),
            AdmissionLimits(*limits.values()),
            str(given.get("tokenizer", "")),
            _seconds(given.get(STEP_TIMEOUT, DEFAULT_STEP_TIMEOUT), f"{place}: {STEP_TIMEOUT}"),
        )


def _number(value: Any, place: str) -> int:
    found = parse_int(str(value), place=place)
    if found < 0:
        raise InvalidArgument(f"{place} must be at least 0, got {found}")
    return found


def _seconds(value: Any, place: str) -> float:
    try:
        found = float(value)
    except (TypeError, ValueError):
        found = -1.0
    if not 0 <= found < math.inf:
        raise InvalidArgument(f"{place} must be a number of seconds, 0 or more, got {value!r}")
    return found


def _directory(source: ModelSource, named: str) -> Path:
    """Where the engine's files lie: what `model` names, from the version's folder on, or that folder."""
    version = source.version_directory.absolute()
    if not named:
        return version
    for base in (version, source.model_directory.absolute()):
        if (base / named).is_dir():
            return (base / named).resolve()
    raise InvalidArgument(f"model '{source.name}': 'model' names '{named}', which is no folder at '{version}'")


def _adapters(source: ModelSource, place: str) -> dict[str, str]:
    """The adapters' folders by their names; relative ones from the version's folder on."""
    found = _read_object(source.version_directory / ADAPTERS, place)
    for name, path in found.items():
        if not isinstance(path, str):
            raise InvalidArgument(f"{place}: {ADAPTERS}: '{name}' must be a path, got {type(path).__name__}")
    version = source.version_directory.absolute()
    return {name: str(version / path) for name, path in found.items()}


def _read_object(path: Path, place: str) -> dict[str, Any]:
    """A JSON object; an empty one where there is no such file."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise InvalidArgument(f"{place}: cannot read '{path}': {error.strerror}") from None
    try:
        found = msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidArgument(f"{place}: '{path}' is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise InvalidArgument(f"{place}: '{path}' must have a JSON object")
    return found
