"""Language models whose clients leave: `python -m tests.attack.generations scripted --requests 10000 --in-flight 200`.

Requests of all kinds, so many at a time, of which some are left, cancelled or over their deadline at a random moment.
What is read to its end must be what the model says when it is alone; at the end nothing may run, wait or be held.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc  # type: ignore[import-untyped]  # grpcio ships no types
import trio
from tritonclient.grpc import service_pb2, service_pb2_grpc

from protocol.messages import encode_bytes_elements
from tests.attack.soak import sizes
from tests.backends.engines.conformance.engines import ENGINES, EngineCase
from tests.backends.engines.models import GREEDY
from tests.e2e.engine_calls import is_free
from tests.e2e.server_process import ServerProcess

LENGTHS = (1, 4, 16, 32)
PATIENCE_SECONDS = 120.0
# How often, in a hundred.
WAYS = {
    "stays": 54,
    "stays_in_its_call": 6,
    "disconnects": 20,
    "is_cancelled": 7,
    "cancels_its_call": 7,
    "has_a_deadline": 6,
}
_STAYS = ("stays", "stays_in_its_call")
_OVER_GRPC = ("stays_in_its_call", "cancels_its_call", "has_a_deadline")
_GONE = (b"was cancelled", b"timeout of ", b"Locally cancelled")
_LONGEST_WAIT = 0.3


@dataclass(slots=True)
class Tally:
    """What became of the requests: `right` are answers that were read to their end, `gone` those of clients that left
    or were told that they had; `wrong` must not be."""

    right: int = 0
    gone: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    @property
    def all(self) -> int:
        return self.right + sum(self.gone.values()) + len(self.wrong)


def attack(addresses: Mapping[str, str], model: str, *, requests: int, in_flight: int, seed: int) -> Tally:
    """Send so many requests to a model."""
    with grpc.insecure_channel(addresses["grpc"], options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        return trio.run(_Attack(addresses["http"], stub, model, random.Random(seed)).run, requests, in_flight)


class _Attack:
    def __init__(self, address: str, stub: Any, model: str, chance: random.Random) -> None:
        host, _, port = address.rpartition(":")
        self._address = (host, int(port))
        self._stub = stub
        self._model = model
        self._chance = chance
        self._tally = Tally()
        self._alone: dict[tuple[int, int], str] = {}
        self._last = 0

    async def run(self, requests: int, in_flight: int) -> Tally:
        for place in range(len(GREEDY)):
            for length in LENGTHS:
                answer = await self._post("generate", _body(place, length, ""))
                self._alone[place, length] = json.loads(answer)["text_output"]
        numbers = iter(range(requests))
        async with trio.open_nursery() as nursery:
            for _ in range(in_flight):
                nursery.start_soon(self._client, numbers)
        return self._tally

    async def _client(self, numbers: Any) -> None:
        for number in numbers:
            try:
                with trio.fail_after(PATIENCE_SECONDS):
                    await self._ask(number)
            except Exception as error:
                self._tally.wrong.append(f"request {number}: {error!r}")

    async def _ask(self, number: int) -> None:
        chance = self._chance
        (way,) = chance.choices(list(WAYS), list(WAYS.values()))
        place, length = chance.randrange(len(GREEDY)), chance.choice(LENGTHS)
        is_stream = chance.random() < 0.5
        wait = chance.random() * _LONGEST_WAIT
        body = _body(place, length, str(number), is_stream=is_stream)
        text: str | None
        if way in _OVER_GRPC:
            text, answer = await trio.to_thread.run_sync(self._call, body, way, wait)
        else:
            text, answer = await self._ask_over_http(body, way, number, wait)
        if text is not None and text == self._alone[place, length]:
            self._tally.right += 1
        elif text is None and way not in _STAYS and (not answer or any(each in answer for each in _GONE)):
            self._tally.gone[way] += 1
        else:
            self._tally.wrong.append(f"{way}, {length} tokens of prompt {place}: {text!r} {answer[:300]!r}")

    async def _ask_over_http(
        self, body: dict[str, Any], way: str, number: int, wait: float
    ) -> tuple[str | None, bytes]:
        """The text, or None and what came in its place: nothing where the client has left."""
        verb = "generate_stream" if body["stream"] else "generate"
        answer = b""
        async with trio.open_nursery() as nursery:
            if way == "is_cancelled":
                nursery.start_soon(self._cancel, number, wait)
            with trio.move_on_after(wait if way == "disconnects" else PATIENCE_SECONDS) as scope:
                answer = await self._post(verb, body)
        return (None, b"") if scope.cancelled_caught else (_text(answer, body["stream"]), answer)

    def _call(self, body: dict[str, Any], way: str, wait: float) -> tuple[str | None, bytes]:
        """As a gRPC stream of one request, in a thread."""
        request = service_pb2.ModelInferRequest(model_name=self._model, id=body["id"])
        for name, value in body.items():
            if isinstance(value, bool):
                request.inputs.add(name=name, datatype="BOOL", shape=[1])
                request.raw_input_contents.append(bytes([value]))
            elif name != "id":
                request.inputs.add(name=name, datatype="BYTES", shape=[1])
                request.raw_input_contents.append(encode_bytes_elements([value]))
        if way == "has_a_deadline":
            request.parameters["timeout"].int64_param = max(int(wait * 1e6), 1)
        answers = self._stub.ModelStreamInfer(iter([request]), timeout=PATIENCE_SECONDS)
        timer = threading.Timer(wait, answers.cancel)
        if way == "cancels_its_call":
            timer.start()
        text = b""
        try:
            for answer in answers:
                if answer.error_message:
                    return None, answer.error_message.encode()
                if answer.infer_response.raw_output_contents:
                    text += answer.infer_response.raw_output_contents[0][4:]
        except grpc.RpcError as error:
            return None, str(error).encode()
        finally:
            timer.cancel()
        return text.decode(), b""

    async def _cancel(self, number: int, wait: float) -> None:
        await trio.sleep(wait)
        await self._post(f"requests/{number}/cancel", {})

    async def _post(self, verb: str, body: Any) -> bytes:
        """The body of the answer, whatever its status; of a stream its events."""
        data = json.dumps(body).encode()
        head = f"POST /v2/models/{self._model}/{verb} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n"
        async with await trio.open_tcp_stream(*self._address) as stream:
            await stream.send_all(f"{head}content-length: {len(data)}\r\n\r\n".encode() + data)
            parts = [part async for part in stream]
        found, _, answer = b"".join(parts).partition(b"\r\n\r\n")
        return _dechunked(answer) if b"chunked" in found.lower() else answer


def _body(place: int, length: int, request_id: str, *, is_stream: bool = False) -> dict[str, Any]:
    fields = {"temperature": 0, "max_tokens": length, "ignore_eos": True}
    return {
        "id": request_id,
        "text_input": GREEDY[place]["prompt"],
        "stream": is_stream,
        "exclude_input_in_output": True,
        "sampling_parameters": json.dumps(fields),
    }


def _dechunked(data: bytes) -> bytes:
    parts = []
    while data:
        size, _, rest = data.partition(b"\r\n")
        count = int(size, 16)
        parts.append(rest[:count])
        data = rest[count + 2 :]
    return b"".join(parts)


def _text(answer: bytes, is_stream: bool) -> str | None:
    """All of the text; None where there is an error."""
    if not is_stream:
        text: str | None = json.loads(answer).get("text_output")
        return text
    events = [json.loads(line[6:]) for line in answer.splitlines() if line.startswith(b"data: ")]
    return None if any("error" in each for each in events) else "".join(each["text_output"] for each in events)


def run(engine: EngineCase, *, requests: int, in_flight: int, seed: int) -> bool:
    """Serve the engine's tiny model, attack it, and print what is found; whether all is as it must be."""
    with tempfile.TemporaryDirectory() as folder:
        repository = Path(folder, "models")
        engine.write(repository / "tiny", Path(folder))
        with ServerProcess(repository=repository) as server:
            attack(server.addresses, "tiny", requests=in_flight, in_flight=in_flight, seed=seed + 1)
            before = sizes(server)
            began = time.monotonic()
            tally = attack(server.addresses, "tiny", requests=requests, in_flight=in_flight, seed=seed)
            seconds = time.monotonic() - began
            is_all_free = is_free(server, "tiny")
            after = sizes(server)
            server.signal(15)  # type: ignore[arg-type]  # SIGTERM
            code = server.wait()
            tracebacks = server.log.count("Traceback (most recent call last)")
    print(f"{engine.name}: {tally.all} requests in {seconds:.1f} s: {tally.right} right, gone: {dict(tally.gone)}")
    print(f"before: {before}\nafter:  {after}")
    print(f"free: {is_all_free}, tracebacks: {tracebacks}, exit code: {code}, wrong: {len(tally.wrong)}")
    for each in tally.wrong[:20]:
        print("WRONG:", each)
    return is_all_free and not (tracebacks or code or tally.wrong) and tally.all == requests


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("engine", choices=[each.name for each in ENGINES])
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--in-flight", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args(arguments)
    engine = next(each for each in ENGINES if each.name == given.engine)
    return 0 if run(engine, requests=given.requests, in_flight=given.in_flight, seed=given.seed) else 1


if __name__ == "__main__":
    sys.exit(main())
