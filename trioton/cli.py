"""The command line: words to settings, and settings to a running server or the demo.

`trioton serve …` and `trioton …` are the same, as people type `tritonserver …`; `trioton run …` serves one model to the
person who writes it. Usage errors go to stderr with exit
code 1, as Triton's do.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib import metadata

from trioton.flags import Flag, UsageError, read_arguments, read_environment, rows
from trioton.help import command_help
from trioton.settings import DemoSettings, Settings

USAGE = """\
usage: trioton [serve] --model-repository=<path> [flags]
       trioton run <model directory> [--reload] [flags]
       trioton demo [--once] [flags]
       trioton doctor <repository> … [--json] [flags]
       trioton config <model directory> [--json] [flags]
       trioton repo add <repository> <model file or directory> [--name <name>] [flags]
       trioton <command> --help
       trioton --version"""
RUN_USAGE = "usage: trioton run <model directory> [--reload] [flags]"
DEMO_USAGE = "usage: trioton demo [--once] [flags]"
DOCTOR_USAGE = """\
usage: trioton doctor <repository> … [--json] [flags]

Checks every model of the repositories without serving it, and says how to mend what is wrong. Exit code 0 if a server
would load all of them, else 1."""
CONFIG_USAGE = """\
usage: trioton config <model directory> [--json] [flags]

Prints the configuration that a server would use, with everything completed."""
REPO_USAGE = """\
usage: trioton repo add <repository> <model file or directory> [--name <name>] [--version <number>] [--force] [flags]

Puts a model into a repository, with a configuration made from it. What is there already stays, unless --force is given.
A running server sees all of it or nothing."""
USAGES = {
    "config": CONFIG_USAGE,
    "demo": DEMO_USAGE,
    "doctor": DOCTOR_USAGE,
    "repo": REPO_USAGE,
    "run": RUN_USAGE,
    "serve": USAGE,
}
# Triton's own variable: 0 shows log messages as they are, without quotes and escapes.
ESCAPE_VARIABLE = "TRITON_SERVER_ESCAPE_LOG_MESSAGES"
# Exit codes as shells have them for the signals that other programs end by.
PIPE_CLOSED = 128 + 13  # SIGPIPE, which not every system has
INTERRUPTED = 128 + signal.SIGINT


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; answers the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    command = words.pop(0) if words and not words[0].startswith("-") else "serve"
    try:
        code = _command(command, words)
        sys.stdout.flush()
    except UsageError as error:
        usage, _, _ = USAGES.get(command, USAGE).partition("\n\n")
        print(usage, error, sep="\n", file=sys.stderr)
        return 1
    except BrokenPipeError:  # whoever reads has seen enough (`… --help | head`)
        # The interpreter flushes once more when it ends, which must not fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED
    except KeyboardInterrupt:  # before the server listens for signals
        return INTERRUPTED
    return code


def _command(command: str, words: list[str]) -> int:
    match command:
        case "serve":
            return _serve(words)
        case "run":
            return _run(words)
        case "demo":
            return _demo(words)
        case "doctor":
            return _doctor(words)
        case "config":
            return _config(words)
        case "repo":
            return _repo(words)
    raise UsageError(f"Unexpected argument: {command}; the commands are serve, run, demo, doctor, config and repo")


def settings_from(arguments: Sequence[str], environment: Mapping[str, str]) -> Settings:
    """Settings from flags and environment; flags win.

    Raises:
        UsageError: see `trioton.flags` and `Settings`.
    """
    table = rows(Settings)
    given = read_arguments(table, arguments)
    return Settings(**{"log_escape": _escapes_log(environment), **read_environment(table, environment), **given})


def _serve(words: Sequence[str]) -> int:
    if _asks_for(words, "--help", "-h"):
        print(command_help(USAGE, rows(Settings)))
        return 0
    if _asks_for(words, "--version"):
        print(f"trioton {metadata.version('trioton')}")
        return 0
    return _serve_process(settings_from(words, os.environ))


def _serve_process(settings: Settings) -> int:
    from trioton.process import run_process  # not before it is needed: it brings the whole server with it

    return run_process(settings)


def _run(words: Sequence[str]) -> int:
    from trioton.run import run_settings, run_table

    if _asks_for(words, "--help", "-h"):
        print(command_help(RUN_USAGE, run_table()))
        return 0
    settings = run_settings(words, os.environ)
    # Tracebacks are easier to read unescaped.
    return _serve_process(replace(settings, log_escape=_escapes_log({ESCAPE_VARIABLE: "0", **os.environ})))


def _demo(words: Sequence[str]) -> int:
    table = rows(DemoSettings)
    if _asks_for(words, "--help", "-h"):
        print(command_help(DEMO_USAGE, table, epilogue=""))
        return 0
    settings = DemoSettings(**read_arguments(table, words))
    from trioton.demo import run_demo

    return run_demo(settings)


def _doctor(words: Sequence[str]) -> int:
    from trioton.tools.doctor_command import doctor_table, run_doctor

    return _tool(words, DOCTOR_USAGE, doctor_table(), run_doctor)


def _config(words: Sequence[str]) -> int:
    from trioton.tools.config_command import config_table, run_config

    return _tool(words, CONFIG_USAGE, config_table(), run_config)


def _repo(words: Sequence[str]) -> int:
    from trioton.tools.repo_command import repo_table, run_repo

    return _tool(words, REPO_USAGE, repo_table(), run_repo)


def _tool(
    words: Sequence[str],
    usage: str,
    table: Sequence[Flag],
    run: Callable[[Sequence[str], Mapping[str, str]], int],
) -> int:
    if _asks_for(words, "--help", "-h"):
        print(command_help(usage, table))
        return 0
    return run(words, os.environ)


def _escapes_log(environment: Mapping[str, str]) -> bool:
    return environment.get(ESCAPE_VARIABLE) != "0"


def _asks_for(words: Sequence[str], *names: str) -> bool:
    return any(word in names for word in words)
