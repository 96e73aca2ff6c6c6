"""Flags of the tools: those server flags that affect how a model is configured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trioton.flags.fields import Flag, FlagHolder, read_environment, read_words, rows, switch
from trioton.flags.server import BackendSetting
from trioton.settings import TOOLS, Settings

# Of a server's flags.
_SHARED = ("backend-config", "backend-directory", "disable-auto-complete-config", "engine", "model-config-name")


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolFlags:
    """What decides about a model's configuration."""

    backend_config: tuple[BackendSetting, ...] = ()
    backend_directory: tuple[Path, ...] = ()
    disable_auto_complete_config: bool = False
    engine: str = ""
    model_config_name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputFlags:
    json: bool = switch(group=TOOLS, help="Write JSON, for programs.")


@dataclass(frozen=True, slots=True)
class Parsed:
    """The words of a command: places, flags of its own by their field names, and those of `ToolFlags`."""

    places: Sequence[str]
    own: Mapping[str, Any]
    tool: ToolFlags


def tool_table(own: type[FlagHolder]) -> tuple[Flag, ...]:
    """A command's own flags, then those that it shares with a server."""
    return (*rows(own), *(row for row in rows(Settings) if row.name in _SHARED))


def parse_words(own: type[FlagHolder], words: Sequence[str], environment: Mapping[str, str]) -> Parsed:
    """Flags win over the environment, as for a server.

    Raises:
        UsageError: see `trioton.flags`.
    """
    table = tool_table(own)
    places, given = read_words(table, words)
    values = {**read_environment(table, environment), **given}
    shared = {name.replace("-", "_") for name in _SHARED}
    return Parsed(
        places,
        {name: value for name, value in values.items() if name not in shared},
        ToolFlags(**{name: value for name, value in values.items() if name in shared}),
    )
