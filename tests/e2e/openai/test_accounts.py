"""Calls of texts of keys with quotas, observed and logged: by a server in one process, and with edge processes."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import anthropic
import httpx
import openai
import pytest

from tests.backends.engines.models import write_scripted
from tests.e2e.edge_processes import edges_of, metric
from tests.e2e.openai.repository import CHATML, add_scripted, add_vectors
from tests.e2e.server_process import TIMEOUT_SECONDS, ServerProcess, eventually

pytestmark = pytest.mark.slow

PLACES = 6
QUOTAS = f"""
[quotas.three]
requests = {{ limit = 3, seconds = 86400 }}
[quotas.tokens]
tokens = {{ limit = 400, seconds = 86400 }}
[quotas.one]
concurrent_requests = 1
[quotas.places]
concurrent_requests = {PLACES}
tokens = {{ limit = 1e9, seconds = 1 }}
[anonymous]
allow = ["health", "metrics"]
"""
# By their quotas. Each test has keys of its own, since nothing is forgotten within a day.
KEYS = {
    "three": ("few", "few_streams", "few_anthropic", "few_wrong"),
    "tokens": ("counts", "estimates", "vectors"),
    "one": ("turns",),
    "places": ("leaves", "killed"),
    "": ("free", "logged"),
}
PROMPT = "The scheduler gives batches to instances."


def secret(name: str) -> str:
    return f"a-secret-of-{name}-0123456789"


def keys_text(*more: str) -> str:
    """With more keys without a quota."""
    text = QUOTAS
    for quota, names in {**KEYS, "": (*KEYS[""], *more)}.items():
        for name in names:
            text += f'[keys.{name}]\nkey = "{secret(name)}"\nallow = ["inference"]\n'
            text += f'quota = "{quota}"\n' if quota else ""
    return text


class Served(NamedTuple):
    server: ServerProcess
    log: Path
    edges: int
    keys: Path

    @property
    def url(self) -> str:
        return f"http://{self.server.addresses['http']}"

    def client(self, key: str) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key=secret(key), max_retries=0, timeout=TIMEOUT_SECONDS)

    def post(self, key: str, path: str, **body: Any) -> httpx.Response:
        """On a connection of its own, so that any edge process may have it."""
        headers = {"authorization": f"Bearer {secret(key)}"}
        return httpx.post(f"{self.url}{path}", json=body, headers=headers, timeout=TIMEOUT_SECONDS)

    def of_key(self, what: str, key: str, **labels: str) -> float:
        return metric(self.server, f"trioton_key_{what}", key=key, **labels)

    def becomes(self, value: float, what: str, key: str, **labels: str) -> bool:
        """What edge processes count comes once in a second."""
        if eventually(lambda: self.of_key(what, key, **labels) == value):
            return True
        print(what, key, self.of_key(what, key, **labels))
        return False


@pytest.fixture(scope="module", params=[0, 2], ids=["alone", "edges"])
def served(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("accounts")
    write_scripted(folder / "models")
    add_scripted(folder / "models", "chat", CHATML)
    add_vectors(folder / "models")
    (folder / "keys.toml").write_text(keys_text())
    flags = (
        f"--edge-processes={request.param}",
        f"--auth-keys-file={folder / 'keys.toml'}",
        f"--access-log=all,file={folder / 'access.log'}",
        "--gen-ai-telemetry=true",
        "--openai-store-bytes=0",
    )
    with ServerProcess(*flags, repository=folder / "models") as server:
        assert len(server.addresses) == 3
        yield Served(server, folder / "access.log", request.param, folder / "keys.toml")


def relayed(served: Served) -> float:
    return sum(
        metric(served.server, "trioton_edge_relayed_requests_total", edge=str(number + 1))
        for number in range(served.edges)
    )


def ask(served: Served, key: str, **more: Any) -> httpx.Response:
    return served.post(key, "/v1/completions", **{"model": "echo", "prompt": PROMPT, "max_tokens": 50, **more})


@pytest.mark.parametrize("stream", [False, True])
def test_so_many_requests_and_no_more(served: Served, stream: bool) -> None:
    key = "few_streams" if stream else "few"
    left = []
    for _ in range(3):
        answer = ask(served, key, stream=stream)
        assert answer.status_code == 200
        assert answer.headers["ratelimit-policy"] == '"requests";q=3;w=86400'
        left.append((answer.headers["ratelimit"].partition(";t=")[0], answer.headers["x-ratelimit-remaining-requests"]))
    assert left == [(f'"requests";r={each}', str(each)) for each in (2, 1, 0)]
    for _ in range(2):
        refused = ask(served, key, stream=stream)
        assert refused.status_code == 429
        assert refused.json()["error"]["message"].startswith(
            f"key '{key}' has reached the limit of quota 'three', 3 requests in 86400 s; try again in "
        )
        assert refused.headers["ratelimit"].startswith('"requests";r=0;t=')
        assert int(refused.headers["retry-after"]) > 28000
    assert served.becomes(3, "requests_total", key)
    assert served.becomes(2, "refusals_total", key, limit="requests")
    assert served.becomes(0, "running_requests", key)


def test_a_call_of_many_choices_is_one_request(served: Served) -> None:
    """By Anthropic's messages too; what is wrong counts as well."""
    with anthropic.Anthropic(base_url=served.url, auth_token=secret("few_anthropic"), max_retries=0) as client:
        say: Any = [{"role": "user", "content": "say hello"}]
        for _ in range(2):
            assert client.messages.create(model="chat", messages=say, max_tokens=64).content
        assert ask(served, "few_anthropic", n=5, prompt=[PROMPT, PROMPT]).status_code == 200
        with pytest.raises(anthropic.RateLimitError):
            client.messages.create(model="chat", messages=say, max_tokens=64)
    for status in (400, 400, 200, 429):
        more = {"temperature": "hot"} if status == 400 else {}
        assert ask(served, "few_wrong", **more).status_code == status


