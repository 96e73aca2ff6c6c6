"""`trioton demo`: builds a repository of real models, serves it, and prints their responses to real inputs.

Building and asking are the examples' own scripts, each run in a process of its own, as a reader would run them; the
server runs here. Ctrl-C ends everything in order, at any time.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import sys
import sysconfig
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import trio

from trioton.flags.demo import DemoSettings
from trioton.log.server_log import logging_to
from trioton.process import STOP_SIGNALS, end_process
from trioton.server import ExitTimeoutExpired, Server, StartError
from trioton.service_names import SERVICE_NAMES, address_text
from trioton.settings import Settings

DEFAULT_REPOSITORY = Path(".demo", "models")
TEMPORARY_PREFIX = "trioton-demo-"
# Code of a demo that was interrupted before it had shown all it has to show, with --once.
INTERRUPTED = 128 + signal.SIGINT


class DemoError(Exception):
    """The demo cannot go on; the text says why."""


def run_demo(settings: DemoSettings) -> int:
    """Show the demo; answers the exit code: 0 only if all answers were right."""
    try:
        with chosen_repository(settings.repository) as repository:
            server_settings = Settings(
                model_repository=(repository,),
                http_address="127.0.0.1",
                http_port=settings.http_port,
                grpc_address="127.0.0.1",
                grpc_port=settings.grpc_port,
                metrics_port=settings.metrics_port,
                exit_timeout_secs=10,
                log_info=False,
            )
            with logging_to(server_settings):
                return trio.run(_show, settings, server_settings, examples_folder())
    except (DemoError, StartError) as error:
        print(error, file=sys.stderr)
        return 1


def examples_folder() -> Path:
    """Where the examples lie: beside the package in a checkout, or among the environment's data where installed.

    Raises:
        DemoError: they are in neither place.
    """
    checkout = Path(__file__).resolve().parent.parent
    installed = Path(sysconfig.get_path("data"), "share", "trioton")
    for place in (checkout, installed):
        if (place / "examples" / "build_repository.py").is_file():
            return place / "examples"
    raise DemoError(f"the examples are neither in {checkout} nor in {installed}; install trioton again")


@contextmanager
def chosen_repository(wanted: Path | None) -> Iterator[Path]:
    """The directory to build in; a temporary one where nothing was wished for and the default cannot be written."""
    path = wanted or DEFAULT_REPOSITORY
    try:
        path.mkdir(parents=True, exist_ok=True)
        writable = os.access(path, os.W_OK)
    except OSError:
        writable = False
    if writable:
        yield path
    elif wanted is not None:
        raise DemoError(f"cannot write to '{wanted}'; choose another directory with --repository")
    else:
        with tempfile.TemporaryDirectory(prefix=TEMPORARY_PREFIX) as temporary:
            yield Path(temporary)


async def _show(settings: DemoSettings, server_settings: Settings, examples: Path) -> int:
    server = Server(server_settings)
    show = trio.CancelScope()
    code: int | None = None
    with trio.open_signal_receiver(*STOP_SIGNALS) as signals:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_stop_on_signals, signals, show)
            async with trio.open_nursery() as serving:
                with show:
                    try:
                        code = await _play(server, serving, examples)
                        if not settings.once:
                            _say(*_next_steps(server, examples))
                            await trio.sleep_forever()
                    except (DemoError, StartError) as error:
                        print(error, file=sys.stderr)
                        code = 1
                server.stop()
            nursery.cancel_scope.cancel()
    if code is None:
        return INTERRUPTED if settings.once else 0
    return code


async def _stop_on_signals(signals: AsyncIterator[int], show: trio.CancelScope) -> None:
    await anext(signals)
    _say("", "Stopping …")
    show.cancel()
    await anext(signals)
    end_process(1)


async def _play(server: Server, serving: trio.Nursery, examples: Path) -> int:
    """Build, serve, ask. Replies 0 if all answers were right; the server then runs in the nursery."""
    repository = server.settings.model_repository[0]
    if await _script(examples / "build_repository.py", str(repository)) != 0:
        raise DemoError("the model repository could not be built")
    await serving.start(_serve, server)
    _say("", await server.model_table(), "")
    _say(*(f"{SERVICE_NAMES[word]:20} {address_text(address)}" for word, address in server.addresses.items()), "")
    http, grpc = (address_text(server.addresses[word]) for word in ("http", "grpc"))
    return await _script(examples / "tour.py", "--http", http, "--grpc", grpc)


async def _serve(server: Server, *, task_status: trio.TaskStatus[None]) -> None:
    try:
        await server.run(task_status=task_status)
    except ExitTimeoutExpired as error:
        print(error, file=sys.stderr)
        end_process(1)


def _next_steps(server: Server, examples: Path) -> list[str]:
    http, metrics = (address_text(server.addresses[word]) for word in ("http", "metrics"))
    repository = server.settings.model_repository[0]
    assert isinstance(repository, Path)  # as `run_demo` has made it
    now = [
        (f"http://{http}/v2/docs", "every call, to be tried in a browser"),
        (f"curl -s {http}/v2/models/add_sub", "what a model takes and gives"),
        (f"curl -s -X POST {http}/v2/repository/index", "which models there are"),
        (f"curl -s {metrics}/metrics", "what they have done so far"),
        (_from_here(examples / "clients"), "clients worth copying"),
    ]
    afterwards = []
    if not repository.name.startswith(TEMPORARY_PREFIX):  # else it goes with the demo
        now.append((str(repository), "the models, as a server reads them"))
        afterwards = [
            "",
            "And when this has ended, the same server without the show:",
            f"  {serve_command(repository)}",
        ]
    width = max(len(what) for what, _ in now)
    return [
        "",
        "Where to go next, from another terminal:",
        *(f"  {what:{width}}   {why}" for what, why in now),
        *afterwards,
        "",
        "Serving until Ctrl-C.",
    ]


def serve_command(repository: Path) -> str:
    """What serves the repository if it is typed in this folder, whether the environment is active or not."""
    script = Path(sysconfig.get_path("scripts"), "trioton")
    found = shutil.which("trioton")
    if not script.is_file():
        command = [sys.executable, "-m", "trioton"]
    elif found is not None and script.samefile(found):
        command = ["trioton"]
    else:
        command = [_from_here(script)]
    return shlex.join([*command, "serve", f"--model-repository={repository}"])


def _from_here(path: Path) -> str:
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)


async def _script(path: Path, *arguments: str) -> int:
    """Run one of the examples; answers its exit code. Cancelled, the script is ended.

    It gets a session of its own: a Ctrl-C in the terminal is then ours alone to answer.
    """
    sys.stdout.flush()
    command = [sys.executable, str(path), *arguments]
    finished = await trio.run_process(command, check=False, stdin=None, start_new_session=True)
    return finished.returncode


def _say(*lines: str) -> None:
    print(*lines, sep="\n", flush=True)
