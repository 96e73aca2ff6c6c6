"""Every engine: what it says, who is told what, and that nothing stays of those who leave."""

from __future__ import annotations

import json
import os
import queue
import re
import signal
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import tritonclient.grpc as grpcclient
from tritonclient.utils import InferenceServerException

from tests.attack.generations import attack
from tests.attack.soak import sizes
from tests.backends.engines.conformance.conftest import BESIDE, MODEL, Served, body
from tests.backends.engines.conformance.engines import ADAPTERS, MARK
from tests.backends.engines.models import GREEDY, sampling
from tests.backends.helpers import objects
from tests.e2e.engine_calls import events, generate, is_free, load, url
from tests.e2e.server_process import eventually, is_running

pytestmark = [pytest.mark.slow, pytest.mark.e2e]

PROMPT: str = GREEDY[0]["prompt"]
PROMPTS: list[str] = [each["prompt"] for each in GREEDY]
# vLLM takes half a minute to start, and more where the machine is busy.
RESTART_SECONDS = 240.0
LONG: dict[str, Any] = {"max_tokens": 400, "ignore_eos": True}
# So long that no engine is done before something has become of it.
ENDLESS: dict[str, Any] = {**LONG, "max_tokens": 8000}
# What 5,000 requests may leave in a process: allocators take some time until they need no more.
MOST_KIB = 32 << 10
MOST_DESCRIPTORS = 4
MOST_HALVES = 4


def joined(parts: list[dict[str, Any]]) -> str:
    return "".join(each["text_output"] for each in parts)


# What it says


def test_greedy_tokens_are_those_of_torch_alone_and_batched(served: Served) -> None:
    expected = [served.engine.text(each) for each in GREEDY]
    assert [served.ask(prompt)["text_output"] for prompt in PROMPTS] == expected
    with ThreadPoolExecutor(16) as threads:
        together = list(threads.map(lambda prompt: joined(served.stream(prompt)), PROMPTS * 4))
    assert together == expected * 4
    assert is_free(served.server, MODEL)


def test_a_stream_is_the_whole_text_in_pieces(served: Served) -> None:
    for prompt in PROMPTS:
        parts = served.stream(prompt)
        assert joined(parts) == served.ask(prompt)["text_output"]
        assert len(parts) > 1
        assert parts[-1]["finish_reason"] == "length"


def test_usage_is_what_the_tokenizer_counts(served: Served) -> None:
    for each in GREEDY:
        whole = served.ask(each["prompt"])
        parts = served.stream(each["prompt"])
        assert whole["num_input_tokens"] == parts[0]["num_input_tokens"] == len(each["prompt_token_ids"])
        assert whole["num_output_tokens"] == sum(part["num_output_tokens"] for part in parts) == 32
        asked = {"model": MODEL, "prompt": each["prompt"], "max_tokens": 32, "temperature": 0}
        answer = httpx.post(f"http://{served.server.addresses['http']}/v1/completions", json=asked, timeout=60).json()
        assert answer["choices"][0]["text"] == whole["text_output"]
        assert answer["usage"]["prompt_tokens"] == len(each["prompt_token_ids"])
        assert answer["usage"]["completion_tokens"] == 32


def test_stop_strings_wherever_the_tokens_cut_them(served: Served) -> None:
    text = served.ask(PROMPT)["text_output"]
    stops = [text[start : start + size] for size in (2, 5, 9) for start in range(0, 30, 3)]

    def ask(stop: str) -> tuple[str, str]:
        parts = served.stream(PROMPT, stop=json.dumps([stop]))
        return joined(parts), parts[-1]["finish_reason"]

    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(ask, stops))
    assert found == [(text[: text.index(stop)], "stop") for stop in stops]
    assert is_free(served.server, MODEL)


def test_a_stop_token_and_the_length_end_it(served: Served) -> None:
    tokens = served.engine.expected(GREEDY[0])
    count = tokens.index(tokens[5]) + 1
    at_token = served.ask(PROMPT, stop_token_ids=json.dumps([tokens[5]]))
    assert (at_token["finish_reason"], at_token["num_output_tokens"]) == ("stop", count)
    later = served.ask(PROMPT, stop_token_ids=json.dumps([tokens[5]]), min_tokens=count + 2)
    assert later["num_output_tokens"] > count
    at_length = served.ask(PROMPT, max_tokens=3)
    assert (at_length["finish_reason"], at_length["num_output_tokens"]) == ("length", 3)


def test_seeds_repeat(served: Served) -> None:
    same = [served.ask(PROMPT, seed=5, temperature=1)["text_output"] for _ in range(2)]
    assert same[0] == same[1]
    if served.engine.computes:
        assert len({served.ask(PROMPT, temperature=1)["text_output"] for _ in range(4)}) == 4
        narrowed = served.ask(PROMPT, temperature=1, top_k=1, top_p=0.9, min_p=0.01)
        assert narrowed["text_output"] == served.engine.text(GREEDY[0])


