"""Inputs and results of batches, for tests with the official client."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from tests.e2e.server_process import eventually

ENDED = ("completed", "failed", "expired", "cancelled")


def line(custom_id: str, url: str, body: dict[str, Any], method: str = "POST") -> bytes:
    return json.dumps({"custom_id": custom_id, "method": method, "url": url, "body": body}).encode() + b"\n"


def upload(client: Any, lines: Iterable[bytes], name: str = "in.jsonl") -> Any:
    return client.files.create(file=(name, b"".join(lines)), purpose="batch")


def begin(client: Any, lines: Iterable[bytes], endpoint: str, **more: Any) -> Any:
    file = upload(client, lines)
    return client.batches.create(input_file_id=file.id, endpoint=endpoint, completion_window="24h", **more)


def ended(client: Any, batch_id: str) -> Any:
    assert eventually(lambda: client.batches.retrieve(batch_id).status in ENDED)
    return client.batches.retrieve(batch_id)


def results(client: Any, file_id: str | None) -> list[Any]:
    if file_id is None:
        return []
    return [json.loads(text) for text in client.files.content(file_id).text.splitlines()]
