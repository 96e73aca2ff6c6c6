"""The OpenAI interface under fuzzed bodies and bombs: `python -m tests.attack.texts --inputs 10000`.

On both ports. No client's mistake is answered by a 500, what is answered 200 has the form that it must have, streams
end, and a right request beside is answered all along.
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
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.attack.hostile import Hostile, hostile_bodies
from tests.attack.text_inputs import BODIES, bombs, text_body
from tests.backends.engines.models import write_model
from tests.e2e.engine_calls import is_free
from tests.e2e.openai.repository import build_text_repository
from tests.e2e.server_process import LOCAL, ServerProcess

PATIENCE_SECONDS = 60.0
FLAGS = (
    *("--model-control-mode=explicit", "--load-model=*", "--openai-port=0", "--openai-store-bytes=1048576"),
    "--openai-allowed-media-domains=127.0.0.1:1",  # where nobody listens
)
_MOST_FAILURES = 20
# Bytes of an error's answer: it does not say all of the request again.
_LONGEST_ERROR = 1 << 16
# The last events of streams.
_ENDS = ("[DONE]", "response.completed", "response.incomplete", "response.failed", "message_stop", "error")


class Broken(Exception):
    """The server did what it must not."""


@dataclass(slots=True)
class Result:
    """`statuses` counts answers by path and status; `slowest` is how long a right request beside has taken."""

    statuses: Counter[tuple[str, int]] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    slowest: float = 0.0
    is_free: bool = True
    exit_code: int | None = None
    log: str = ""

    @property
    def is_clean(self) -> bool:
        return self.is_free and not (self.failures or self.exit_code or "Traceback" in self.log)


def build(folder: Path) -> Path:
    """`echo` and `tools` have an engine, and the others are those of the interface's own tests."""
    build_text_repository(folder)
    write_model(folder / "echo", "scripted")
    write_model(folder / "tools", "scripted", tool_call_parser="hermes", reasoning_parser="think", rule="repeat")
    return folder


def ask(address: str, path: str, body: bytes, headers: bytes = b"") -> tuple[int, str, bytes]:
    """The status, the type of content and the body of an answer."""
    more = dict(line.split(": ", 1) for line in headers.decode().splitlines())
    connection = http.client.HTTPConnection(address, timeout=PATIENCE_SECONDS)
    try:
        connection.request("POST", path, body, {"content-type": "application/json", **more})
        answer = connection.getresponse()
        return answer.status, answer.getheader("content-type") or "", answer.read()
    finally:
        connection.close()


def check(path: str, status: int, kind: str, data: bytes) -> None:
    """Raises Broken."""
    if status >= 500 and status not in (503, 529):
        raise Broken(f"status {status}")
    if status == 200 and kind.startswith("text/event-stream"):
        _check_events(data)
        return
    if path.endswith("lora_adapter") and status == 200:
        return
    if status != 200 and len(data) > _LONGEST_ERROR:
        raise Broken(f"an error of {len(data)} bytes")
    found = json.loads(data)
    if status != 200 and not (isinstance(found.get("error"), dict) and found["error"].get("message")):
        raise Broken("an error without a message")


def _check_events(data: bytes) -> None:
    lines = data.decode().splitlines()
    events = [line[6:] for line in lines if line.startswith("data: ")]
    for event in events:
        if event != "[DONE]" and "internal_error" in json.dumps(json.loads(event).get("error") or {}):
            raise Broken(f"an event of a defect: {event}")
    last = events[-1] if events else ""
    kinds = {line[7:] for line in lines[-4:] if line.startswith("event: ")}
    if last not in _ENDS and not kinds & set(_ENDS) and not ("error" in last or json.loads(last).get("type") in _ENDS):
        raise Broken(f"a stream without an end: {last}")


class _Beside:
    """A right request, over and over."""

    def __init__(self, address: str, result: Result) -> None:
        self._address = address
        self._result = result
        self._has_ended = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *failed: object) -> None:
        self._has_ended.set()
        self._thread.join()

    def _run(self) -> None:
        body = json.dumps({"model": "echo", "prompt": "Hello", "max_tokens": 9}).encode()
        while not self._has_ended.wait(0.02):
            began = time.monotonic()
            try:
                status, _, data = ask(self._address, "/v1/completions", body)
            except OSError as error:
                self._result.failures.append(f"beside: {error!r}")
                return
            self._result.slowest = max(self._result.slowest, time.monotonic() - began)
            if status != 200 or json.loads(data)["choices"][0]["text"] != "Hello":
                self._result.failures.append(f"beside: {status} {data[:300]!r}")
                return


def attack(
    inputs: int,
    seed: int,
    paths: Sequence[str] = (),
    *,
    hostile: int = 0,
    with_bombs: bool = True,
    threads: int = 3,
) -> Result:
    """`inputs` bodies for each path, so many of those with a hostile value, and every bomb once."""
    result = Result()
    with (
        tempfile.TemporaryDirectory() as folder,
        ServerProcess(*FLAGS, f"--openai-address={LOCAL}", repository=build(Path(folder) / "models")) as server,
    ):
        own = server.wait_for_line("Started OpenAI frontend at ([0-9.:]+)").group(1)
        addresses = (server.addresses["http"], own)
        with _Beside(addresses[0], result):
            for path in paths or BODIES:
                _share(addresses, path, inputs, seed, threads, result)
            for each in sampled(hostile, seed):
                _attack(addresses[0], each.path, each.body(), b"", each.name, result)
            if with_bombs:
                for name, (path, body, headers) in bombs().items():
                    _attack(addresses[1], path, body, headers, name, result)
        result.is_free = is_free(server, "echo") and is_free(server, "tools")
        server.signal(15)  # type: ignore[arg-type]  # SIGTERM
        result.exit_code = server.wait()
        result.log = server.log
    return result


def sampled(number: int, seed: int) -> list[Hostile]:
    """So many hostile bodies, or all that there are."""
    bodies = list(hostile_bodies())
    return random.Random(seed).sample(bodies, min(number, len(bodies)))


def _share(addresses: Sequence[str], path: str, inputs: int, seed: int, threads: int, result: Result) -> None:
    def run(first: int) -> None:
        for number in range(first, inputs, threads):
            if len(result.failures) >= _MOST_FAILURES:
                return
            chance = random.Random(f"{path} {seed} {number}")
            body = text_body(chance, path)
            _attack(addresses[number % 2], path, body, b"", f"{path} {seed} {number}", result)

    running = [threading.Thread(target=run, args=(number,)) for number in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()


def _attack(address: str, path: str, body: bytes, headers: bytes, name: str, result: Result) -> None:
    status, data = 0, b""
    try:
        status, kind, data = ask(address, path, body, headers)
        check(path, status, kind, data)
    except Exception as error:
        result.failures.append(f"{name}: {error!r}: status {status}, sent {body[:1500]!r}, got {data[-1500:]!r}")
    result.statuses[path, status] += 1


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="*", default=[], choices=list(BODIES))
    parser.add_argument("--no-bombs", action="store_true")
    parser.add_argument("--hostile", type=int, default=0, help="bodies with a hostile value; there are some 4000")
    given = parser.parse_args(arguments)
    result = attack(given.inputs, given.seed, given.only, hostile=given.hostile, with_bombs=not given.no_bombs)
    print(dict(result.statuses), f"slowest beside {result.slowest:.3f} s, free: {result.is_free}")
    for failure in result.failures:
        print("FAILURE:", failure)
    if not result.is_clean:
        print(result.log[-10_000:])
    return 0 if result.is_clean else 1


if __name__ == "__main__":
    sys.exit(main())