def test_a_prompt_that_was_there_before_is_found_in_the_cache(served: Served) -> None:
    if not served.engine.reports_cached:
        pytest.skip("it does not say what it finds")
    prompt = " ".join(PROMPTS[:2] * 20)
    first, again = (served.ask(prompt, max_tokens=4) for _ in range(2))
    assert again["text_output"] == first["text_output"]
    assert first["cached_tokens"] < again["cached_tokens"] < first["num_input_tokens"]
    assert eventually(lambda: load(served.server, MODEL)["prefix_cache_hits_total"] >= again["cached_tokens"])


def test_adapters_change_the_answer_of_their_requests_alone(served: Served) -> None:
    plain = served.engine.text(GREEDY[0])

    def ask(name: str) -> str:
        found: str = served.ask(PROMPT, **({"lora_name": name} if name else {}))["text_output"]
        return found

    alone = [ask(name) for name in ADAPTERS] if served.engine.computes else [ask("a")]
    assert len({plain, *alone}) == len(alone) + 1
    names = ["", *ADAPTERS[: len(alone)]] * 5
    with ThreadPoolExecutor(len(names)) as threads:
        mixed = list(threads.map(ask, names))
    assert mixed == [plain, *alone] * 5
    refused = generate(served.server, body(PROMPT, lora_name="c"), MODEL)
    assert refused.status_code == 400
    assert "LoRA c is not supported, we currently support ['a', 'b']" in refused.json()["error"]


@pytest.mark.parametrize(
    ("structure", "pattern"),
    [
        ({"regex": "[a-c]{3}d"}, "[a-c]{3}d"),
        ({"choice": ["yes", 'no "x"', "größe"]}, 'yes|no "x"|größe'),
        ({"grammar": 'root ::= "a" | "b"'}, "[ab]"),
        ({"json": {"type": "boolean"}}, "true|false"),
        ({"json": {"enum": [1, 2]}}, "[12]"),
    ],
    ids=["regex", "choice", "grammar", "boolean", "enum"],
)
def test_structured_output_always_parses(served: Served, structure: dict[str, Any], pattern: str) -> None:
    asked = {"structured_outputs": json.dumps(structure)}
    if not served.engine.structures:
        refused = generate(served.server, body(PROMPT, **asked), MODEL)
        assert refused.status_code == 400
        assert "is not supported by engine" in refused.json()["error"]
        return
    with ThreadPoolExecutor(8) as threads:
        beside = threads.submit(served.ask, PROMPT)
        sampled = threads.map(lambda seed: served.ask(PROMPT, **asked, seed=seed, temperature=1), range(6))
        found = [*sampled, served.ask(PROMPT, **asked)]
    assert beside.result()["text_output"] == served.engine.text(GREEDY[0]), "one beside them is as it was"
    for each in found:
        assert re.fullmatch(pattern, each["text_output"]), each
        assert each["finish_reason"] == "stop"


@pytest.mark.parametrize(
    "structure",
    [{"regex": "[a"}, {"json": "{"}, {"json": {"$ref": "#/nowhere"}}, {"grammar": "root ::= x"}],
    ids=["regex", "no schema", "reference", "grammar"],
)
def test_a_structure_that_cannot_be_is_the_clients_mistake(served: Served, structure: dict[str, Any]) -> None:
    refused = generate(served.server, body(PROMPT, structured_outputs=json.dumps(structure)), MODEL)
    assert refused.status_code == 400, refused.text
    assert served.ask(PROMPT)["text_output"] == served.engine.text(GREEDY[0])


def test_parameters_may_be_texts(served: Served) -> None:
    """As in the documented calls of Triton's vLLM backend, which casts them to what the field is."""
    texts = {"temperature": "0", "max_tokens": "5", "stop": "", "ignore_eos": "false"}
    answer = served.ask(PROMPT, **texts)
    assert answer["num_output_tokens"] == 5
    assert answer["text_output"] == served.ask(PROMPT, max_tokens=5)["text_output"]


# Clients that leave


def is_left_by_all(served: Served) -> bool:
    return is_free(served.server, MODEL)


def test_a_client_that_disconnects_frees_the_cache(served: Served) -> None:
    host, port = served.server.addresses["http"].split(":")
    data = json.dumps({**body(PROMPT, **ENDLESS), "stream": True}).encode()
    with socket.create_connection((host, int(port))) as client:
        head = f"POST /v2/models/{MODEL}/generate_stream HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n"
        client.sendall(head.encode() + data)
        assert client.recv(1)
    assert is_left_by_all(served)


def inputs(**fields: Any) -> list[grpcclient.InferInput]:
    """Of a gRPC call."""
    found = []
    for name, text in (("text_input", PROMPT), ("sampling_parameters", sampling(temperature=0, **fields))):
        found.append(grpcclient.InferInput(name, [1], "BYTES"))
        found[-1].set_data_from_numpy(objects(text))
    found.append(grpcclient.InferInput("stream", [1], "BOOL"))
    found[-1].set_data_from_numpy(np.array([True]))
    return found


