"""The answers of `/v2/docs`: the page, its files and the document, as a browser asks for them."""

from __future__ import annotations

import gzip
import hashlib
import re
from collections.abc import Iterator, Sequence
from importlib import resources

import pytest

from protocol.access.control import AccessControl
from protocol.access.restricted import HTTP_API, RestrictedApis
from protocol.core import ModelMetadata, ModelStatistics
from protocol.errors import Unavailable
from protocol.http.app import HttpApp
from protocol.http.openapi.handlers import ASSETS
from protocol.http.settings import HttpSettings
from protocol.messages import LATEST_VERSION
from tests.protocol.http.asgi import Answer, call
from tests.protocol.http.conftest import Serve
from tests.protocol.http.fake_core import FakeCore
from tests.protocol.http.fake_services import make_services

PAGE = "/v2/docs"
DOCUMENT = "/v2/docs/openapi.json"
FILES = [f"{PAGE}/{name}" for name in ASSETS]


async def get(path: str, core: FakeCore | None = None, access: AccessControl | None = None, **headers: str) -> Answer:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return await call(HttpApp(make_services(core, access=access), HttpSettings()), "GET", path, headers=named)


def asset(name: str) -> bytes:
    return resources.files("protocol.http.openapi").joinpath("assets", name).read_bytes()


@pytest.mark.parametrize(
    ("path", "content_type"),
    [
        (PAGE, "text/html; charset=utf-8"),
        (DOCUMENT, "application/json"),
        (f"{PAGE}/page.js", "text/javascript; charset=utf-8"),
        (f"{PAGE}/page.css", "text/css; charset=utf-8"),
        (f"{PAGE}/standalone.module.js", "text/javascript; charset=utf-8"),
        (f"{PAGE}/pages.css", "text/css; charset=utf-8"),
    ],
)
async def test_headers(path: str, content_type: str) -> None:
    """The policy allows nothing inline, nothing evaluated and no other host."""
    answer = await get(path)
    assert answer.status == 200
    assert answer.headers["content-type"] == content_type
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["cache-control"] == "no-cache"
    policy = dict(entry.split(" ", 1) for entry in answer.headers["content-security-policy"].split("; "))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert policy["require-trusted-types-for"] == "'script'"
    assert policy["trusted-types"] == "'none'"
    assert set(policy.values()) <= {"'none'", "'self'", "'self' data:", "'script'"}


async def test_the_page_loads_what_is_there() -> None:
    """Every address in it and in its scripts is one of ours, relative to it; nothing is written inline."""
    page = (await get(PAGE)).body.decode()
    addresses = {address for address in re.findall(r'(?:src|href)="([^"]*)"', page) if address != "data:,"}
    scripts = [(await get(path)).body.decode() for path in FILES if path.endswith(".js")]
    imported = {name for script in scripts for name in re.findall(r'from "\./([^"]+)"', script)}
    assert {f"/v2/{address}" for address in addresses} | {f"{PAGE}/{name}" for name in imported} == {*FILES, DOCUMENT}
    assert "<style" not in page
    assert " style=" not in page
    assert re.search(r"<script(?! src=)", page) is None
    assert "://" not in page


@pytest.mark.parametrize(
    "path", ["/v2/docs/", "/v2/docs/absent.js", "/v2/docs/..%2fhandlers.py", "/v2/docs/index.html"]
)
async def test_other_files_are_not_there(path: str) -> None:
    answer = await get(path)
    assert (answer.status, answer.error) == (404, "Not Found")


@pytest.mark.parametrize("path", [PAGE, DOCUMENT, *FILES])
async def test_what_is_known_is_not_sent_again(path: str) -> None:
    first = await get(path)
    tag = first.headers["etag"]
    for known in (tag, f'"other", {tag}', "*"):
        again = await get(path, if_none_match=known)
        assert again.status == 304
        assert (again.headers["etag"], again.headers["cache-control"]) == (tag, "no-cache")
    assert (await get(path, if_none_match='"other"')).status == 200


async def test_the_tag_of_the_document_changes_with_the_models() -> None:
    tags = {(await get(DOCUMENT, core)).headers["etag"] for core in (FakeCore(), Models(["echo"]), Models([]))}
    assert len(tags) == 2  # the first two have the same model


