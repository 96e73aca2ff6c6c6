"""The console's interface of a whole server: JSON and events, keys, hosts, and an orderly end."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio

from protocol.http.routes import CONSOLE
from tests.e2e.repository import add_add_sub
from tests.trioton.test_server import add_sub_request, settings
from trioton.server import Server, open_server
from trioton.service_names import address_text

pytestmark = pytest.mark.slow

KEYS = """
[keys.watcher]
key = "watcher-0123456789"
allow = ["metadata", "metrics"]
[keys.admin]
key = "administrator-0123456789"
allow = ["all"]
"""


@pytest.fixture
def models(tmp_path: Path) -> Path:
    add_add_sub(tmp_path / "models" / "add_sub", versions=(1,))
    return tmp_path / "models"


@asynccontextmanager
async def served(models: Path, **values: Any) -> AsyncIterator[tuple[Server, httpx.AsyncClient]]:
    values = {"console": True, "model_control_mode": "explicit", "load_model": ("*",), **values}
    async with (
        open_server(settings(models, **values)) as server,
        httpx.AsyncClient(base_url=f"http://{address_text(server.addresses['http'])}/v2/") as client,
    ):
        yield server, client


@dataclass
class Events:
    """The events of a connection of its own."""

    stream: trio.SocketStream
    unread: bytes = b""

    async def next(self) -> tuple[str, dict[str, Any]] | None:
        """None at the end."""
        while (found := re.search(rb"event: (\w+)\ndata: (.*)\n\n", self.unread)) is None:
            more = b"" if self.unread.endswith(b"\r\n0\r\n\r\n") else await self.stream.receive_some()
            if not more:
                return None
            self.unread += more
        self.unread = self.unread[found.end() :]  # from the end of the chunk on
        return found[1].decode(), json.loads(found[2])

    async def to_the_end(self) -> None:
        while await self.next() is not None:
            pass


@asynccontextmanager
async def events(server: Server, headers: str = "") -> AsyncIterator[Events]:
    host, port = server.addresses["http"]
    async with await trio.open_tcp_stream(host, port) as stream:
        await stream.send_all(f"GET /v2/console/events HTTP/1.1\r\nHost: {host}\r\n{headers}\r\n".encode())
        yield Events(stream)


async def test_without_the_flag_there_is_nothing(models: Path) -> None:
    async with served(models, console=False) as (_, client):
        for path in ("console", "console/access", "console/events", "console/files/console.css", "console/log"):
            assert (await client.get(path)).status_code == 404
        assert "/v2/console" not in (await client.get("docs/openapi.json")).json()["paths"]


async def test_a_snapshot_and_then_what_changes(models: Path) -> None:
    async with served(models) as (server, client), events(server) as stream:
        begin = await stream.next()
        assert begin is not None
        kind, first = begin
        assert kind == "snapshot"
        assert [(row["name"], row["version"], row["state"]) for row in first["models"]] == [("add_sub", "1", "READY")]
        for _ in range(5):
            await server.models.infer(add_sub_request("add_sub"))
        more = await stream.next()
        assert more is not None
        kind, second = more
        assert (kind, second["number"]) == ("changes", first["number"] + 1)
        (row,) = second["models"]
        assert row["rate"] > 0
        assert row["p50"] is not None
        assert second["server"]["viewers"] == 1
        history = (await client.get("console/history")).json()
        assert len(history["series"]["rate"]) == 900
        assert history["series"]["memory"][-1] > 10_000_000
        assert set((await client.get("console/models/add_sub/versions/1/history")).json()["series"]) >= {"p99", "batch"}


async def test_its_headers_are_those_of_a_stream(models: Path) -> None:
    async with served(models) as (server, _), events(server) as stream:
        head = await stream.stream.receive_some()
        for line in (b"content-type: text/event-stream; charset=utf-8", b"cache-control: no-store"):
            assert line in head
        assert b"x-accel-buffering: no" in head


async def test_the_end_of_the_server_ends_the_stream(models: Path) -> None:
    async with served(models) as (server, _), events(server) as stream:
        assert await stream.next() is not None
        server.stop()
        await stream.to_the_end()


async def test_a_client_that_leaves_is_no_viewer_any_more(models: Path) -> None:
    async with served(models) as (server, _):
        async with events(server) as stream:
            assert await stream.next() is not None
        async with events(server) as stream:
            while (found := await stream.next()) is not None and found[1]["server"]["viewers"] > 1:
                pass
            assert found is not None


async def test_what_a_key_may_do_is_said_and_held(models: Path, tmp_path: Path) -> None:
    (tmp_path / "keys.toml").write_text(KEYS)
    async with served(models, auth_keys_file=tmp_path / "keys.toml") as (_, client):
        watcher = {"authorization": "Bearer watcher-0123456789"}
        admin = {"authorization": "Bearer administrator-0123456789"}
        assert (await client.get("console")).status_code == 200
        found = (await client.get("console/access")).json()
        assert (found["needs_key"], found["key"], found["allowed"]) == (True, "anonymous", [])
        assert (await client.get("console/access", headers={"authorization": "Bearer unknown"})).status_code == 401
        found = (await client.get("console/access", headers=watcher)).json()
        assert (found["key"], found["allowed"]) == ("watcher", ["metadata", "model-config", "statistics", "metrics"])
        assert "does not allow 'logging'" in found["refused"]["logging"]
        for path in ("snapshot", "history", "models/add_sub", "requests"):
            assert (await client.get(f"console/{path}")).status_code == 401
            assert (await client.get(f"console/{path}", headers=watcher)).status_code == 200
        for path in ("log", "errors"):
            assert (await client.get(f"console/{path}", headers=watcher)).status_code == 403
            assert (await client.get(f"console/{path}", headers=admin)).status_code == 200
        act = {"content-type": "application/json"}
        assert (await client.post("console/requests/1/cancel", headers={**watcher, **act})).status_code == 403
        assert (await client.post("console/requests/1/cancel", headers={**admin, **act})).json() == {"cancelled": False}
        # Another site may have a name of its own lead here, but it has no key.
        assert (await client.get("console/history", headers={**admin, "host": "models.example"})).status_code == 200


async def test_a_key_that_is_taken_back_ends_the_stream(models: Path, tmp_path: Path) -> None:
    keys = tmp_path / "keys.toml"
    keys.write_text(KEYS)
    header = "Authorization: Bearer watcher-0123456789\r\n"
    async with served(models, auth_keys_file=keys) as (server, _), events(server, header) as stream:
        assert await stream.next() is not None
        keys.write_text(KEYS.replace("watcher-0123456789", "another-one-0123456789"))
        await stream.to_the_end()


async def test_foreign_hosts_are_refused(models: Path) -> None:
    async with served(models, console_host=("Console.Example",)) as (_, client):
        for path in ("console", "console/access", "console/events", "console/log", "console/files/console.css"):
            refused = await client.get(path, headers={"host": "evil.example:80"})
            assert refused.status_code == 403
            assert "--console-host" in refused.json()["error"]
        assert (await client.get("console/access", headers={"host": "console.example"})).status_code == 200


async def test_acts_take_json_alone(models: Path) -> None:
    """What a form of another page can send is refused."""
    async with served(models) as (_, client):
        for content_type in ("", "text/plain", "application/x-www-form-urlencoded"):
            refused = await client.post("console/requests/1/cancel", headers={"content-type": content_type})
            assert refused.status_code == 501
        assert (await client.get("console/requests/1/cancel")).status_code == 405
        bad = await client.post("console/requests/one/cancel", headers={"content-type": "application/json"})
        assert bad.status_code == 400
        assert "expected a whole number, got 'one'" in bad.json()["error"]
        assert (await client.get("console/log?after=x")).status_code == 400
        assert (await client.get("console/models/none")).status_code == 404


async def test_pages_of_other_origins_change_nothing(models: Path, tmp_path: Path) -> None:
    """Where there are no keys, a browser would send what they ask it to; with keys they have none."""
    forged = {"sec-fetch-site": "cross-site", "origin": "http://evil.example", "content-type": "text/plain"}
    rebound = {"host": "evil.example", "origin": "http://evil.example"}
    acts = (
        "repository/models/add_sub/unload",
        "repository/models/add_sub/load",
        "repository/index",
        "console/requests/1/cancel",
        "models/add_sub/requests/r/cancel",
        "jobs/job_1/cancel",
        "trace/setting",
        "logging",
        "systemsharedmemory/unregister",
    )
    async with served(models) as (server, client):
        own = {"sec-fetch-site": "same-origin", "origin": f"http://{address_text(server.addresses['http'])}"}
        for path in acts:
            for headers in (forged, rebound):
                refused = await client.post(path, content=b"{}", headers=headers)
                assert (path, refused.status_code) == (path, 403)
                assert "a page of another origin (http://evil.example)" in refused.json()["error"]
        assert (await client.delete("jobs/job_1", headers=forged)).status_code == 403
        assert (await client.get("models/add_sub/ready", headers=forged)).status_code == 200
        assert (await client.post("repository/models/add_sub/load", headers=own)).status_code == 200
        assert (await client.post("repository/models/add_sub/load")).status_code == 200
    (tmp_path / "keys.toml").write_text(KEYS)
    async with served(models, auth_keys_file=tmp_path / "keys.toml") as (_, client):
        assert (await client.post("repository/models/add_sub/unload", headers=forged)).status_code == 401
    async with served(models, console=False) as (_, client):
        assert (await client.post("repository/models/add_sub/load", headers=forged)).status_code == 200


HOSTILE = (
    "..%2f..%2fhandlers.py",
    "%2e%2e",
    "%00",
    "%1b[31m",
    "%ff%fe",
    "<img src=x onerror=alert(1)>",
    "\u202egnp.exe",
    "9" * 40,
    "-1",
    "x" * 6000,
)
QUERIES = ("", "?after=x", "?after=-1", "?after=%00", "?after=" + "9" * 18, "?" + "a=1&" * 500, "?" + "&" * 5000)


def asked(path: str, has_all: bool) -> Iterator[str]:
    """Targets of a route, its parameters and its query filled with what nobody should send."""
    for value, query in zip_longest(HOSTILE if "{" in path and has_all else HOSTILE[:1], QUERIES if has_all else ()):
        yield "".join(part if "{" not in part else value or "1" for part in re.split(r"({\w+})", path)) + (query or "")


async def test_every_route_stands_hostile_input(models: Path, tmp_path: Path) -> None:
    """With every kind of key; nothing is answered that the key does not allow, and nothing fails."""
    (tmp_path / "keys.toml").write_text(KEYS)
    keys = {"none": b"", "wrong": b"Bearer nobody-0123456789", "long": b"Bearer " + b"k" * 6000, "odd": b"Bearer \xff"}
    keys |= {"watcher": b"Bearer watcher-0123456789", "admin": b"Bearer administrator-0123456789"}
    async with served(models, auth_keys_file=tmp_path / "keys.toml") as (_, client):
        for route in CONSOLE:
            if route.path.endswith("/events"):
                continue
            for name, key in keys.items():
                for path in asked(route.path, name == "admin"):
                    headers = {b"content-type": b"application/json", **({b"authorization": key} if key else {})}
                    body = b"[" * 5000 if route.method == "POST" else b""
                    found = await client.request(route.method, path, headers=headers, content=body)
                    seen = name, path[:80], found.status_code, found.text[:200]
                    is_refused = found.status_code in (400, 401, 403, 404, 431)
                    assert is_refused or (
                        found.status_code == 200 and (name in ("watcher", "admin") or route.is_public)
                    ), seen
                    assert is_refused or "no-" in found.headers["cache-control"], seen
        found = await client.get(f"console/models/{'x' * 60_000}", headers={b"authorization": keys["admin"]})
        assert (found.status_code, len(found.text) < 1000) == (404, True)


async def test_text_that_is_no_utf8_is_shown_all_the_same(models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger("trioton"), "propagate", False)  # pytest's reports must be UTF-8
    async with served(models) as (_, client):
        logging.getLogger("trioton.test").warning("file '\udcff' \x1b[31m %s", "é" * 3000)
        row = (await client.get("console/log")).json()[-1]
        assert row["text"].startswith("file '\\udcff' \x1b[31m éé")
        assert len(row["text"]) < 2010


async def test_errors_and_the_log_are_kept(models: Path) -> None:
    async with served(models) as (_, client):
        bad = {"id": "mine", "inputs": [{"name": "INPUT0", "shape": [1], "datatype": "FP32", "data": [1, 2]}]}
        assert (await client.post("models/add_sub/infer", json=bad)).status_code == 400
        found = await client.get("console/errors")
        assert found.headers["cache-control"] == "no-store"
        (row,) = found.json()
        assert (row["number"], row["call"], row["status"], row["model"]) == (1, "HTTP infer", "400", "add_sub")
        assert (await client.get("console/errors?after=1")).json() == []
        logging.getLogger("trioton.test").warning("<b>%s</b>", "markup")
        row = (await client.get("console/log")).json()[-1]
        assert (row["level"], row["logger"], row["text"]) == ("WARNING", "trioton.test", "<b>markup</b>")
        assert (await client.get(f"console/log?after={row['number']}")).json() == []
    assert not logging.getLogger("trioton").handlers


async def test_files_come_with_the_strictest_policy(models: Path) -> None:
    async with served(models) as (_, client):
        for path in ("console", "console/files/console.css", "console/files/standalone.module.js"):
            found = await client.get(path)
            assert found.status_code == 200
            policy = found.headers["content-security-policy"].split("; ")
            assert {"default-src 'none'", "script-src 'self'", "require-trusted-types-for 'script'"} <= set(policy)
            assert "unsafe" not in found.headers["content-security-policy"]
            assert found.headers["x-content-type-options"] == "nosniff"
            again = await client.get(path, headers={"if-none-match": found.headers["etag"]})
            assert (again.status_code, again.content) == (304, b"")
        assert (await client.get("console/files/handlers.py")).status_code == 404
        assert (await client.get("console/files/..%2fhandlers.py")).status_code == 404
