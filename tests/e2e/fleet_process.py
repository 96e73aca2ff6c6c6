"""`trioton fleet` in a process of its own, over the real HAProxy."""

from __future__ import annotations

import json
import re
import shutil
import urllib.error
import urllib.request
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.server_process import LOCAL, ServerProcess, eventually, is_running

HAPROXY = shutil.which("haproxy") or shutil.which("haproxy", path="/usr/sbin:/usr/local/sbin")
needs_haproxy = pytest.mark.skipif(HAPROXY is None, reason="HAProxy is not installed")
SERVICES = {
    "grpc": "GRPCInferenceService",
    "http": "HTTPService",
    "metrics": "Metrics Service",
    "fleet": "Fleet Control",
}
START_SECONDS = 120.0


class FleetProcess(ServerProcess):
    """A fleet on free ports of this machine."""

    def __init__(self, repository: Path, *flags: str, **more: Any) -> None:
        anywhere = [f"--{word}-{what}" for word in SERVICES for what in (f"address={LOCAL}", "port=0")]
        command = ("fleet", str(repository), *anywhere, f"--haproxy={HAPROXY}")
        super().__init__(*flags, command=command, start_seconds=START_SECONDS, **more)

    def __enter__(self) -> FleetProcess:
        return self

    @cached_property
    def addresses(self) -> dict[str, str]:
        """Where the fleet listens, as host:port; waits until all of its replicas serve."""
        return {
            word: self.wait_for_line(rf'fleet\.py:\d+\] "Started {name} at ([^\s"]+)', START_SECONDS).group(1)
            for word, name in SERVICES.items()
        }

    def call(self, method: str, path: str, body: object = None, *, service: str = "fleet") -> tuple[int, Any]:
        """The status, and the answer as it was decoded."""
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"http://{self.addresses[service]}{path}", data=data, method=method)
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                status, text = answer.status, answer.read()
        except urllib.error.HTTPError as error:
            status, text = error.code, error.read()
        try:
            return status, json.loads(text)
        except ValueError:
            return status, text.decode()

    def status(self) -> Any:
        return self.call("GET", "/v2/fleet")[1]

    def replicas(self, phase: str = "serving") -> list[Any]:
        return [each for each in self.status()["replicas"] if each["phase"] == phase]

    def wait_for_replicas(self, count: int) -> list[Any]:
        """Those that serve, once there are so many and no others."""
        assert eventually(lambda: len(self.status()["replicas"]) == len(self.replicas()) == count), self.status()
        return self.replicas()

    def pids(self) -> dict[str, int]:
        """The processes of the replicas, by their names."""
        return {each["name"]: int(re.sub(r"\D", "", each["process"])) for each in self.status()["replicas"]}

    def all_gone(self, pids: set[int]) -> bool:
        return eventually(lambda: not any(map(is_running, pids)))
