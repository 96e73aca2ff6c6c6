"""Files and batches with the official client: all endpoints, what is refused and where it is told, pages, keys."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.e2e.openai.batch_files import begin, ended, line, results, upload
from tests.e2e.server_process import ServerProcess

CHAT, COMPLETIONS, EMBEDDINGS, RESPONSES = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/embeddings",
    "/v1/responses",
)
KEYS = """
[keys.ann]
key = "the-key-of-ann-ann"
allow = ["all"]
[keys.bob]
key = "the-key-of-bob-bob"
allow = ["all"]
[keys.eve]
key = "the-key-of-eve-eve"
allow = ["metadata"]
"""


@pytest.fixture(scope="module")
def server(text_repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("batches")
    flags = (f"--jobs-store={folder}", "--jobs-max-file-bytes=1000000")
    with ServerProcess(*flags, repository=text_repository) as made:
        yield made


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> Iterator[Any]:
    with connected(server.addresses["http"]) as made:
        yield made


def connected(address: str, key: str = "none") -> openai.OpenAI:
    return openai.OpenAI(base_url=f"http://{address}/v1", api_key=key, max_retries=0)


def say(text: str) -> dict[str, Any]:
    return {"model": "chat", "messages": [{"role": "user", "content": text}]}


def test_chats(client: Any) -> None:
    lines = [line(f"chat {number}", CHAT, say("say hello")) for number in range(20)]
    batch = begin(client, lines, CHAT, metadata={"what": "greetings"})
    assert (batch.status, batch.object, batch.endpoint, batch.completion_window) == ("validating", "batch", CHAT, "24h")
    assert batch.expires_at - batch.created_at == 86_400
    done = ended(client, batch.id)
    assert (done.status, done.model, done.metadata) == ("completed", "chat", {"what": "greetings"})
    assert (done.request_counts.total, done.request_counts.completed, done.request_counts.failed) == (20, 20, 0)
    assert done.created_at <= done.in_progress_at <= done.finalizing_at <= done.completed_at
    assert done.error_file_id is None
    found = results(client, done.output_file_id)
    assert [each["custom_id"] for each in found] == [f"chat {number}" for number in range(20)]
    assert len({each["id"] for each in found}) == 20
    for each in found:
        response = each["response"]
        assert each["id"].startswith("batch_req_")
        assert (response["status_code"], each["error"]) == (200, None)
        assert response["request_id"]
        whole = openai.types.chat.ChatCompletion.model_validate(response["body"])
        assert (whole.choices[0].message.content or "").startswith("Hello")
    assert done.usage.output_tokens == 20 * 5
    assert done.usage.total_tokens == done.usage.input_tokens + 100
    file = client.files.retrieve(done.output_file_id)
    assert (file.purpose, file.filename) == ("batch_output", f"{batch.id}_output.jsonl")
    assert file.bytes == len(client.files.content(file.id).read())


@pytest.mark.parametrize(
    ("endpoint", "body", "place"),
    [
        (COMPLETIONS, {"model": "plain", "prompt": "abc"}, ("choices", 0, "text")),
        (EMBEDDINGS, {"model": "vectors", "input": "a cat"}, ("data", 0, "embedding")),
        (RESPONSES, {"model": "chat", "input": "say hello"}, ("output", 0, "content", 0, "text")),
    ],
)
def test_an_answer_is_that_of_the_live_route(
    client: Any, server: ServerProcess, endpoint: str, body: dict[str, Any], place: tuple[Any, ...]
) -> None:
    def at(found: Any) -> Any:
        for step in place:
            found = found[step]
        return found

    done = ended(client, begin(client, [line("one", endpoint, body)], endpoint).id)
    (found,) = results(client, done.output_file_id)
    live = httpx.post(f"http://{server.addresses['http']}{endpoint}", json=body).json()
    assert found["response"]["body"].keys() == live.keys()
    assert at(found["response"]["body"]) == at(live)


def test_lines_that_fail_are_told_in_the_error_file_as_the_live_route_tells_it(
    client: Any, server: ServerProcess
) -> None:
    wrong = {"model": "plain", "prompt": "x", "temperature": -3}
    lines = [
        line("good", COMPLETIONS, {"model": "plain", "prompt": "x"}),
        line("wrong", COMPLETIONS, wrong),
        line("refused", COMPLETIONS, {"model": "plain", "prompt": "refuse"}),
        line("streamed", COMPLETIONS, {"model": "plain", "prompt": "x", "stream": True}),
    ]
    done = ended(client, begin(client, lines, COMPLETIONS).id)
    assert (done.status, done.request_counts.completed, done.request_counts.failed) == ("completed", 1, 3)
    assert [each["custom_id"] for each in results(client, done.output_file_id)] == ["good"]
    failed = {each["custom_id"]: each for each in results(client, done.error_file_id)}
    assert [each["error"] for each in failed.values()] == [None, None, None]
    live = httpx.post(f"http://{server.addresses['http']}{COMPLETIONS}", json=wrong)
    response = failed["wrong"]["response"]
    assert response["body"].pop("request_id") == response["request_id"]
    assert response["status_code"] == live.status_code
    assert response["body"] == {key: value for key, value in live.json().items() if key != "request_id"}
    assert failed["streamed"]["response"]["body"]["error"]["param"] == "stream"
    assert failed["refused"]["response"]["status_code"] == 400


def test_a_batch_whose_lines_all_fail_has_no_output_file(client: Any) -> None:
    lines = [line("one", COMPLETIONS, {"model": "plain", "prompt": "refuse"})]
    done = ended(client, begin(client, lines, COMPLETIONS).id)
    assert (done.status, done.output_file_id, done.usage.total_tokens) == ("completed", None, 0)
    assert len(results(client, done.error_file_id)) == 1


def test_what_is_wrong_with_the_lines_is_told_by_the_batch(client: Any) -> None:
    good = {"model": "plain", "prompt": "x"}
    lines = [
        line("a", COMPLETIONS, good),
        b"{\n",
        line("a", COMPLETIONS, good),
        line("b", CHAT, good),
        line("c", COMPLETIONS, {"model": "other", "prompt": "x"}),
    ]
    done = ended(client, begin(client, lines, COMPLETIONS).id)
    assert (done.status, done.output_file_id, done.request_counts.total) == ("failed", None, 0)
    assert done.failed_at >= done.created_at
    assert [(error.line, error.code, error.param) for error in done.errors.data] == [
        (2, "invalid_json_line", None),
        (3, "duplicate_custom_id", "custom_id"),
        (4, "url_mismatch", "url"),
        (5, "model_mismatch", "body.model"),
    ]


def test_a_model_that_is_not_there_fails_the_batch(client: Any) -> None:
    done = ended(client, begin(client, [line("a", COMPLETIONS, {"model": "none", "prompt": "x"})], COMPLETIONS).id)
    assert done.status == "failed"
    assert [(error.line, error.code) for error in done.errors.data] == [(1, "model_not_found")]


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"endpoint": "/v1/moderations"}, "endpoint"),
        ({"completion_window": "1h"}, "completion_window"),
        ({"input_file_id": "file-none"}, "input_file_id"),
        ({"metadata": {"k": "x" * 513}}, "metadata"),
        ({"output_expires_after": {"anchor": "created_at", "seconds": 60}}, "output_expires_after.seconds"),
    ],
)
def test_a_batch_that_cannot_be_is_refused(client: Any, change: dict[str, Any], param: str) -> None:
    file = upload(client, [b"{}"])
    asked: Any = {"input_file_id": file.id, "endpoint": CHAT, "completion_window": "24h", **change}
    with pytest.raises(openai.BadRequestError) as refused:
        client.batches.create(**asked)
    assert refused.value.param == param


def test_a_file(client: Any) -> None:
    content = b"x" * 300_000 + b"\r\n\0\xff"
    file = client.files.create(
        file=("a b\N{EURO SIGN}.jsonl", content),
        purpose="batch",
        expires_after={"anchor": "created_at", "seconds": 7200},
    )
    assert (file.object, file.bytes, file.purpose, file.status) == ("file", len(content), "batch", "processed")
    assert (file.filename, file.expires_at - file.created_at) == ("a b\N{EURO SIGN}.jsonl", 7200)
    assert client.files.retrieve(file.id) == file
    assert client.files.content(file.id).read() == content
    assert client.files.delete(file.id).deleted
    for call in (client.files.retrieve, client.files.content, client.files.delete):
        with pytest.raises(openai.NotFoundError):
            call(file.id)


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"purpose": "vision"}, "purpose"),
        ({"purpose": "batch", "expires_after": {"anchor": "created_at", "seconds": 1}}, "expires_after.seconds"),
    ],
)
def test_an_upload_that_is_refused(client: Any, more: Any, param: str) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.files.create(file=("in.jsonl", b"x"), **more)
    assert refused.value.param == param


def test_a_file_that_is_too_large_is_refused_by_its_head_or_as_it_comes(server: ServerProcess) -> None:
    url = f"http://{server.addresses['http']}/v1/files"
    answer = httpx.post(url, files={"file": b"x" * 1_200_000}, data={"purpose": "batch"})
    assert answer.status_code == 413
    assert "--jobs-max-file-bytes" in answer.json()["error"]["message"]

    def pieces() -> Iterator[bytes]:
        yield b'--XX\r\nContent-Disposition: form-data; name="file"; filename="f"\r\n\r\n'
        for _ in range(30):
            yield b"x" * 50_000

    headers = {"content-type": "multipart/form-data; boundary=XX"}
    assert httpx.post(url, content=pieces(), headers=headers).status_code == 413


def test_lists_have_pages(client: Any) -> None:
    files = [upload(client, [b"x"], f"{number}.jsonl") for number in range(5)]
    newest = [file.id for file in client.files.list(limit=2)][:5]
    assert newest == [file.id for file in reversed(files)]
    assert client.files.list(limit=2).has_more
    assert [file.id for file in client.files.list(order="asc", after=files[3].id)] == [files[4].id]
    assert all(file.purpose == "batch_output" for file in client.files.list(purpose="batch_output"))
    batches = [begin(client, [b"{}"], CHAT) for _ in range(5)]
    page = client.batches.list(limit=2)
    assert [batch.id for batch in page.data] == [batch.id for batch in batches[:2:-1]]
    assert [batch.id for batch in client.batches.list(limit=2)][:5] == [batch.id for batch in reversed(batches)]
    for batch in batches:
        ended(client, batch.id)


def test_batches_are_no_jobs_of_the_list(client: Any, server: ServerProcess) -> None:
    batch = begin(client, [line("a", CHAT, say("say hello"))], CHAT)
    url = f"http://{server.addresses['http']}/v2/jobs"
    assert httpx.get(url).json()["jobs"] == []
    assert httpx.get(f"{url}/{batch.id}").status_code == 404
    ended(client, batch.id)


def test_without_a_store_they_are_not_there(text_server: ServerProcess) -> None:
    url = f"http://{text_server.addresses['http']}/v1"
    for method, path in (("POST", "/files"), ("GET", "/files"), ("POST", "/batches"), ("GET", "/batches/batch_1")):
        answer = httpx.request(method, url + path, json={} if method == "POST" else None)
        assert answer.status_code == 501
        assert "--jobs-store" in answer.json()["error"]["message"]


def test_files_and_batches_belong_to_the_key_that_made_them(text_repository: Path, tmp_path: Path) -> None:
    (tmp_path / "keys.toml").write_text(KEYS)
    flags = (f"--jobs-store={tmp_path / 'jobs'}", f"--auth-keys-file={tmp_path / 'keys.toml'}")
    with ServerProcess(*flags, repository=text_repository) as server, ExitStack() as stack:
        address = server.addresses["http"]
        clients: list[Any] = [connected(address, f"the-key-of-{name}-{name}") for name in ("ann", "bob", "eve")]
        ann, bob, eve = map(stack.enter_context, clients)
        done = ended(ann, begin(ann, [line("a", CHAT, say("say hello"))], CHAT).id)
        assert done.status == "completed"
        for call, thing in (
            (bob.batches.retrieve, done.id),
            (bob.batches.cancel, done.id),
            (bob.files.retrieve, done.output_file_id),
            (bob.files.content, done.output_file_id),
            (bob.files.delete, done.input_file_id),
        ):
            with pytest.raises(openai.NotFoundError):
                call(thing)
        assert list(bob.batches.list()) == list(bob.files.list()) == []
        with pytest.raises(openai.BadRequestError):
            bob.batches.create(input_file_id=done.input_file_id, endpoint=CHAT, completion_window="24h")
        with pytest.raises(openai.PermissionDeniedError):
            eve.files.list()
        assert len(list(ann.files.list())) == 2


def test_on_the_port_of_its_own(text_repository: Path, tmp_path: Path) -> None:
    flags = (f"--jobs-store={tmp_path}", "--openai-port=0", "--openai-address=127.0.0.1")
    with ServerProcess(*flags, repository=text_repository) as server:
        address = server.wait_for_line(r'Started OpenAI frontend at ([^\s"]+)').group(1)
        with connected(address) as client:
            done = ended(client, begin(client, [line("a", CHAT, say("say hello"))], CHAT).id)
            assert json.dumps(results(client, done.output_file_id)[0]["response"]["status_code"]) == "200"
