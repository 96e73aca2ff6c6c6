"""The text of `--help`, made from the table of flags."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from itertools import groupby

from trioton.flags import ENVIRONMENT_PREFIX, ENVIRONMENT_SEPARATOR, Flag
from trioton.settings import GROUPS

WIDTH = 100
INDENT = "      "

EPILOGUE = f"""\
A flag is given as --name=value or --name value. Each can also come from the environment, as
{ENVIRONMENT_PREFIX}<NAME IN CAPITALS> with _ for -, and with "{ENVIRONMENT_SEPARATOR}" between the values of a flag
that may be given several times; the command line wins. Booleans are true, on, 1, false, off or 0."""


def command_help(usage: str, table: Sequence[Flag], *, epilogue: str = EPILOGUE) -> str:
    """The usage, then every flag under its group; within a group in the table's order."""
    parts = [usage]
    ordered = sorted(table, key=lambda flag: GROUPS.index(flag.group))
    for group, flags in groupby(ordered, key=lambda flag: flag.group):
        parts.append("\n".join([f"{group}:", *(_flag_help(flag) for flag in flags)]))
    return "\n\n".join([*parts, epilogue]).rstrip()


def _flag_help(flag: Flag) -> str:
    value = f"={flag.metavar}" if flag.metavar else ""
    names = ", ".join(f"--{name}{value}" for name in (flag.name, *flag.aliases))
    text = textwrap.fill(
        flag.help + _default(flag), WIDTH, initial_indent=INDENT, subsequent_indent=INDENT, break_on_hyphens=False
    )
    return f"  {names}\n{text}"


def _default(flag: Flag) -> str:
    if flag.is_switch or flag.is_repeatable or flag.default in ("", None):
        return ""
    shown = str(flag.default).lower() if isinstance(flag.default, bool) else flag.default
    return f" Default: {shown}."
