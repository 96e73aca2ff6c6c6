"""Servers for one measurement: a process of its own on free ports, or the models in this process."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from trioton.free_ports import free_ports
from trioton.in_process import Models
from trioton.perf.caller import TargetError
from trioton.perf.controls import http_get
from trioton.perf.sender import unwrapped
from trioton.perf.wires.sockets import Peer
from trioton.server import Settings, StartError, open_server
from trioton.server_child import end_server, start_server

_HOST = "127.0.0.1"
_LOOK_SECONDS = 0.1
_STOP_SECONDS = 15.0
_LOG_LINES = 15


@asynccontextmanager
async def models_here(repository: Path, flags: Sequence[str]) -> AsyncIterator[Models]:
    """The models of a repository, in this process.

    Raises:
        TargetError: they do not load.
    """
    off = ["--allow-http=false", "--allow-grpc=false", "--allow-metrics=false"]
    settings = Settings.from_flags([f"--model-repository={repository}", *off, *flags])
    try:
        with unwrapped():
            async with open_server(settings) as server:
                yield server.models
    except StartError as error:
        raise TargetError(str(error)) from None


@asynccontextmanager
async def started_server(repository: Path, flags: Sequence[str]) -> AsyncIterator[tuple[str, str, str]]:
    """A server as a process of its own, while the block lasts: its addresses for HTTP and gRPC, and the URL of its
    metrics. It also ends when this process is killed.

    Raises:
        TargetError: it does not start; with the end of its log.
    """
    http, grpc, metrics = free_ports(_HOST, (0, 0, 0))
    words = [f"--model-repository={repository}"]
    for service, port in (("http", http), ("grpc", grpc), ("metrics", metrics)):
        words += [f"--{service}-address={_HOST}", f"--{service}-port={port}"]
    with tempfile.TemporaryFile() as log:
        process = start_server(["serve", *words, *flags], log)
        try:
            while not await _is_ready(http):
                if process.poll() is not None:
                    log.seek(0)
                    lines = log.read().decode(errors="replace").splitlines()[-_LOG_LINES:]
                    raise TargetError("\n".join(["the server has not started. Its log ends with:", *lines]))
                await trio.sleep(_LOOK_SECONDS)
            yield f"{_HOST}:{http}", f"{_HOST}:{grpc}", f"http://{_HOST}:{metrics}/metrics"
        finally:
            with trio.CancelScope(shield=True):
                await end_server(process, _STOP_SECONDS)


async def _is_ready(port: int) -> bool:
    try:
        await http_get(Peer(_HOST, port), "/v2/health/ready")
    except TargetError:
        return False
    return True
