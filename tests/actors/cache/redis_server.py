"""A Redis server of its own for a test: on a free port of this machine."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from pathlib import Path
from types import TracebackType

import pytest

TIMEOUT_SECONDS = 30.0

needs_redis_server = pytest.mark.skipif(
    shutil.which("redis-server") is None, reason="redis-server is not installed (Debian's package redis-server)"
)


class RedisServer:
    """Started by `with`, killed at its end; it can be stopped and started again meanwhile, on the same port. One that
    is lasting writes a log, and has what it had when it is started again. One with a certificate, which is a file and
    that of its key, speaks TLS only."""

    def __init__(
        self, directory: Path, *, is_lasting: bool = False, certificate: tuple[Path, Path] | None = None
    ) -> None:
        self._directory = directory
        self._certificate = certificate
        self._is_lasting = is_lasting
        self._process: subprocess.Popen[bytes] | None = None
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])

    def start(self) -> None:
        log = {"appendonly": "yes", "appendfsync": "always"} if self._is_lasting else {"appendonly": "no"}
        arguments = {"bind": "127.0.0.1", "save": "", **log, **self._port_arguments()}
        self._process = subprocess.Popen(
            ["redis-server", *(word for name, value in arguments.items() for word in (f"--{name}", value))],
            cwd=self._directory,
            stdout=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
                return
            except OSError:
                assert time.monotonic() < deadline, "redis-server does not listen"
                time.sleep(0.02)

    def _port_arguments(self) -> dict[str, str]:
        if self._certificate is None:
            return {"port": str(self.port)}
        chain, key = map(str, self._certificate)
        files = {"tls-cert-file": chain, "tls-key-file": key, "tls-auth-clients": "no"}
        return {"port": "0", "tls-port": str(self.port), **files}

    def configure(self, name: str, value: str) -> None:
        """Change a setting while it runs."""
        subprocess.run(
            ["redis-cli", "-p", str(self.port), "config", "set", name, value], check=True, capture_output=True
        )

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(TIMEOUT_SECONDS)
            self._process = None

    def __enter__(self) -> RedisServer:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
