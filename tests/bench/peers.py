"""The two servers: how each is started, when it is ready, how it ends. Between the command line and the processes."""

from __future__ import annotations

import http.client
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path

from tests.bench.prepare import Tools
from tests.bench.rows import Port

OURS = "trioton"
OURS_IN_PROCESS = "trioton-in-process"
THEIRS = "triton"
HOST = "127.0.0.1"
SOURCE = Path(__file__).parents[2]
MODELS = Path(__file__).parent / "models"
# How the models run of our server "in process"; `in_process`, a thread for each instance, can be asked for instead.
IN_LOOP = "in_loop"
READY_SECONDS = 60.0
STOP_SECONDS = 20.0
POLL_SECONDS = 0.005


class PeerError(Exception):
    """A server did not start; the message holds the end of its log."""


@dataclass(frozen=True, slots=True)
class Peer:
    """A server that can be started: its command up to the flags that both share."""

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    numpy_version: str  # what its Python models compute with
    models: Path = MODELS
    folder: Path | None = None  # that it runs in


def our_server(source: Path = SOURCE) -> Peer:
    """The server of this checkout, or of another one, in the Python that runs this."""
    # The folder too: `python -m` looks there before PYTHONPATH.
    command = (sys.executable, "-m", "trioton", "serve", "--allow-client-shm=true")
    return Peer(OURS, command, {"PYTHONPATH": str(source)}, version("numpy"), folder=source)


def in_process(peer: Peer, folder: Path, isolation: str = IN_LOOP) -> Peer:
    """Our server with the same models, which `folder` gets a copy of, in the server's own process."""
    models = folder / isolation.replace("_", "-")
    parameter = f'parameters {{ key: "ISOLATION" value {{ string_value: "{isolation}" }} }}\n'
    for source in [*peer.models.glob("*/config.pbtxt"), *peer.models.glob("*/*/model.py")]:
        text = source.read_text() + (parameter if source.name == "config.pbtxt" else "")
        target = models / source.relative_to(peer.models)
        if not target.is_file() or target.read_text() != text:  # another run may read it
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text)
    allowed = "--backend-config=python,allow-in-process=true"
    return replace(peer, name=OURS_IN_PROCESS, command=(*peer.command, allowed), models=models)


def their_server(tools: Tools) -> Peer:
    return Peer(
        THEIRS,
        (str(tools.server), f"--backend-directory={tools.backends}"),
        tools.server_environment,
        tools.numpy_version,
    )


@dataclass(slots=True)
class Server:
    """One server, started and stopped any number of times. Whoever starts it stops it, on every path."""

    peer: Peer
    log: Path
    ports: tuple[int, int, int] = (0, 0, 0)
    process: subprocess.Popen[bytes] | None = None
    ready_seconds: float = READY_SECONDS
    context: ssl.SSLContext | None = None  # of its REST, where that is by TLS

    def address(self, port: Port) -> str:
        return f"{HOST}:{self.ports[0] if port == 'http' else self.ports[1]}"

    def start(self) -> float:
        """Start, and return the seconds until it called itself ready. Raises PeerError, with nothing left running."""
        self.ports = free_ports()
        with self.log.open("ab") as log:
            started = time.monotonic()
            self.process = subprocess.Popen(
                [*self.peer.command, *shared_flags(self.ports, self.peer.models)],
                env={**plain_environment(), **self.peer.environment},
                cwd=self.peer.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # a Ctrl-C is for the benchmark, which then stops its servers
            )
        while not is_ready(self.ports[0], self.context):
            took = time.monotonic() - started
            if not self.is_running() or took > self.ready_seconds:
                ended = self.end_description() or f"was not ready within {self.ready_seconds:.0f} s"
                self.stop()
                raise PeerError(f"{self.peer.name} {ended}. Its log ends with:\n{log_tail(self.log)}")
            time.sleep(POLL_SECONDS)
        return time.monotonic() - started

    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def end_description(self) -> str:
        """How it ended by itself; empty while it runs."""
        code = None if self.process is None else self.process.poll()
        return "" if code is None else f"ended with exit code {code}"

    def stop(self) -> None:
        """Ask it to end, then end its process group, which is its own. Safe to call at any time."""
        process, self.process = self.process, None
        if process is None:
            return
        process.terminate()
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def plain_environment() -> dict[str, str]:
    """The environment without Python's own settings, which would change how a server starts and runs."""
    return {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}


def shared_flags(ports: tuple[int, int, int], models: Path = MODELS) -> list[str]:
    """What both servers are told, in Triton's words: the models and the addresses, and nothing about speed."""
    flags = [f"--model-repository={models}"]
    for service, port in zip(("http", "grpc", "metrics"), ports, strict=True):
        flags += [f"--{service}-address={HOST}", f"--{service}-port={port}"]
    return flags


def free_ports() -> tuple[int, int, int]:
    """Three ports that were free a moment ago."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(3)]
        for one in sockets:
            one.bind((HOST, 0))
        first, second, third = (int(one.getsockname()[1]) for one in sockets)
    return first, second, third


def is_ready(port: int, context: ssl.SSLContext | None = None) -> bool:
    if context is None:
        connection = http.client.HTTPConnection(HOST, port, timeout=5)
    else:
        connection = http.client.HTTPSConnection(HOST, port, timeout=5, context=context)
    try:
        connection.request("GET", "/v2/health/ready")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def log_tail(log: Path, lines: int = 15) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])
