"""Calls the application directly, as hypercorn would for HTTP/2, without a socket."""

from __future__ import annotations

import json
import sys
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import trio
from hypercorn.typing import (
    ASGIReceiveEvent,
    ASGISendEvent,
    HTTPScope,
)

from protocol.http.exchange import App
from protocol.http.http2.upgraded.exchange import AsgiExchange
from protocol.limits.answer_memory import AnswerMemory
from protocol.limits.request_memory import RequestMemory


@dataclass
class Answer:
    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""
    complete: bool = False

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> str:
        assert list(self.json) == ["error", "request_id"]
        return str(self.json["error"])


@dataclass
class Exchange:
    """One exchange, its body given in chunks by a function, or at once.

    `disconnect` makes the client leave, with `leaves_early` after its chunks but before the end of its body; `taken`
    counts the chunks that the application has asked for."""

    method: str
    path: str
    body: bytes | Iterable[bytes] = b""
    headers: dict[str, str] = field(default_factory=dict)
    next_chunk: Callable[[], Awaitable[bytes | None]] | None = None
    disconnect: trio.Event = field(default_factory=trio.Event)
    answer: Answer = field(default_factory=Answer)
    taken: int = 0
    leaves_early: bool = False
    twice: list[tuple[str, str]] = field(default_factory=list)  # headers beside `headers`, which may repeat

    async def run(self, app: App) -> Answer:
        headers = {name.lower(): value for name, value in self.headers.items()}
        if isinstance(self.body, bytes) and self.body:
            headers.setdefault("content-length", str(len(self.body)))
        self._chunks = iter([self.body] if isinstance(self.body, bytes) else self.body)
        self._ended = False
        scope: HTTPScope = {
            "type": "http",
            "asgi": {},
            "http_version": "2",
            "method": self.method,
            "scheme": "http",
            "path": self.path,
            "raw_path": self.path.partition("?")[0].encode(),
            "query_string": self.path.partition("?")[2].encode(),
            "root_path": "",
            "headers": [(name.encode(), value.encode("latin-1")) for name, value in [*headers.items(), *self.twice]],
            "client": None,
            "server": None,
            "state": {},  # type: ignore[typeddict-item]  # a plain dict stands in for hypercorn's new type
            "extensions": {},
        }
        await app(AsgiExchange(scope, self._receive, self._send, AnswerMemory(RequestMemory(sys.maxsize))))
        return self.answer

    async def _receive(self) -> ASGIReceiveEvent:
        await trio.lowlevel.checkpoint()
        if not self._ended:
            chunk = await self.next_chunk() if self.next_chunk else next(self._chunks, None)
            self.taken += 1
            if chunk is not None:
                return {"type": "http.request", "body": chunk, "more_body": True}
            self._ended = True
            if not self.leaves_early:
                return {"type": "http.request", "body": b"", "more_body": False}
        await self.disconnect.wait()
        return {"type": "http.disconnect"}

    async def _send(self, event: ASGISendEvent) -> None:
        await trio.lowlevel.checkpoint()
        if event["type"] == "http.response.start":
            assert self.answer.status == 0
            self.answer.status = event["status"]
            self.answer.headers = {name.decode(): value.decode() for name, value in event["headers"]}
        elif event["type"] == "http.response.body":
            assert not self.answer.complete
            self.answer.body += event["body"]
            self.answer.complete = not event["more_body"]
            if self.answer.complete and "content-length" in self.answer.headers:
                assert self.answer.headers["content-length"] == str(len(self.answer.body))


async def call(
    app: App, method: str, path: str, body: bytes | Iterable[bytes] = b"", headers: dict[str, str] | None = None
) -> Answer:
    return await Exchange(method, path, body, headers or {}).run(app)
