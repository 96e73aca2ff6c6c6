"""Edge processes of a server under test, and clients of them that count what becomes of their requests."""

from __future__ import annotations

import http.client
import re
import threading
import urllib.request
from collections import Counter
from pathlib import Path

from tests.e2e.server_process import ServerProcess, is_running

READY = "/v2/health/ready"


def edges_of(server: ServerProcess) -> dict[int, int]:
    """The process ids by the edges' numbers, of those that live."""
    found: dict[int, int] = {}
    for pid in server.descendants():
        try:
            name = Path(f"/proc/{pid}/comm").read_text().strip()
        except OSError:
            continue
        if (match := re.fullmatch(r"trioton-edge-(\d+)", name)) and is_running(pid):
            found[int(match[1])] = pid
    return found


def metric(server: ServerProcess, name: str, **labels: str) -> float:
    """The value of one series; 0 where it is not there."""
    text = urllib.request.urlopen(f"http://{server.addresses['metrics']}/metrics").read().decode()
    wanted = ",".join(f'{key}="{value}"' for key, value in sorted(labels.items()))
    series = f"{name}{{{wanted}}} " if labels else f"{name} "
    return next((float(line.rpartition(" ")[2]) for line in text.splitlines() if line.startswith(series)), 0.0)


class Asking(threading.Thread):
    """A client with one connection, which it opens again where it is lost. `with` runs it; `outcomes` counts statuses
    and the names of errors."""

    def __init__(self, address: str, path: str = READY) -> None:
        super().__init__(daemon=True)
        self.outcomes: Counter[int | str] = Counter()
        self._address = address
        self._path = path
        self._over = threading.Event()
        self.connection = http.client.HTTPConnection(address, timeout=30)

    def __enter__(self) -> Asking:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.join()
        self.connection.close()

    def run(self) -> None:
        while not self._over.is_set():
            self.outcomes[self.ask()] += 1

    def ask(self) -> int | str:
        try:
            self.connection.request("GET", self._path)
            response = self.connection.getresponse()
            response.read()
        except (OSError, http.client.HTTPException) as error:
            self.connection.close()
            return type(error).__name__
        return response.status
