"""Engine arguments of vLLM, from a model's options: those of `model.json` are as JSON has them, those of `config.pbtxt`
are texts, which vLLM reads as on its own command line."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, NoReturn

from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.platforms import current_platform
from vllm.utils.argparse_utils import FlexibleArgumentParser

from .engine import EngineModel

_FLAGS = {"true": "--", "false": "--no-"}


class _Parser(FlexibleArgumentParser):  # type: ignore[misc]  # of an unknown type
    def error(self, message: str) -> NoReturn:
        raise ValueError(message)


def engine_arguments(model: EngineModel) -> AsyncEngineArgs:
    """Raises ValueError for an option that vLLM does not have, or a text that it cannot read."""
    known = {each.name for each in dataclasses.fields(AsyncEngineArgs)}
    asked: dict[str, Any] = {"model": model.directory, "enable_lora": bool(model.adapters)}
    if model.tokenizer:
        asked["tokenizer"] = model.tokenizer
    if model.context_length:
        asked["max_model_len"] = model.context_length
    texts: dict[str, str] = {}
    for name, value in model.options.items():
        if name not in known:
            raise ValueError(f"vLLM has no option '{name}'")
        if isinstance(value, str):
            texts[name] = value
        else:
            asked[name] = value
    arguments = AsyncEngineArgs(**asked, **_read(texts))
    if not current_platform.is_sleep_mode_available():
        arguments.enable_sleep_mode = False  # which would fail the load; the server ends the process in its place
    return arguments


def _read(texts: Mapping[str, str]) -> dict[str, Any]:
    """Values of options that were given as texts."""
    if not texts:
        return {}
    line = []
    for name, text in texts.items():
        option = name.replace("_", "-")
        flag = _FLAGS.get(text.lower())
        line.append(f"--{option}={text}" if flag is None else f"{flag}{option}")
    parsed = AsyncEngineArgs.add_cli_args(_Parser()).parse_args(line)
    return {name: getattr(parsed, name) for name in texts}
