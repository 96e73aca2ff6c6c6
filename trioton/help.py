"""`--help` texts: the most used flags on one screen, and all flags by group, generated from their table."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from itertools import groupby

from trioton.flags.fields import ENVIRONMENT_PREFIX, ENVIRONMENT_SEPARATOR, Flag, UsageError
from trioton.settings import GROUPS

WIDTH = 80
INDENT = "      "
ALL = "all"

OVERVIEW = """\
usage: trioton <command> [flags]; trioton [flags] is trioton serve [flags]

  serve REPOSITORY …         serve its models; or a language model's folder
  run MODEL_DIR              serve one model; with --reload again as it changes
  demo / openai-frontend     show real models; serve by that frontend's flags
  fleet REPOSITORY …         serve by several servers behind one address
  batch INPUT OUTPUT         run a model over files of rows, without a server
  doctor …, config MODEL_DIR say what is wrong; print a configuration, completed
  repo add …, convert …      put a model into a repository; in other formats
  perf …, perf-analyzer …, analyze …  put load on a model; tune its settings
  help [COMMAND], version    this, or a command's help; version and commit

What serve needs first:
  --model-repository=<path>  the models; also s3://, gs:// and as://
  --model-control-mode=explicit --load-model=<name>
                             load this one; clients load and unload others
  --exit-on-error=false      serve the others where a model does not load
  --http-port=8000 --grpc-port=8001 --metrics-port=8002 --log-verbose=1"""

EXAMPLES = """\
Examples:
  trioton repo add models/ resnet.onnx --name resnet; trioton serve models/"""

USAGE_OF_FLAGS = f"""\
A flag is given as --name=value or --name value. Each can also come from the
environment, as {ENVIRONMENT_PREFIX}<NAME IN CAPITALS> with _ for -, and with "{ENVIRONMENT_SEPARATOR}" between
the values of a flag that may be given several times; the command line wins.
Booleans are true, on, 1, false, off or 0."""


def overview(table: Sequence[Flag]) -> str:
    """The commands, the first flags, the names of all groups of a server's flags, and examples: one screen."""
    return "\n".join([OVERVIEW, _groups_text("serve", table), EXAMPLES])


def command_help(
    usage: str,
    table: Sequence[Flag],
    *,
    shown: Sequence[str] = (ALL,),
    command: str = "",
    epilogue: str = USAGE_OF_FLAGS,
) -> str:
    """The usage, then the flags of the groups `shown` (words of `GROUPS`) under their headings, each group in the
    table's order. Where others are left out, `command` is that whose help has them.

    Raises:
        UsageError: there is no such group.
    """
    names = _group_names(table)
    for name in shown:
        if name not in (*names, ALL):
            raise UsageError(f"--help: there is no group '{name}' of flags; there are {', '.join(names)} and {ALL}")
    parts = [usage]
    ordered = sorted(table, key=lambda flag: list(GROUPS).index(flag.group))
    for heading, flags in groupby(ordered, key=lambda flag: flag.group):
        if GROUPS[heading] in shown or ALL in shown:
            parts.append("\n".join([f"{heading}:", *(_flag_help(flag) for flag in flags)]))
    if command and ALL not in shown:
        parts.append(_groups_text(command, table))
    return "\n\n".join([*parts, epilogue]).rstrip()


def _groups_text(command: str, table: Sequence[Flag]) -> str:
    names = " ".join(_group_names(table))
    return f"All flags by group: trioton {command} --help=<group>, or --help={ALL}\n{_filled(names, '  ')}"


def _group_names(table: Sequence[Flag]) -> list[str]:
    given = {flag.group for flag in table}
    return [name for heading, name in GROUPS.items() if heading in given]


def _flag_help(flag: Flag) -> str:
    value = f"={flag.metavar}" if flag.metavar else ""
    names = ", ".join(f"--{name}{value}" for name in (flag.name, *flag.aliases))
    return f"{_filled(names, '  ')}\n{_filled(flag.help + _default(flag), INDENT)}"


def _filled(text: str, indent: str) -> str:
    return textwrap.fill(
        text,
        WIDTH,
        initial_indent=indent,
        subsequent_indent=indent,
        break_on_hyphens=False,
        break_long_words=False,
    )


def _default(flag: Flag) -> str:
    if flag.is_switch or flag.is_repeatable or flag.default in ("", None):
        return ""
    shown = str(flag.default).lower() if isinstance(flag.default, bool) else flag.default
    return f" Default: {shown}."