def test_tokens_are_counted_once(served: Served) -> None:
    """Those of an engine by it, of another model by whoever answers; of several choices all."""
    used = 0
    kinds: list[dict[str, Any]] = [{}, {"stream": True, "stream_options": {"include_usage": True}}, {"n": 3}]
    for more in kinds:
        answer = ask(served, "counts", **more)
        assert answer.status_code == 200
        if "stream" in more:
            last = [line for line in answer.text.splitlines() if line.startswith("data: {")][-1]
            usage = json.loads(last.removeprefix("data: "))["usage"]
        else:
            usage = answer.json()["usage"]
        # An engine is given each choice's prompt.
        used += usage["total_tokens"] + usage["prompt_tokens"] * (more.get("n", 1) - 1)
        assert served.becomes(used, "tokens_total", "counts")
    assert int(ask(served, "counts").headers["x-ratelimit-remaining-tokens"]) < 400 - used
    refused = ask(served, "counts", n=30)
    assert refused.status_code == 429
    assert "400 tokens in 86400 s" in refused.json()["error"]["message"]
    assert served.becomes(0, "running_requests", "counts")
    with served.client("estimates") as client:
        before = 0.0
        for stream in (False, True):
            made: Any = client.chat.completions.create(
                model="chat", messages=[{"role": "user", "content": "say hello"}], stream=stream
            )
            if stream:
                list(made)
            assert eventually(lambda: served.of_key("tokens_total", "estimates") > before)  # noqa: B023
            after = served.of_key("tokens_total", "estimates")
            assert before in (0, after / 2)
            before = after
    with served.client("vectors") as client:
        first = client.embeddings.create(model="vectors", input=["banana", "apple"]).usage.total_tokens
    assert served.becomes(first, "tokens_total", "vectors")


def test_the_next_call_has_its_place_by_whichever_process(served: Served) -> None:
    """Of a key with one place, whose client does not wait between its calls."""
    with httpx.Client(timeout=TIMEOUT_SECONDS) as one, httpx.Client(timeout=TIMEOUT_SECONDS) as other:
        headers = {"authorization": f"Bearer {secret('turns')}"}
        statuses = []
        for number in range(60):
            body = {"model": "echo", "prompt": PROMPT, "max_tokens": 3, "stream": number % 3 == 0}
            client = (one, other)[number % 2]
            statuses.append(client.post(f"{served.url}/v1/completions", json=body, headers=headers).status_code)
        assert statuses == [200] * 60


def test_calls_are_observed_once(served: Served) -> None:
    def count(operation: str, **labels: str) -> float:
        name = "gen_ai_server_request_duration_seconds_count"
        return sum(
            metric(
                served.server,
                name,
                gen_ai_operation_name=operation,
                gen_ai_provider_name="trioton",
                gen_ai_request_model=model,
                gen_ai_response_model=model,
                **labels,
            )
            for model in ("echo", "chat", "vectors")
        )

    names = ("chat", "text_completion", "embeddings")
    before = {name: count(name) for name in names}
    assert ask(served, "free", n=4).status_code == 200
    assert ask(served, "free", stream=True).status_code == 200
    assert served.post("free", "/v2/models/echo/generate", text_input=PROMPT, max_tokens=2).status_code == 200
    with served.client("free") as client:
        client.embeddings.create(model="vectors", input=["banana", "apple"])
        client.chat.completions.create(model="chat", messages=[{"role": "user", "content": "say hello"}])
        with pytest.raises(openai.APIError):
            client.chat.completions.create(model="chat", messages=[{"role": "user", "content": "fail now"}])
    wanted = {"chat": 1, "text_completion": 3, "embeddings": 1}
    assert eventually(lambda: {name: count(name) - before[name] for name in names} == wanted)
    assert eventually(lambda: count("chat", error_type="INTERNAL") == 1)


def lines_of(served: Served, key: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in served.log.read_text().splitlines()]
    return [line for line in lines if line.get("key") == key]


