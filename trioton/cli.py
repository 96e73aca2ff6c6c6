"""Command line: parses arguments to settings, and runs the server or a subcommand.

`trioton serve …` and `trioton …` are the same, as people type `tritonserver …`; `trioton run …` serves one model to the
person who writes it. Usage errors go to stderr with exit code 1, as Triton's do.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from trioton.flags.demo import DemoSettings
from trioton.flags.fields import (
    Flag,
    UsageError,
    read_arguments,
    rows,
)
from trioton.flags.openai import OPENAI
from trioton.help import ALL, USAGE_OF_FLAGS, command_help, overview
from trioton.imports import imports
from trioton.serve_words import ESCAPE_VARIABLE, escapes_log, serve_table, settings_from
from trioton.settings import BATCH, FLEET, FRONTEND, GROUPS, RUN, Settings
from trioton.standard_streams import provide_standard_streams

__all__ = ["COMMANDS", "ESCAPE_VARIABLE", "PIPE_CLOSED", "main", "serve_table", "settings_from"]

# Exit codes as shells have them for the signals that other programs end by.
PIPE_CLOSED = 128 + 13  # SIGPIPE, which not every system has
INTERRUPTED = 128 + signal.SIGINT


@dataclass(frozen=True, slots=True)
class Command:
    """`run` takes the words after the command and answers the exit code. Plain `--help` shows the groups of flags
    `shown`; none of them means the overview of all commands."""

    usage: str
    table: Callable[[], Sequence[Flag]]
    run: Callable[[Sequence[str]], int]
    shown: Sequence[str] = (ALL,)
    epilogue: str = USAGE_OF_FLAGS


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; answers the exit code."""
    words = taken_words() if arguments is None else list(arguments)
    name = words.pop(0) if words and not words[0].startswith("-") else "serve"
    command = COMMANDS.get(name, COMMANDS["serve"])
    return exit_code(command.usage, partial(_run_command, name, words))


def taken_words() -> list[str]:
    """The arguments of this process, which are no longer there afterwards: a model in this process that reads its own
    arguments is not to find the server's."""
    words = sys.argv[1:]
    provide_standard_streams()
    del sys.argv[1:]
    return words


def exit_code(usage: str, run: Callable[[], int]) -> int:
    """That of a command, which may end by an error of usage, a reader that has left, or Ctrl-C."""
    try:
        code = run()
        sys.stdout.flush()
    except UsageError as error:
        print(usage.partition("\n\n")[0], error, sep="\n", file=sys.stderr)
        return 1
    except BrokenPipeError:  # whoever reads has seen enough (`… --help | head`)
        # The interpreter flushes once more when it ends, which must not fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return PIPE_CLOSED
    except KeyboardInterrupt:  # before the server listens for signals
        return INTERRUPTED
    return code


def _run_command(name: str, words: Sequence[str]) -> int:
    if name not in COMMANDS:
        raise UsageError(_no_command(name))
    command = COMMANDS[name]
    groups = groups_asked_for(words)
    if groups is None:
        return command.run(words)
    print(_help(name, command, groups))
    return 0


def _help(name: str, command: Command, groups: Sequence[str]) -> str:
    if not groups and not command.shown:
        return overview(command.table())
    shown = groups or command.shown
    return command_help(command.usage, command.table(), shown=shown, command=name, epilogue=command.epilogue)


def groups_asked_for(words: Sequence[str]) -> Sequence[str] | None:
    """What follows `--help`, empty where nothing does; None where no help is asked for."""
    for index, word in enumerate(words):
        name, equals, groups = word.partition("=")
        if name in ("--help", "-h"):
            following = words[index + 1] if index + 1 < len(words) else ""
            named = groups if equals else following if following in (*GROUPS.values(), ALL) else ""
            return [group for group in named.split(",") if group]
    return None


def _no_command(name: str) -> str:
    known = [each for each in COMMANDS if each != "help"]
    hint = f"; to serve what is in it: trioton serve {name}" if os.path.isdir(name) else ""
    return f"Unexpected argument: {name}; the commands are {', '.join(known[:-1])} and {known[-1]}{hint}"


def _serve(words: Sequence[str]) -> int:
    if "--version" in words:
        return _version(())
    return serve_process(settings_from(words, os.environ))


def serve_process(settings: Settings) -> int:
    with imports():
        from trioton.process import run_process  # not before it is needed: it brings the whole server with it

    return run_process(settings)


