"""Webhooks and idempotency keys of batches, by the official client: it verifies the messages and reads them as its own
events."""

from __future__ import annotations

import base64
import signal
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.e2e.openai.batch_files import begin, ended, line, upload
from tests.e2e.server_process import ServerProcess, eventually
from tests.e2e.webhook_receiver import Receiver, listening

SECRET = f"whsec_{base64.b64encode(b's' * 32).decode()}"
URL = "/v1/completions"
GOOD = [line("a", URL, {"model": "plain", "prompt": "x"})]


def serve(text_repository: Path, folder: Path, receiver: Receiver) -> ServerProcess:
    (folder / "secret").write_text(f"{SECRET}\n")
    flags = (
        f"--jobs-store={folder / 'jobs'}",
        f"--jobs-webhook-secret-file={folder / 'secret'}",
        f"--jobs-webhook-url={receiver.url}/operator",
        f"--jobs-webhook-allowed-hosts=127.0.0.1:{receiver.port}",
    )
    return ServerProcess(*flags, repository=text_repository)


def connected(server: ServerProcess) -> Any:
    address = server.addresses["http"]
    return openai.OpenAI(base_url=f"http://{address}/v1", api_key="none", webhook_secret=SECRET, max_retries=0)


def events(client: Any, receiver: Receiver, path: str) -> list[tuple[str, str]]:
    found = [client.webhooks.unwrap(body, headers) for to, headers, body in receiver.received if to == path]
    return [(event.type, event.data.id) for event in found]


def test_a_batch_tells_its_own_receiver_or_the_operators(text_repository: Path, tmp_path: Path) -> None:
    with (
        listening() as receiver,
        serve(text_repository, tmp_path, receiver) as server,
        connected(server) as client,
    ):
        own: Any = {"webhook": {"url": f"{receiver.url}/own", "events": ["batch.completed"]}}
        completed = begin(client, GOOD, URL, extra_body=own)
        failed = begin(client, [b"{"], URL)
        silent = begin(client, [b"{"], URL, extra_body=own)
        for batch in (completed, failed, silent):
            ended(client, batch.id)
        assert eventually(lambda: len(receiver.received) == 2)
        assert events(client, receiver, "/own") == [("batch.completed", completed.id)]
        assert events(client, receiver, "/operator") == [("batch.failed", failed.id)]
        with pytest.raises(openai.BadRequestError, match="is none of the hosts"):
            begin(client, GOOD, URL, extra_body={"webhook": {"url": "http://127.0.0.1:1/"}})
        with pytest.raises(openai.BadRequestError, match=r"events out of batch\.completed"):
            begin(client, GOOD, URL, extra_body={"webhook": {"url": receiver.url, "events": ["job.failed"]}})


def test_a_server_that_is_killed_tells_afterwards_and_once(text_repository: Path, tmp_path: Path) -> None:
    """The receiver is away when the batch ends, and the server is killed before it is back."""
    with listening() as gone:
        pass
    with serve(text_repository, tmp_path, gone) as server, connected(server) as client:
        batch = begin(client, GOOD, URL)
        server.wait_for_line(r"webhook '.*failed \(attempt 1\)")
        server.signal(signal.SIGKILL)
        server.wait()
    with (
        listening(gone.port) as back,
        serve(text_repository, tmp_path, back) as server,
        connected(server) as client,
    ):
        assert eventually(lambda: len(back.received) == 1)
        again = ended(client, begin(client, GOOD, URL).id)
        assert eventually(lambda: len(back.received) == 2)
        assert sorted(events(client, back, "/operator")) == sorted(
            [("batch.completed", batch.id), ("batch.completed", again.id)]
        )


def test_the_same_key_gives_the_same_batch(text_repository: Path, tmp_path: Path) -> None:
    with ServerProcess(f"--jobs-store={tmp_path}", repository=text_repository) as server, connected(server) as client:
        file = upload(client, GOOD)

        def make(**more: Any) -> Any:
            return client.batches.create(
                input_file_id=file.id,
                endpoint=URL,
                completion_window="24h",
                extra_headers={"Idempotency-Key": "once"},
                **more,
            )

        first = make()
        assert make().id == first.id
        done = ended(client, first.id)
        assert make() == done
        with pytest.raises(openai.UnprocessableEntityError, match="'once' was used for another batch"):
            make(metadata={"a": "b"})
        assert [batch.id for batch in client.batches.list()] == [first.id]
