"""A server's process, held by a thread: how a replica starts it, asks it for its health, and ends it.

Ray's actors run on asyncio, so nothing here needs an event loop.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trioton.bound import bound_command
from trioton.fleet.driver import Address
from trioton.fleet.processes import end_text

logger = logging.getLogger("trioton.ray.server")

_LOG_LINES = 30
_LONGEST_LINE = 4096
_PROBE_SECONDS = 5.0
_FIRST_POLL_SECONDS, _POLL_SECONDS = 0.05, 0.5
_KILL_SECONDS = 10.0


class ServerFailed(Exception):
    """A server that did not start, has ended, or does not answer; the text says how, with the end of its log."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a server has answered."""

    status: int
    text: str


class ServerProcess:
    """A running server.

    It dies with this process: the kernel kills it when the thread ends that has started it, and that thread waits for
    nothing but the server's end.
    """

    def __init__(self, command: Sequence[str], address: Address, environment: Mapping[str, str] | None = None) -> None:
        """Starts it; `wait_ready` waits until it serves. `environment` is added to that of this process.

        Its output goes on to that of this process, which Ray keeps and shows.

        Raises:
            ServerFailed: the command cannot be run.
        """
        self.address = address
        self._command = bound_command(command)
        self._environment = {**os.environ, **(environment or {})}
        self._process: subprocess.Popen[bytes] | None = None
        self._failure: OSError | None = None
        self._started = threading.Event()
        self._ended = threading.Event()
        self._tail: deque[str] = deque(maxlen=_LOG_LINES)
        threading.Thread(target=self._run, name=f"server of port {address.http_port}", daemon=True).start()
        self._started.wait()
        if self._failure is not None:
            raise ServerFailed(f"the server cannot be started: {self._failure.strerror}")

    def _run(self) -> None:
        try:
            process = subprocess.Popen(
                self._command,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            self._failure = error
            return
        finally:
            self._started.set()
        self._process = process
        assert process.stdout is not None
        with process.stdout as output:
            for line in iter(lambda: output.readline(_LONGEST_LINE), b""):
                text = line.decode(errors="replace").rstrip("\n")
                self._tail.append(text)
                print(text, file=sys.stderr, flush=True)
        process.wait()
        self._ended.set()

    @property
    def pid(self) -> int:
        return self._running().pid

    def end(self) -> str:
        """How it has ended, in words; empty while it runs."""
        code = self._running().poll()
        return "" if code is None else end_text(code)

    def wait_ready(self, seconds: float) -> None:
        """Block until it is ready.

        Raises:
            ServerFailed: it has ended, or is not ready after so many seconds; in the latter case it is killed.
        """
        ends_at, pause = time.monotonic() + seconds, _FIRST_POLL_SECONDS
        while not self._is_ready():
            if how := self.end():
                self._ended.wait(_KILL_SECONDS)  # for the last lines of its log
                raise ServerFailed(f"the server ended before it was ready: {how}. {self._log_text()}")
            if time.monotonic() > ends_at:
                self.kill()
                raise ServerFailed(f"the server was not ready within {seconds:g} s. {self._log_text()}")
            self._ended.wait(pause)
            pause = min(2 * pause, _POLL_SECONDS)

    def check(self) -> None:
        """Raises ServerFailed: it has ended, or does not say that it lives."""
        if how := self.end():
            raise ServerFailed(f"the server has ended: {how}. {self._log_text()}")
        try:
            answer = self.get("/v2/health/live")
        except OSError as error:
            raise ServerFailed(f"the server does not answer: {error}. {self._log_text()}") from None
        # While it drains it answers with an error, and still is as it should be.
        if answer.status >= 500 and answer.status != 503:
            raise ServerFailed(f"the server does not live: {answer.status} {answer.text[:200]}")

    def get(self, path: str, *, port: int | None = None) -> Answer:
        """Raises OSError: it cannot be reached."""
        return self._call(urllib.request.Request(self._url(path, port)), _PROBE_SECONDS)

    def post(self, path: str, body: Mapping[str, Any], *, key: str = "", seconds: float) -> Answer:
        """Raises OSError: it cannot be reached, or does not answer in time."""
        request = urllib.request.Request(self._url(path, None), json.dumps(body).encode(), method="POST")
        request.add_header("content-type", "application/json")
        if key:
            request.add_header("authorization", f"Bearer {key}")
        return self._call(request, seconds)

    def stop(self, seconds: float) -> str:
        """Have it drain and end by SIGTERM, and block until it has, or kill it after so many seconds.

        Returns:
            How it has ended, in words.
        """
        self.terminate()
        if not self._ended.wait(seconds):
            logger.error("the server did not end within %g s of SIGTERM, and is killed", seconds)
            self.kill()
        return self.end()

    def terminate(self) -> None:
        """Have it drain and end by SIGTERM. Nothing, where it has ended."""
        self._running().send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it now; its workers end with it."""
        process = self._running()
        if process.poll() is None:
            process.kill()
        self._ended.wait(_KILL_SECONDS)

    def wait(self) -> str:
        """Block until it has ended, and return how, in words."""
        self._ended.wait()
        return self.end()

    def _running(self) -> subprocess.Popen[bytes]:
        process = self._process
        if process is None:  # cannot be: `__init__` has waited for it
            raise ServerFailed("the server was not started")
        return process

    def _is_ready(self) -> bool:
        try:
            return self.get("/v2/health/ready").status == 200
        except OSError:
            return False

    def _url(self, path: str, port: int | None) -> str:
        host = f"[{self.address.host}]" if ":" in self.address.host else self.address.host
        return f"http://{host}:{self.address.http_port if port is None else port}{path}"

    @staticmethod
    def _call(request: urllib.request.Request, seconds: float) -> Answer:
        # A proxy of the environment is not for a server beside.
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=seconds) as response:
                return Answer(response.status, response.read().decode(errors="replace"))
        except urllib.error.HTTPError as error:
            with error:
                return Answer(error.code, error.read().decode(errors="replace"))

    def _log_text(self) -> str:
        return "Its log ends with:\n" + "\n".join(self._tail) if self._tail else "It has logged nothing."