def _run(words: Sequence[str]) -> int:
    from trioton.run import run_settings

    settings = run_settings(words, os.environ)
    # Tracebacks are easier to read unescaped.
    return serve_process(replace(settings, log_escape=escapes_log({ESCAPE_VARIABLE: "0", **os.environ})))


def _run_table() -> Sequence[Flag]:
    from trioton.run import run_table

    return run_table()


def _frontend(words: Sequence[str]) -> int:
    from trioton.openai_frontend import frontend_settings

    settings, ignored = frontend_settings(words, os.environ)
    for text in ignored:
        print(text, file=sys.stderr)
    return serve_process(replace(settings, log_escape=escapes_log(os.environ)))


def _frontend_table() -> Sequence[Flag]:
    from trioton.openai_frontend import frontend_table

    return frontend_table()


def _demo(words: Sequence[str]) -> int:
    settings = DemoSettings(**read_arguments(rows(DemoSettings), words))
    from trioton.demo import run_demo

    return run_demo(settings)


def _doctor(words: Sequence[str]) -> int:
    from trioton.tools.doctor_command import run_doctor

    return run_doctor(words, os.environ)


def _doctor_table() -> Sequence[Flag]:
    from trioton.tools.doctor_command import doctor_table

    return doctor_table()


def _analyze(words: Sequence[str]) -> int:
    from trioton.analyze.command import run_analyze

    return run_analyze(words, os.environ)


def _analyze_table() -> Sequence[Flag]:
    from trioton.analyze.command import analyze_table

    return analyze_table()


def _batch(words: Sequence[str]) -> int:
    from trioton.batch.command import run_batch

    return run_batch(words, os.environ)


def _batch_table() -> Sequence[Flag]:
    from trioton.batch.command import batch_table

    return batch_table()


def _fleet(words: Sequence[str]) -> int:
    from trioton.fleet.command import run_fleet

    return run_fleet(words, os.environ)


def _fleet_table() -> Sequence[Flag]:
    from trioton.fleet.command import fleet_table

    return fleet_table()


def _config(words: Sequence[str]) -> int:
    from trioton.tools.config_command import run_config

    return run_config(words, os.environ)


def _config_table() -> Sequence[Flag]:
    from trioton.tools.config_command import config_table

    return config_table()


def _convert(words: Sequence[str]) -> int:
    from trioton.convert.command import run_convert

    return run_convert(words, os.environ)


def _convert_table() -> Sequence[Flag]:
    from trioton.convert.command import convert_table

    return convert_table()


def _perf(words: Sequence[str]) -> int:
    from trioton.perf.command import run_perf

    return run_perf(words, os.environ)


def _perf_table() -> Sequence[Flag]:
    from trioton.perf.command import perf_table

    return perf_table()


def _perf_analyzer(words: Sequence[str]) -> int:
    from trioton.perf_analyzer.command import run_perf_analyzer

    return run_perf_analyzer(words)


def _repo(words: Sequence[str]) -> int:
    from trioton.tools.repo_command import run_repo

    return run_repo(words, os.environ)


def _repo_table() -> Sequence[Flag]:
    from trioton.tools.repo_command import repo_table

    return repo_table()


def _version(words: Sequence[str]) -> int:
    from trioton.version import version_text

    _refuse_words(words)
    print(version_text())
    return 0


def _help_command(words: Sequence[str]) -> int:
    """`help`, `help <command>`, `help <group>`, `help <command> <group>`."""
    name, *groups = words or ["serve"]
    if name not in COMMANDS and name in (*GROUPS.values(), ALL):
        name, groups = "serve", list(words)
    if name not in COMMANDS:
        raise UsageError(_no_command(name))
    print(_help(name, COMMANDS[name], groups))
    return 0


def _refuse_words(words: Sequence[str]) -> None:
    if words:
        raise UsageError(f"Unexpected argument: {words[0]}")


def _no_table() -> Sequence[Flag]:
    return ()


