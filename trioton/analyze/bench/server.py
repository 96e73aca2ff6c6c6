"""The server that is measured: a child process on free ports of this machine, gone when the block ends."""

from __future__ import annotations

import re
import subprocess
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import trio

from trioton.server_child import end_server, start_server

LOCAL = "127.0.0.1"
_SERVICES = {"grpc": "GRPCInferenceService", "http": "HTTPService", "metrics": "Metrics Service"}
_POLL_SECONDS = 0.05
_LAST_LINES = 5
_END_SECONDS = 10.0


class ServerFailed(Exception):
    """The server does not start; the text has the end of its log."""


@dataclass(frozen=True, slots=True)
class RunningServer:
    """`addresses` are those of `grpc`, `http` and `metrics`, as host:port."""

    process: subprocess.Popen[bytes]
    addresses: dict[str, str]
    log: Path

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def has_ended(self) -> bool:
        return self.process.poll() is not None


def server_words(repositories: Sequence[Path], model: str, flags: Sequence[str]) -> list[str]:
    """The command line of a server that has one model and may load others of its configurations."""
    anywhere = [f"--{word}-{what}" for word in _SERVICES for what in (f"address={LOCAL}", "port=0")]
    places = [f"--model-repository={place}" for place in repositories]
    fixed = ["--model-control-mode=explicit", f"--load-model={model}", "--exit-on-error=false"]
    return ["serve", *places, *anywhere, *fixed, "--metrics-config=histogram_latencies=true", *flags]


@asynccontextmanager
async def running_server(words: Sequence[str], log: Path, *, seconds: float) -> AsyncIterator[RunningServer]:
    """Start it and wait until it listens, at most so many seconds. Whatever happens in the block, the server and what
    it has started is gone afterwards; it also ends when this process is killed.

    Raises:
        ServerFailed: it has ended, or does not listen in time.
    """
    with log.open("wb") as file:
        process = start_server(words, file)
    try:
        addresses = await _addresses(process, log, seconds)
        yield RunningServer(process, addresses, log)
    finally:
        with trio.CancelScope(shield=True):
            await end_server(process, _END_SECONDS)


def _text(log: Path) -> str:
    return log.read_text(errors="replace")


async def _addresses(process: subprocess.Popen[bytes], log: Path, seconds: float) -> dict[str, str]:
    with trio.move_on_after(seconds):
        while process.poll() is None:
            text = _text(log)
            found = {word: re.search(rf'Started {name} at ([^\s"]+)', text) for word, name in _SERVICES.items()}
            if all(found.values()):
                return {word: match[1] for word, match in found.items() if match is not None}
            await trio.sleep(_POLL_SECONDS)
    last = " / ".join(_text(log).strip().splitlines()[-_LAST_LINES:])
    how = "does not listen" if process.poll() is None else f"has ended with exit code {process.poll()}"
    raise ServerFailed(f"the server {how}: {last or 'no words'} (log: {log})")
