"""Sequences of operations, beside each other: `python -m tests.attack.operations --seconds 600 --threads 8`.

Threads ask for sums while others load, unload and change the same models, read what the server says of them, and set
traces, logs and shared memory. A sum is right, or refused as that of a model that does not serve; no call fails with a
server error; and in the end every model loads and answers.
"""

from __future__ import annotations

import argparse
import http.client
import json
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from tests.attack.repository import MODELS, build
from tests.attack.soak import FLAGS, sizes
from tests.attack.sums import Sum, make_sums
from tests.e2e.server_process import ServerProcess

SUMS = ("sum", "sum_in_loop", "chain")
# Nothing takes so long, unless something hangs.
PATIENCE_SECONDS = 60.0
# Of a model that is not there, or not now.
NOT_SERVING = (404, 503)
_TRACES = (
    {"trace_level": ["TIMESTAMPS"], "trace_rate": "3"},
    {"trace_level": ["TIMESTAMPS", "TENSORS"], "trace_count": "5"},
    {"trace_level": None, "trace_rate": None, "trace_count": None},
    {"trace_rate": "0"},
)
_LOGS = ({"log_verbose_level": 1}, {"log_verbose_level": 0}, {"log_format": "ISO8601"}, {"log_info": 1})
_REGIONS = ("left", "right", "é/..")


class Broken(Exception):
    """The server did what it must not."""


@dataclass(slots=True)
class Result:
    """`answers` counts calls by operation and status."""

    answers: Counter[str] = field(default_factory=Counter)
    broken: list[str] = field(default_factory=list)
    before: Mapping[str, int] = field(default_factory=dict)
    after: Mapping[str, int] = field(default_factory=dict)
    log: str = ""

    @property
    def is_clean(self) -> bool:
        return not self.broken and "Traceback (most recent call last)" not in self.log


class Caller:
    """Calls a server over a connection of its own, and judges the answers."""

    def __init__(self, address: str, chance: random.Random, result: Result) -> None:
        self._address, self._chance, self._result = address, chance, result
        self._sums = {name: make_sums(name, 1) for name in SUMS}

    def call(self, operation: str, method: str, path: str, body: object = None) -> tuple[int, bytes]:
        """Status and body of an answer that is no server error."""
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        status, answer, _ = self._exchange(method, path, data, {})
        self._result.answers[f"{operation} {status}"] += 1
        if status >= 500 and status not in NOT_SERVING:
            raise Broken(f"{operation} {path} got {status}: {answer[:300]!r}")
        return status, answer

    def _exchange(
        self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]
    ) -> tuple[int, bytes, Mapping[str, str]]:
        with closing(http.client.HTTPConnection(self._address, timeout=PATIENCE_SECONDS)) as connection:
            connection.request(method, path, body, dict(headers))
            answer = connection.getresponse()
            return answer.status, answer.read(), {name.lower(): value for name, value in answer.getheaders()}

    def sum(self) -> None:
        self.ask(self._chance.choice(SUMS), NOT_SERVING)

    def ask(self, model: str, may_be: Sequence[int] = ()) -> None:
        """One sum, which is right, or refused with one of these statuses."""
        asked: Sum = self._chance.choice(self._sums[model])
        headers = {"Inference-Header-Content-Length": str(asked.header_length)}
        status, answer, told = self._exchange("POST", f"/v2/models/{model}/infer", asked.http, headers)
        self._result.answers[f"sum {status}"] += 1
        if status == 200:
            outputs = answer[int(told["inference-header-content-length"]) :]
            if outputs != b"".join(asked.outputs):
                raise Broken(f"model '{model}' answered another sum than was asked for")
        elif status not in may_be:
            raise Broken(f"model '{model}' answered {status}: {answer[:300]!r}")

    def leave(self) -> None:
        """Ask, and go before the answer."""
        asked = self._chance.choice(self._sums["sum"])
        with closing(http.client.HTTPConnection(self._address, timeout=PATIENCE_SECONDS)) as connection:
            connection.request(
                "POST",
                f"/v2/models/{self._chance.choice(SUMS)}/infer",
                asked.http,
                {"Inference-Header-Content-Length": str(asked.header_length)},
            )
            time.sleep(self._chance.random() / 500)
        self._result.answers["left"] += 1

    def load(self) -> None:
        self.call("load", "POST", f"/v2/repository/models/{self._chance.choice(list(MODELS))}/load", {})

    def change(self) -> None:
        """Load a model with its own configuration and another number of instances."""
        model = self._chance.choice(list(MODELS))
        status, answer = self.call("config", "GET", f"/v2/models/{model}/config")
        if status == 200:
            config = json.loads(answer)
            for group in config.get("instance_group", []):
                group["count"] = self._chance.randrange(1, 3)
            override = {"parameters": {"config": json.dumps(config)}}
            self.call("change", "POST", f"/v2/repository/models/{model}/load", override)

    def unload(self) -> None:
        body = {"parameters": {"unload_dependents": self._chance.random() < 0.5}}
        self.call("unload", "POST", f"/v2/repository/models/{self._chance.choice(list(MODELS))}/unload", body)

    def look(self) -> None:
        model = self._chance.choice(list(MODELS))
        method, path = self._chance.choice(
            (
                ("POST", "/v2/repository/index"),
                ("GET", "/v2/models/stats"),
                *(("GET", f"/v2/models/{model}{rest}") for rest in ("", "/ready", "/stats", "/trace/setting")),
            )
        )
        status, answer = self.call("look", method, path)
        if status == 200:
            json.loads(answer)

    def trace(self) -> None:
        model = self._chance.choice(("", f"models/{self._chance.choice(SUMS)}/"))
        self.call("trace", "POST", f"/v2/{model}trace/setting", self._chance.choice(_TRACES))

    def log(self) -> None:
        self.call("log", "POST", "/v2/logging", self._chance.choice(_LOGS))

    def shared_memory(self) -> None:
        """Regions that are not there, or go while requests name them."""
        region = self._chance.choice(_REGIONS)
        place = {"shared_memory_region": region, "shared_memory_byte_size": self._chance.choice((64, 0, 1 << 62))}
        tensors = [
            {"name": name, "datatype": "FP32", "shape": [1, 16], "parameters": place} for name in ("INPUT0", "INPUT1")
        ]
        self.call("region", "POST", f"/v2/models/{self._chance.choice(SUMS)}/infer", {"inputs": tensors})
        self.call("unregister", "POST", "/v2/systemsharedmemory/unregister")


