"""A client of jobs over HTTP, with nothing but the standard library."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from dataclasses import dataclass
from email.message import Message
from typing import Any

from tests.e2e.server_process import TIMEOUT_SECONDS, eventually


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Message
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.body.splitlines()]


class JobClient:
    """`key` is the bearer key of all its calls."""

    def __init__(self, address: str, key: str = "") -> None:
        self._url = f"http://{address}"
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}

    def call(self, method: str, path: str, body: object = None, **headers: str) -> Answer:
        """An answer of any status; a body that is no bytes goes as JSON."""
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        request = urllib.request.Request(self._url + path, data, {**self._headers, **named}, method=method)
        try:
            with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as answer:
                return Answer(answer.status, answer.headers, answer.read())
        except urllib.error.HTTPError as error:
            with error:
                return Answer(error.code, error.headers, error.read())

    def submit(self, requests: list[dict[str, Any]]) -> str:
        answer = self.call("POST", "/v2/jobs", {"requests": requests})
        assert answer.status == 202, answer.body
        assert answer.headers["Location"] == f"/v2/jobs/{answer.json['id']}"
        return str(answer.json["id"])

    def job(self, job_id: str) -> Any:
        answer = self.call("GET", f"/v2/jobs/{job_id}")
        assert answer.status == 200, answer.body
        return answer.json

    def ended(self, job_id: str) -> Any:
        assert eventually(lambda: "ended_at" in self.job(job_id))
        return self.job(job_id)


def slow_request(value: int, seconds: float) -> dict[str, Any]:
    """For the model `slow`, which gives the value back."""
    return {
        "model_name": "slow",
        "custom_id": f"value {value}",
        "inputs": [
            {"name": "SECONDS", "datatype": "FP32", "shape": [1], "data": [seconds]},
            {"name": "VALUE", "datatype": "INT64", "shape": [1], "data": [value]},
        ],
    }