def test_a_grpc_call_that_is_cancelled_frees_the_cache(served: Served) -> None:
    found: queue.Queue[Any] = queue.Queue()
    with grpcclient.InferenceServerClient(served.server.addresses["grpc"]) as client:
        client.start_stream(callback=lambda result, error: found.put(error or result))
        client.async_stream_infer(MODEL, inputs(**ENDLESS))
        assert not isinstance(found.get(timeout=60), Exception)
        client.stop_stream(cancel_requests=True)
        results = list(found.queue)
    assert isinstance(results[-1], InferenceServerException)
    assert len(results) < ENDLESS["max_tokens"]
    assert is_left_by_all(served)


def test_a_deadline_passes_while_it_runs_and_in_the_engines_queue(served: Served) -> None:
    """There are more of them than the engine runs at once."""
    found: queue.Queue[Any] = queue.Queue()
    with grpcclient.InferenceServerClient(served.server.addresses["grpc"]) as client:
        client.start_stream(callback=lambda result, error: found.put(error or result))
        for _ in range(100):
            client.async_stream_infer(MODEL, inputs(**LONG), timeout=50_000)
        errors: list[str] = []
        while len(errors) < 100:
            result = found.get(timeout=60)
            if isinstance(result, Exception):
                errors.append(str(result))
        assert all("timeout of 50000 microseconds expired" in each for each in errors), errors
    assert is_left_by_all(served)


def test_a_request_that_is_cancelled_by_its_id_frees_the_cache(served: Served) -> None:
    asked = {**body(PROMPT, **ENDLESS), "id": "mine", "stream": True}
    with (
        httpx.Client(timeout=60) as other,
        httpx.stream("POST", url(served.server, MODEL, "generate_stream"), json=asked, timeout=60) as response,
    ):
        stream = events(response)
        next(stream)
        assert other.post(url(served.server, MODEL, "requests/mine/cancel")).status_code == 200
        *_, last = stream
    assert "was cancelled" in last["error"]
    assert is_left_by_all(served)


def test_many_in_flight_of_whom_some_leave(served: Served) -> None:
    """Nothing is lost and nothing held, memory neither: after the first half there is one that needs no more than what
    came before. What an allocator has in pieces still grows once or twice; what is held grows with each."""
    half = served.engine.requests // 2
    seen: list[dict[str, int]] = []
    for seed in range(MOST_HALVES):
        tally = attack(served.server.addresses, MODEL, requests=half, in_flight=200, seed=seed)
        assert tally.wrong == []
        assert tally.all == half
        assert tally.right > half // 4
        assert is_left_by_all(served)
        seen.append(sizes(served.server))
        assert seen[-1]["children"] == seen[0]["children"]
        assert seen[-1]["descriptors"] <= seen[0]["descriptors"] + MOST_DESCRIPTORS
        if len(seen) > 1 and all(seen[-1][name] < seen[-2][name] + MOST_KIB for name in ("rss", "workers_rss")):
            break
    else:
        pytest.fail(f"memory grows with each {half} requests: {seen}")


# Ends of processes


def test_a_worker_that_is_killed_in_the_middle_of_a_stream(served: Served) -> None:
    server = served.server
    worker = worker_of(served)
    before = {worker, *children_of(worker)}
    beside = threading.Event()

    def ask_beside() -> bool:
        """Again and again, from before the end of the worker until after its restart."""
        answers = []
        while not beside.is_set():
            answers.append(generate(server, {"text_input": "x"}, BESIDE).status_code)
        return set(answers) == {200}

    with ThreadPoolExecutor(1) as threads:
        others = threads.submit(ask_beside)
        try:
            asked = {**body(PROMPT, **ENDLESS), "stream": True}
            with httpx.stream("POST", url(server, MODEL, "generate_stream"), json=asked, timeout=60) as response:
                stream = events(response)
                assert "text_output" in next(stream)
                os.kill(worker, signal.SIGKILL)
                *_, last = stream
            assert f"model instance '{MODEL}_0' died: its worker process was killed by SIGKILL" in last["error"]
            again = httpx.post(url(server, MODEL, "generate"), json=body(PROMPT), timeout=RESTART_SECONDS)
            assert again.status_code == 200, f"{again.text}\n{server.log}"
            assert again.json()["text_output"] == served.engine.text(GREEDY[0])
        finally:
            beside.set()
        assert others.result()
    assert is_left_by_all(served)
    assert eventually(lambda: not any(map(is_running, before))), "what the worker had started is gone with it"


def worker_of(served: Served) -> int:
    """The process of the tiny model's engine, by its environment; what it has started has the same."""
    found = [pid for pid in served.server.workers() if MARK in Path(f"/proc/{pid}/environ").read_bytes()]
    [worker] = [pid for pid in found if parent_of(pid) == served.server.pid]
    return worker


def children_of(pid: int) -> set[int]:
    """What a process has started, and what that has, and so on."""
    found = {int(each) for path in Path(f"/proc/{pid}/task").glob("*/children") for each in path.read_text().split()}
    return found.union(*map(children_of, found))


def parent_of(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def test_what_an_engine_has_started_dies_with_the_server(served: Served) -> None:
    """The last one: it ends the server."""
    processes = served.server.descendants()
    assert processes
    served.server.signal(signal.SIGKILL)
    served.server.wait()
    assert eventually(lambda: not any(map(is_running, processes)))
