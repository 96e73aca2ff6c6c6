"""A small client of the server's HTTP interface: loads, configurations, statistics and single requests.

Each call is a request of its own in a thread; load is another matter, see `trioton.perf`.
"""

from __future__ import annotations

import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

import msgspec
import trio

from protocol.datatypes import DataType
from protocol.messages import Tensor
from trioton.convert.tensors import Arrays

_MOST_BYTES = 1 << 30
_HEADER_LENGTH = "Inference-Header-Content-Length"


class CallFailed(Exception):
    """The server refuses, or does not answer; the text is its own."""


@dataclass(frozen=True, slots=True)
class HttpClient:
    """`address` is host:port; `headers` go with every request."""

    address: str
    headers: Mapping[str, str] = field(default_factory=dict)
    seconds: float = 60.0

    async def load(self, model: str, config: str | None = None) -> None:
        """Load a model, with a configuration as JSON in place of its own."""
        body = {"parameters": {"config": config}} if config is not None else {}
        await self.call("POST", f"/v2/repository/models/{quote(model, safe='')}/load", msgspec.json.encode(body))

    async def config(self, model: str) -> dict[str, Any]:
        return await self.json(f"/v2/models/{quote(model, safe='')}/config")

    async def json(self, path: str) -> dict[str, Any]:
        answer, _ = await self.call("GET", path)
        try:
            return msgspec.json.decode(answer, type=dict[str, Any])
        except msgspec.DecodeError as error:
            raise CallFailed(f"{path}: {error}") from None

    async def text(self, path: str) -> str:
        answer, _ = await self.call("GET", path)
        return answer.decode(errors="replace")

    async def infer(self, model: str, inputs: Sequence[Tensor]) -> Arrays:
        """One request, its answer as arrays."""
        heads = [
            {
                "name": each.name,
                "datatype": each.datatype.name,
                "shape": list(each.shape),
                "parameters": {"binary_data_size": each.byte_size},
            }
            for each in inputs
        ]
        head = msgspec.json.encode({"inputs": heads, "parameters": {"binary_data_output": True}})
        body = b"".join([head, *(bytes(each.data) for each in inputs)])
        path = f"/v2/models/{quote(model, safe='')}/infer"
        answer, headers = await self.call("POST", path, body, {_HEADER_LENGTH: str(len(head))})
        return _outputs(answer, int(headers.get(_HEADER_LENGTH, len(answer))))

    async def call(
        self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> tuple[bytes, Mapping[str, str]]:
        """Raises CallFailed."""
        given = {**self.headers, **(headers or {})}
        return await trio.to_thread.run_sync(self._call, method, path, body, given, abandon_on_cancel=True)

    def _call(self, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> tuple[bytes, Mapping[str, str]]:
        request = urllib.request.Request(f"http://{self.address}{path}", body or None, dict(headers), method=method)
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=self.seconds) as answer:
                return answer.read(_MOST_BYTES), answer.headers
        except urllib.error.HTTPError as error:
            raise CallFailed(_reason(error.read(1 << 20)) or f"{path}: status {error.code}") from None
        except (OSError, ValueError) as error:
            reason = error.reason if isinstance(error, urllib.error.URLError) else error
            text = reason.strerror if isinstance(reason, OSError) and reason.strerror else reason
            raise CallFailed(f"{self.address} does not answer: {text}") from None


def _reason(body: bytes) -> str:
    try:
        found = msgspec.json.decode(body)
    except msgspec.DecodeError:
        return body.decode(errors="replace").strip()
    return str(found.get("error", "")) if isinstance(found, dict) else ""


def _outputs(body: bytes, head: int) -> Arrays:
    answer = msgspec.json.decode(body[:head])
    found: Arrays = {}
    at = head
    for output in answer["outputs"]:
        datatype, shape = DataType[output["datatype"]], output["shape"]
        size = output["parameters"]["binary_data_size"]
        tensor = Tensor(output["name"], datatype, tuple(shape), body[at : at + size])
        found[output["name"]] = tensor.as_numpy()
        at += size
    return found
