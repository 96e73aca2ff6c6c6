"""Clients that balance by the directory, as a program in Ray's cluster does."""

from __future__ import annotations

import json
import random
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from trioton.ray.entries import Entry

MODEL = "wait"
REFRESH_SECONDS = 0.25
BODY = json.dumps({"inputs": [{"name": "X", "datatype": "FP32", "shape": [1], "data": [2.0]}]}).encode()


def servers() -> list[Entry]:
    """Of the directory."""
    from trioton.ray import directory  # needs Ray

    return directory.serving()


def infer(entry: Entry) -> float:
    """Raises OSError."""
    url = f"http://{entry.host}:{entry.http_port}/v2/models/{MODEL}/infer"
    with urllib.request.urlopen(urllib.request.Request(url, BODY), timeout=60) as response:
        return float(json.loads(response.read())["outputs"][0]["data"][0])


def wait_for(what: str, condition: Callable[[], bool], seconds: float) -> float:
    """Returns how long it took."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < seconds, f"not within {seconds} s: {what}; there are {servers()}"
        time.sleep(0.1)
    return time.monotonic() - began


class Load:
    """So many clients, each with a request after the other, to any server of the directory."""

    def __init__(self) -> None:
        self.served = 0
        self.failures: list[str] = []
        self._entries = servers()
        self._is_over = threading.Event()

    def run(self, clients: int) -> list[threading.Thread]:
        threads = [threading.Thread(target=self._call) for _ in range(clients)]
        threads.append(threading.Thread(target=self._refresh))
        for each in threads:
            each.start()
        return threads

    def stop(self) -> None:
        self._is_over.set()

    def _refresh(self) -> None:
        while not self._is_over.wait(REFRESH_SECONDS):
            self._entries = servers()

    def _call(self) -> None:
        while not self._is_over.is_set():
            entry = random.choice(self._entries)
            try:
                if infer(entry) != 4.0:
                    self.failures.append(f"{entry}: a wrong answer")
            except OSError as error:
                self.failures.append(f"{entry}: {error!r}")
                time.sleep(REFRESH_SECONDS)
            else:
                self.served += 1


@contextmanager
def load(clients: int) -> Iterator[Load]:
    made = Load()
    threads = made.run(clients)
    try:
        yield made
    finally:
        made.stop()
        for each in threads:
            each.join()