COMMANDS = {
    "serve": Command(
        "usage: trioton serve <repository or model folder> … [flags]; see trioton --help", serve_table, _serve, shown=()
    ),
    "run": Command(
        """\
usage: trioton run <model directory> [--reload] [flags]

Serves one model on this machine, with the flags of a server.""",
        _run_table,
        _run,
        shown=(GROUPS[RUN],),
    ),
    "openai-frontend": Command(
        """\
usage: trioton openai-frontend --model-repository <path> [flags]

Serves by the flags of Triton's OpenAI frontend, on its port: OpenAI's routes
alone, or with --enable-kserve-frontends the inference protocol, too. Takes the
flags of trioton serve as well.""",
        _frontend_table,
        _frontend,
        shown=(GROUPS[FRONTEND], GROUPS[OPENAI]),
    ),
    "demo": Command(
        """\
usage: trioton demo [--once] [flags]

Builds a repository of real models, serves it, and shows what they answer.""",
        lambda: rows(DemoSettings),
        _demo,
        epilogue="",
    ),
    "batch": Command(
        """\
usage: trioton batch <input> <output> --model=<name> [flags]

Runs a model over all rows of a file, a folder or a bucket, without a server:
JSON lines, Parquet, NPZ or images. Where it was interrupted or killed the same
command goes on. Exit code 0 if all rows have succeeded, 2 if some have failed.""",
        _batch_table,
        _batch,
        shown=(GROUPS[BATCH],),
    ),
    "fleet": Command(
        """\
usage: trioton fleet <repository or model folder> … [flags]

Serves by several servers behind one address, balanced by HAProxy: loads and
unloads reach all of them, sequences stay where they are, and the fleet is
scaled and updated while it serves. Takes the flags of trioton serve as well,
with which each of the servers is started.""",
        _fleet_table,
        _fleet,
        shown=(GROUPS[FLEET],),
    ),
    "analyze": Command(
        """\
usage: trioton analyze <repository> --model=<name> --latency=p99:20ms [flags]
       trioton analyze --live=<host>:<port> [flags]
       trioton analyze apply <results> [--write]

Finds the configuration of a model that keeps a latency at the greatest rate, on
a server of its own, within minutes; or proposes one from what a running server
tells of itself, without any load. `apply` shows a result as a difference of
config.pbtxt, and writes it. Exit code 0 if there is an answer, 3 if no
candidate keeps --latency, 1 if nothing could be measured.""",
        _analyze_table,
        _analyze,
    ),
    "doctor": Command(
        """\
usage: trioton doctor <repository> … [--json] [flags]

Checks every model of the repositories without serving it, and says how to mend
what is wrong. Exit code 0 if a server would load all of them, else 1.""",
        _doctor_table,
        _doctor,
    ),
    "config": Command(
        """\
usage: trioton config <model directory> [--json] [flags]

Prints the configuration that a server would use, with everything completed.""",
        _config_table,
        _config,
    ),
    "repo": Command(
        """\
usage: trioton repo add <repository> <model file or directory> [flags]
       trioton repo conversions [--prune-days=<integer>] [--json]

Puts a model into a repository, with a configuration made from it. What is there
already stays, unless --force is given. A running server sees all of it or
nothing. `conversions` lists the language models that were converted for an
engine, and removes those that are not used.""",
        _repo_table,
        _repo,
    ),
    "convert": Command(
        """\
usage: trioton convert <source> <repository> [flags]

Converts a model, compares every result with the source's own answers, measures
what passes on the server's backends, and writes the fastest into the
repository. Sources: <file>.py:<function that makes a torch.nn.Module>, .pt,
.pt2, .onnx. Exit code 0 if a model is written, 2 if no candidate has passed the
gate, 3 if none keeps --latency, 1 if nothing could be tried.""",
        _convert_table,
        _convert,
    ),
    "perf": Command(
        """\
usage: trioton perf [<host>:<port> | <repository>] --model=<name> [flags]

Measures a model under load: on a live server, on one that is started for the
measurement, or with --in-process without a wire. Without a load it doubles the
requests at a time up to the knee. Exit code 0, 1 if nothing could be measured,
2 if no request has succeeded, 3 if --require or the bound of --find-rate is not
kept, 4 if the load generator and not the server was the limit.""",
        _perf_table,
        _perf,
    ),
    "perf-analyzer": Command(
        """\
usage: trioton perf-analyzer -m <model> [options of perf_analyzer]

Measures a model on a server by the options of NVIDIA's perf_analyzer, and
writes its reports: for Model Analyzer and scripts that call it. Options are
listed in docs/perf-analyzer.md. Exit code 0 if all went well, 2 if the windows
of the measurement differ too much, else 99.""",
        _no_table,
        _perf_analyzer,
        epilogue="",
    ),
    "version": Command("usage: trioton version", _no_table, _version, epilogue=""),
    "help": Command("usage: trioton help [<command>] [<group of flags>]", _no_table, _help_command, epilogue=""),
}