OPERATIONS: Mapping[Callable[[Caller], None], int] = {
    Caller.sum: 12,
    Caller.leave: 2,
    Caller.load: 3,
    Caller.change: 1,
    Caller.unload: 1,
    Caller.look: 4,
    Caller.trace: 1,
    Caller.log: 1,
    Caller.shared_memory: 1,
}


def run(seconds: float, *, threads: int, seed: int, operations: int | None = None) -> Result:
    """For so long, or until each thread has done so many operations."""
    result = Result()
    with (
        tempfile.TemporaryDirectory() as folder,
        ServerProcess(
            *(*FLAGS, "--allow-client-shm=true", f"--trace-config=triton,file={folder}/trace.json"),
            repository=build(Path(folder) / "models"),
        ) as server,
    ):
        address = server.addresses["http"]  # it has started then
        result.before = sizes(server)
        end = time.monotonic() + seconds
        callers = [Caller(address, random.Random(f"{seed} {n}"), result) for n in range(threads)]
        running = [
            threading.Thread(
                target=_operate, args=(caller, random.Random(f"{seed} order {n}"), end, operations, result)
            )
            for n, caller in enumerate(callers)
        ]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
        _judge(_serves_after_all, callers[0], result)
        result.after = sizes(server)
        result.log = server.log
    return result


def _operate(caller: Caller, chance: random.Random, end: float, operations: int | None, result: Result) -> None:
    done = 0
    while time.monotonic() < end and (operations is None or done < operations):
        (operation,) = chance.choices(list(OPERATIONS), list(OPERATIONS.values()))
        _judge(operation, caller, result)
        done += 1


def _judge(operation: Callable[[Caller], None], caller: Caller, result: Result) -> None:
    try:
        operation(caller)
    except Exception as error:
        result.broken.append(f"{operation.__name__}: {error!r}")


def _serves_after_all(caller: Caller) -> None:
    for model in MODELS:
        status, answer = caller.call("last load", "POST", f"/v2/repository/models/{model}/load", {})
        if status != 200:
            raise Broken(f"model '{model}' does not load in the end: {answer[:300]!r}")
    for model in SUMS:
        caller.ask(model)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args(arguments)
    result = run(given.seconds, threads=given.threads, seed=given.seed)
    for operation, count in sorted(result.answers.items()):
        print(f"{count:8} {operation}")
    print("before:", dict(result.before))
    print("after: ", dict(result.after))
    for text in result.broken[:20]:
        print("BROKEN:", text)
    return 0 if result.is_clean else 1


if __name__ == "__main__":
    sys.exit(main())
