# ruff: noqa: RUF009 (the defaults are fields, made by functions)
"""`trioton openai-frontend`: a server by the flags of Triton's OpenAI frontend (`python3 openai_frontend/main.py …`).

Its flags stand beside those of `trioton serve`, which are taken, too. Each becomes a setting, or is named where it has
no effect here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trioton.debug_delays import debug_delays
from trioton.flags.fields import (
    INTEGER,
    PATH,
    STRING,
    Flag,
    UsageError,
    choice,
    flag,
    integer,
    port,
    read_environment,
    read_words,
    rows,
    switch,
)
from trioton.flags.openai import chat_template, tokenizer_folder, tool_parser
from trioton.settings import FRONTEND, Settings

_THREE_WORDS = "--openai-restricted-api"
_PORT, _MAX_TOKENS = 9000, 16
# What is logged at each level of uvicorn's.
_LOG_LEVELS: Mapping[str, Mapping[str, Any]] = {
    "trace": {"log_verbose": 1},
    "debug": {"log_verbose": 1},
    "info": {},
    "warning": {"log_info": False},
    "error": {"log_info": False, "log_warning": False},
    "critical": {"log_info": False, "log_warning": False, "log_error": False},
}
_NO_EFFECT: Mapping[str, str] = {
    "backend": "how a model is asked follows from its tensors",
    "max_tool_call_parse_bytes": "calls of tools are parsed as they come, in time that does not grow",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontendFlags:
    """What the program takes besides a server's flags. None stands for what was not given."""

    tokenizer: Path | None = flag(
        None,
        tokenizer_folder,
        group=FRONTEND,
        metavar=PATH,
        help="As --openai-tokenizer. A folder: names on a hub are not fetched.",
    )
    backend: str = flag(
        "auto",
        choice("auto", "vllm", "tensorrtllm"),
        group=FRONTEND,
        metavar="{auto,vllm,tensorrtllm}",
        help=f"Without effect: {_NO_EFFECT['backend']}.",
    )
    lora_separator: str = flag("", str, group=FRONTEND, metavar=STRING, help="As --openai-lora-separator.")
    host: str = flag("", str, group=FRONTEND, metavar=STRING, help="The address that all services listen on.")
    tool_call_parser: str = flag(
        "",
        tool_parser,
        group=FRONTEND,
        metavar="<parser>",
        help="As --openai-tool-call-parser.",
    )
    max_tool_call_parse_bytes: int = flag(
        131072,
        integer(1),
        group=FRONTEND,
        metavar=INTEGER,
        help=f"Without effect: {_NO_EFFECT['max_tool_call_parse_bytes']}.",
    )
    chat_template: str = flag("", chat_template, group=FRONTEND, metavar=PATH, help="As --openai-chat-template.")
    default_max_tokens: int = flag(
        _MAX_TOKENS, integer(0), group=FRONTEND, metavar=INTEGER, help="As --openai-default-max-tokens."
    )
    enable_kserve_frontends: bool = switch(group=FRONTEND, help="Serve the inference protocol, too, by HTTP and gRPC.")
    kserve_http_port: int = flag(8000, port, group=FRONTEND, metavar=INTEGER, help="As --http-port.")
    kserve_grpc_port: int = flag(8001, port, group=FRONTEND, metavar=INTEGER, help="As --grpc-port.")
    tritonserver_log_verbose_level: int = flag(0, integer(0), group=FRONTEND, metavar=INTEGER, help="As --log-verbose.")
    uvicorn_log_level: str = flag(
        "info",
        choice(*_LOG_LEVELS),
        group=FRONTEND,
        metavar=f"{{{','.join(_LOG_LEVELS)}}}",
        help="Show messages of this level and those above.",
    )


def frontend_table() -> tuple[Flag, ...]:
    """The flags of the command."""
    return (*rows(FrontendFlags), *rows(Settings))


def frontend_settings(words: Sequence[str], environment: Mapping[str, str]) -> tuple[Settings, list[str]]:
    """A server's settings, and sentences for the log on what has no effect. Flags of `trioton serve` win over the
    program's own, words over the environment.

    Raises:
        UsageError: see `trioton.flags` and `Settings`; a word that is no flag.
    """
    table = frontend_table()
    places, given = read_words(table, _joined(words))
    if places:
        raise UsageError(f"Unexpected argument: {places[0]}")
    names = {row.field_name for row in rows(FrontendFlags)}
    own = FrontendFlags(**{name: value for name, value in given.items() if name in names})
    others = {name: value for name, value in given.items() if name not in names}
    taken = read_environment(rows(Settings), environment)
    settings = Settings(**{"debug_delays": debug_delays(environment), **_settings_of(own), **taken, **others})
    ignored = [f"--{name.replace('_', '-')} has no effect: {_NO_EFFECT[name]}" for name in _NO_EFFECT if name in given]
    return settings, ignored


def _settings_of(own: FrontendFlags) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "openai_port": _PORT,
        "openai_on_http_port": False,
        "openai_tokenizer": own.tokenizer,
        "openai_chat_template": own.chat_template,
        "openai_tool_call_parser": own.tool_call_parser,
        "openai_lora_separator": own.lora_separator,
        "openai_default_max_tokens": own.default_max_tokens,
        "allow_http": own.enable_kserve_frontends,
        "allow_grpc": own.enable_kserve_frontends,
        "allow_metrics": False,  # they are on the port of the frontend
        "http_port": own.kserve_http_port,
        "grpc_port": own.kserve_grpc_port,
        **_LOG_LEVELS[own.uvicorn_log_level],
    }
    if own.tritonserver_log_verbose_level:
        settings["log_verbose"] = own.tritonserver_log_verbose_level
    if own.host:
        settings |= {"http_address": own.host, "grpc_address": own.host}
    return settings


def _joined(words: Sequence[str]) -> list[str]:
    """The restrictions in one word each: the program has them in three, `<api>[,<api>] <header> <value>`."""
    joined: list[str] = []
    left = list(reversed(words))
    while left:
        word = left.pop()
        following = left[-3:][::-1]
        if word == _THREE_WORDS and following and ":" not in following[0]:
            if len(following) < 3 or any(each.startswith("--") for each in following):
                raise UsageError(f"{_THREE_WORDS} needs three values: <api>[,<api>] <header> <value>")
            del left[-3:]
            apis, header, value = following
            word = f"{_THREE_WORDS}={apis}:{header}={value}"
        joined.append(word)
    return joined