def test_each_call_has_one_line_with_its_tokens(served: Served) -> None:
    before = relayed(served)
    whole = ask(served, "logged").json()["usage"]
    assert ask(served, "logged", stream=True).status_code == 200
    assert ask(served, "logged", model="nowhere").status_code == 404
    assert eventually(lambda: len(lines_of(served, "logged")) == 3)
    first, streamed, failed = lines_of(served, "logged")
    for line in (first, streamed):
        assert (line["status"], line["model"], line["version"]) == (200, "echo", "1")
        assert (line["input_tokens"], line["output_tokens"]) == (whole["prompt_tokens"], whole["completion_tokens"])
        assert line["queue_us"] >= 0
    assert failed["status"] == 404
    assert relayed(served) == before


FOREVER = {"model": "endless", "prompt": PROMPT, "max_tokens": 400}


def leave(served: Served, key: str, rng: random.Random) -> None:
    """A call whose client leaves at some time, or reads all."""
    body = json.dumps(
        {**FOREVER, "n": rng.choice([1, 3]), "stream": rng.random() < 0.6, "max_tokens": rng.choice([2, 400])}
    ).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {secret(key)}\r\n"
    sent = f"{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body
    host, port = served.server.addresses["http"].split(":")
    with socket.create_connection((host, int(port)), timeout=TIMEOUT_SECONDS) as connection:
        connection.sendall(sent[: rng.choice([len(sent), len(sent), rng.randrange(len(sent))])])
        connection.settimeout(rng.choice([0.001, 0.05, 0.2, 1.0]))
        try:
            while connection.recv(65536):
                pass
        except TimeoutError:
            pass


def streaming(served: Served, client: httpx.Client, **more: Any) -> httpx.Response:
    """The head of an answer that goes on."""
    body = {**FOREVER, "stream": True, **more}
    return client.send(client.build_request("POST", f"{served.url}/v1/completions", json=body), stream=True)


def has_all_places(served: Served, key: str) -> Callable[[], bool]:
    """So many calls at once, each of which is let in while the others run."""

    def has() -> bool:
        with httpx.Client(headers={"authorization": f"Bearer {secret(key)}"}, timeout=TIMEOUT_SECONDS) as client:
            opened: list[httpx.Response] = []
            try:
                while len(opened) <= PLACES:
                    opened.append(streaming(served, client))
                return [each.status_code for each in opened] == [200] * PLACES + [429]
            finally:
                for each in opened:
                    each.close()

    return has


def test_who_leaves_gives_its_place_back(served: Served) -> None:
    failures: list[BaseException] = []

    def act(seed: int) -> None:
        rng = random.Random(seed)
        try:
            for _ in range(12):
                leave(served, "leaves", rng)
        except BaseException as error:  # raised below
            failures.append(error)

    threads = [threading.Thread(target=act, args=(seed,)) for seed in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert served.becomes(0, "running_requests", "leaves")
    assert eventually(has_all_places(served, "leaves"))


def put_keys(served: Served, *more: str) -> None:
    """Until the server says that they are in force."""
    told = "has changed; its keys are now: "
    said = served.server.log.count(told)
    new = served.keys.with_suffix(".new")
    new.write_text(keys_text(*more))
    new.replace(served.keys)  # at once, as a reader sees it
    assert eventually(lambda: served.server.log.count(told) > said)


def test_a_key_holds_for_texts_as_long_as_it_is_in_force(served: Served) -> None:
    """Under load on all edges."""
    assert ask(served, "late").status_code == 401
    put_keys(served, "late")
    assert eventually(lambda: all(ask(served, "late").status_code == 200 for _ in range(4)))
    over = threading.Event()
    outcomes: list[tuple[float, int]] = []  # when it was sent, and the status

    def act() -> None:
        while not over.is_set():
            sent = time.monotonic()
            outcomes.append((sent, ask(served, "late").status_code))

    threads = [threading.Thread(target=act) for _ in range(4)]
    for thread in threads:
        thread.start()
    try:
        assert eventually(lambda: len(outcomes) > 20)
        put_keys(served)
        in_force = time.monotonic()
        assert eventually(lambda: sum(sent > in_force for sent, _ in outcomes) > 20)
    finally:
        over.set()
        for thread in threads:
            thread.join()
    assert {status for sent, status in outcomes if sent > in_force} == {401}
    assert {status for _, status in outcomes} == {200, 401}


def test_an_edge_that_is_killed_gives_all_places_back(served: Served) -> None:
    """The last test: its neighbours' connections are lost, too."""
    if not served.edges:
        pytest.skip("there is no edge process")
    with httpx.Client(headers={"authorization": f"Bearer {secret('killed')}"}, timeout=TIMEOUT_SECONDS) as client:
        opened = [streaming(served, client, n=2) for _ in range(PLACES)]
        assert [each.status_code for each in opened] == [200] * PLACES
        assert ask(served, "killed").status_code == 429
        for pid in edges_of(served.server).values():
            os.kill(pid, signal.SIGKILL)
        killed = time.monotonic()
        assert eventually(has_all_places(served, "killed"))
        print(f"all places were free after {time.monotonic() - killed:.2f} s, with the start of other edge processes")
        for each in opened:
            each.close()
    assert served.becomes(0, "running_requests", "killed")