@pytest.mark.parametrize("path", [DOCUMENT, f"{PAGE}/standalone.module.js", f"{PAGE}/pages.css"])
async def test_large_files_travel_compressed(path: str) -> None:
    plain, packed = await get(path), await get(path, accept_encoding="gzip, deflate, br")
    assert "content-encoding" not in plain.headers
    assert packed.headers["content-encoding"] == "gzip"
    assert gzip.decompress(packed.body) == plain.body
    assert len(packed.body) < len(plain.body) / 2
    assert packed.headers["vary"] == plain.headers["vary"] == "accept-encoding"


async def test_head_and_304_have_the_length_and_no_body(serve: Serve) -> None:
    """Over a real connection, which stays usable."""
    server = await serve()
    stream = await server.connect()
    size = len(asset("page.js"))
    tag = (await get(f"{PAGE}/page.js")).headers["etag"]
    for method, more, status in (
        ("HEAD", "", b"200"),
        ("GET", f"if-none-match: {tag}\r\n", b"304"),
        ("HEAD", "", b"200"),
    ):
        await stream.send_all(f"{method} {PAGE}/page.js HTTP/1.1\r\nhost: x\r\n{more}\r\n".encode())
        received = b""
        while b"\r\n\r\n" not in received:
            received += await stream.receive_some()
        assert received.startswith(b"HTTP/1.1 " + status)
        assert b"content-length: %d\r\n" % size in received
        assert received.endswith(b"\r\n\r\n")


@pytest.mark.parametrize("package", ["protocol.http.page_parts", "protocol.http.console"])
async def test_what_is_not_ours_is_what_is_named(package: str) -> None:
    """What is packaged is what its package holds, by the sums that are written down beside it."""
    folder = resources.files(package).joinpath("assets")
    written = dict(re.findall(r"\| `(\S+)` \| `([0-9a-f]{64})` \|", folder.joinpath("README.md").read_text()))
    assert written
    for name, digest in written.items():
        assert hashlib.sha256(folder.joinpath(name).read_bytes()).hexdigest() == digest


class Models(FakeCore):
    """A core with these models ready; `gone` has vanished when it is looked at."""

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__()
        self.names = names

    def each_statistics(self, name: str = "", version: int = LATEST_VERSION) -> Iterator[ModelStatistics]:
        return (ModelStatistics(name, version) for name in self.names for version in ("1", "2"))

    def model_metadata(self, name: str, version: int = LATEST_VERSION) -> ModelMetadata:
        if name == "gone":
            raise Unavailable("Request for unknown model: 'gone' version 1 is not at ready state")
        return super().model_metadata(name, version)


async def test_the_document_tells_of_the_ready_models() -> None:
    document = (await get(DOCUMENT, Models(["gone", "echo"]))).json
    assert [tag["name"] for tag in document["tags"] if tag["name"].startswith("Model:")] == ["Model: echo"]
    schema = document["paths"]["/v2/models/echo/infer"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    (entry,) = schema["properties"]["inputs"]["items"]["oneOf"]
    assert entry["properties"]["name"] == {"const": "IN"}
    assert entry["properties"]["shape"]["prefixItems"][0]["maximum"] == 8  # the batch size of its configuration


async def test_the_document_knows_the_files() -> None:
    document = (await get(DOCUMENT)).json
    (parameter,) = document["paths"]["/v2/docs/{asset_name}"]["get"]["parameters"]
    assert parameter["schema"]["enum"] == list(ASSETS)


async def test_a_stopping_server_says_so() -> None:
    class Stopping(FakeCore):
        def each_statistics(self, name: str = "", version: int = LATEST_VERSION) -> Iterator[ModelStatistics]:
            raise Unavailable("Server exiting")

    answer = await get(DOCUMENT, Stopping())
    assert (answer.status, answer.error) == (503, "Server exiting")


@pytest.mark.parametrize("path", [PAGE, DOCUMENT, *FILES])
async def test_the_document_needs_the_right_to_metadata_and_the_page_none(path: str) -> None:
    """A browser cannot send a key with the page's address: the page asks for one, and without it shows nothing."""
    metadata = AccessControl(RestrictedApis.parse(["metadata:x-key=secret"], HTTP_API))
    assert (await get(path, access=metadata)).status == (403 if path == DOCUMENT else 200)
    assert (await get(path, access=metadata, x_key="secret")).status == 200
    others = AccessControl(RestrictedApis.parse(["inference,model-config:x-key=secret"], HTTP_API))
    assert (await get(path, access=others)).status == 200


async def test_keys() -> None:
    restricted = AccessControl(RestrictedApis.parse(["inference:x-key=secret"], HTTP_API))
    assert "security" in (await get(DOCUMENT, access=restricted)).json
    assert "security" not in (await get(DOCUMENT)).json
