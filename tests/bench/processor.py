"""What a server's processes have used of the processor, read from `/proc`. Beside `memory`."""

from __future__ import annotations

import json
import os
import urllib.request
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tests.bench.memory import PROC, process_tree
from tests.bench.peers import Server

TICKS = os.sysconf("SC_CLK_TCK")
STATISTICS_SECONDS = 10.0
MICROSECONDS = 1e6  # of a second


@dataclass(frozen=True, slots=True)
class Times:
    """Processor time in seconds: of a server's own process in user space and in the kernel, and of its children."""

    user: float
    system: float
    workers: float

    @property
    def total(self) -> float:
        return self.user + self.system + self.workers

    def __sub__(self, earlier: Times) -> Times:
        return Times(self.user - earlier.user, self.system - earlier.system, self.workers - earlier.workers)

    def __truediv__(self, requests: float) -> Times:
        return Times(self.user / requests, self.system / requests, self.workers / requests)


def tree_times(root: int, proc: Path = PROC) -> Times:
    """The time of a process and of all its descendants that run now."""
    own, *others = process_tree(root, proc)
    user, system = _times(own, proc)
    return Times(user, system, sum(sum(_times(pid, proc)) for pid in others))


def process_seconds(pid: int, proc: Path = PROC) -> float:
    """The time of the threads that a process has now, to the nanosecond; coarser where the system counts no finer."""
    if not (proc / str(pid) / "schedstat").is_file():
        return sum(_times(pid, proc))
    nanoseconds = 0
    for thread in (proc / str(pid) / "task").iterdir():
        with suppress(FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
            nanoseconds += int((thread / "schedstat").read_text().split()[0])
    return nanoseconds / 1e9


def _times(pid: int, proc: Path) -> tuple[float, float]:
    try:
        text = (proc / str(pid) / "stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return 0.0, 0.0
    fields = text.rpartition(")")[2].split()  # the name before may hold anything
    return int(fields[11]) / TICKS, int(fields[12]) / TICKS


def answered(server: Server, model: str) -> int:
    """How many requests the model has answered, as the server's statistics count them. Raises OSError, ValueError."""
    url = f"http://{server.address('http')}/v2/models/{model}/stats"
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # a proxy is not for loopback
    with opener.open(url, timeout=STATISTICS_SECONDS) as reply:
        statistics = json.load(reply)
    return sum(int(version["inference_stats"]["success"]["count"]) for version in statistics["model_stats"])


@dataclass(slots=True)
class Meter:
    """Counts a server's requests to one model and its processor time, from when it is made."""

    server: Server
    model: str
    times: Times
    requests: int

    @classmethod
    def begin(cls, server: Server, model: str) -> Meter:
        return cls(server, model, _of(server), answered(server, model))

    def per_request(self) -> Times:
        """The time since then of each request; it does not see a process that has ended meanwhile.

        Raises ValueError where no request was answered, OSError where the server does not answer.
        """
        requests = answered(self.server, self.model) - self.requests
        if requests < 1:
            raise ValueError(f"{self.server.peer.name} has answered no request to {self.model}")
        return (_of(self.server) - self.times) / requests


def _of(server: Server) -> Times:
    if server.process is None:
        raise ValueError(f"{server.peer.name} does not run")
    return tree_times(server.process.pid)
