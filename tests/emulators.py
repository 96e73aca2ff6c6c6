"""Object stores on this machine, each a process of its own: moto for S3, gcp-storage-emulator behind a bridge for
Google's, Azurite for Azure.

Every run imports this module (`tests/conftest.py`); the stores' clients are imported where one is made.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.utils import formatdate
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.marked_processes import MARK

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric import rsa

JSON = {"Content-Type": "application/json"}
KINDS = ("s3", "gs", "as")
# The objects on a page of a listing. Google's is 1000; small, so that a listing has several.
GCS_PAGE_SIZE = 10
ROOT = Path(__file__).parent.parent
# Azurite's account and key, the same everywhere.
AZURE_ACCOUNT = "devstoreaccount1"
AZURE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


@dataclass
class Store:
    """One bucket, or container, of an emulator. `url` names the bucket, `environment` how to get at it."""

    url: str
    environment: Mapping[str, str]
    client: Any = field(repr=False)
    contents: dict[str, bytes] = field(default_factory=dict, repr=False)

    def put(self, key: str, content: bytes) -> None:
        import obstore

        obstore.put(self.client, key, content)
        self.contents[key] = content

    def put_raw(self, key: str, content: bytes) -> None:
        """In S3 alone: under any key, such as `folder/`, which the client's own call would set right."""
        _request("PUT", f"{self.url.replace('s3', 'http', 1)}/{key}", content=content)

    def delete(self, key: str) -> None:
        import obstore

        obstore.delete(self.client, key)
        self.contents.pop(key, None)

    def keys(self, prefix: str = "") -> list[str]:
        import obstore

        return [each["path"] for each in obstore.list(self.client, prefix or None).collect()]

    def upload(self, directory: Path, prefix: str) -> None:
        """Every file of a directory that has changed; the bucket has nothing else below the prefix then."""
        files = {f"{prefix}/{path.relative_to(directory)}": path for path in directory.rglob("*") if path.is_file()}
        for key in set(self.keys(prefix)) - files.keys():
            self.delete(key)
        for key, path in files.items():
            if self.contents.get(key) != (content := path.read_bytes()):
                self.put(key, content)


@dataclass
class GoogleStore(Store):
    """Written to by the emulator's own interface, JSON, at `address`, and read by that of clients."""

    address: str = field(kw_only=True)

    @property
    def bucket(self) -> str:
        return self.url.removeprefix("gs://")

    def put(self, key: str, content: bytes) -> None:
        query = urllib.parse.urlencode({"uploadType": "resumable", "name": key})
        upload = _request("POST", f"{self.address}/upload/storage/v1/b/{self.bucket}/o?{query}", JSON, b"{}")
        _request("PUT", upload["Location"], {"Content-Type": "application/octet-stream"}, content)
        self.contents[key] = content

    def delete(self, key: str) -> None:
        _request("DELETE", f"{self.address}/storage/v1/b/{self.bucket}/o/{urllib.parse.quote(key, safe='')}")
        self.contents.pop(key, None)

    def let_everybody_read(self) -> None:
        policy = {"bindings": [{"role": "roles/storage.objectViewer", "members": ["allUsers"]}]}
        _request("PUT", f"{self.address}/storage/v1/b/{self.bucket}/iam", JSON, json.dumps(policy).encode())


@contextmanager
def running(command: list[str], pattern: str, environment: Mapping[str, str] | None = None) -> Iterator[str]:
    """A server that names its address in a line of its output; killed at the end."""
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, **(environment or {}), **MARK},
    )
    assert process.stdout is not None
    reader: threading.Thread | None = None
    try:
        match = next((found for line in process.stdout if (found := re.search(pattern, line))), None)
        assert match is not None, f"{command[0]} ended without an address"
        reader = threading.Thread(target=process.stdout.read, daemon=True)  # so that it never waits for us
        reader.start()
        yield match.group(1)
    finally:
        process.kill()
        process.wait()
        if reader is not None:
            reader.join()
        process.stdout.close()


@contextmanager
def moto(environment: Mapping[str, str] | None = None) -> Iterator[str]:
    """Its address as `http://host:port`."""
    command = [sys.executable, "-W", "ignore", "-m", "moto.server", "-H", "127.0.0.1", "-p", "0"]
    with running(command, r"Running on (http://127\.0\.0\.1:[0-9]+)", environment) as address:
        yield address


@contextmanager
def gcs() -> Iterator[tuple[str, str]]:
    """Its addresses: as clients read it, and as it is written to."""
    command = [sys.executable, "-m", "tests.gcs_bridge"]
    with running(command, r"Running on (http://\S+ http://\S+)", {"PYTHONPATH": str(ROOT)}) as addresses:
        reading, writing = addresses.split()
        yield reading, writing


@contextmanager
def azurite() -> Iterator[str]:
    """Its address; the test is skipped where Azurite is not installed."""
    program = shutil.which("azurite-blob", path=f"{ROOT}/.azurite/node_modules/.bin:{os.environ.get('PATH', '')}")
    if program is None or shutil.which("node") is None:
        pytest.skip("needs Azurite: npm install --prefix .azurite azurite@3")
    command = [program, "--blobPort", "0", "--inMemoryPersistence", "--skipApiVersionCheck", "--disableTelemetry"]
    with running(command, r"successfully listens on (http://\S+)") as address:
        yield address


def s3_store(address: str, bucket: str) -> Store:
    """A new bucket."""
    from obstore.store import S3Store

    _request("PUT", f"{address}/{bucket}")
    client = S3Store(
        bucket,
        endpoint=address,
        region="us-east-1",
        access_key_id="id",
        secret_access_key="secret",
        client_options={"allow_http": True},
    )
    environment = {"AWS_ACCESS_KEY_ID": "id", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_DEFAULT_REGION": "us-east-1"}
    return Store(f"s3://{address.removeprefix('http://')}/{bucket}", environment, client)


def gs_store(addresses: tuple[str, str], bucket: str, directory: Path) -> GoogleStore:
    """A new bucket; the credentials are written into the directory."""
    from obstore.store import GCSStore

    reading, writing = addresses
    _request("POST", f"{writing}/storage/v1/b", JSON, json.dumps({"name": bucket}).encode())
    path = directory / f"{bucket}.json"
    service_account(path)
    client = GCSStore(
        bucket, config={"service_account": str(path), "base_url": reading}, client_options={"allow_http": True}
    )
    environment = {"GOOGLE_APPLICATION_CREDENTIALS": str(path), "GOOGLE_BASE_URL": reading}
    return GoogleStore(f"gs://{bucket}", environment, client, address=writing)


def service_account(path: Path, email: str = "trioton@example.org") -> rsa.RSAPublicKey:
    """Writes a file as Google gives them; what its signatures can be checked with."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    encoding = (serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    content = {
        "type": "service_account",
        "project_id": "trioton",
        "private_key_id": "1",
        "private_key": key.private_bytes(*encoding).decode(),
        "client_email": email,
        "client_id": "1",
        "token_uri": "https://oauth2.googleapis.com/token",
    }
    path.write_text(json.dumps(content))
    return key.public_key()


def azure_store(address: str, container: str) -> Store:
    """A new container."""
    from obstore.store import AzureStore

    path = f"/{AZURE_ACCOUNT}/{container}"
    headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": "2021-08-06"}
    signed = "".join(
        ["PUT", "\n" * 12, *(f"{name}:{value}\n" for name, value in headers.items()), f"/{AZURE_ACCOUNT}{path}"]
    )
    digest = hmac.new(base64.b64decode(AZURE_KEY), f"{signed}\nrestype:container".encode(), hashlib.sha256).digest()
    headers["Authorization"] = f"SharedKey {AZURE_ACCOUNT}:{base64.b64encode(digest).decode()}"
    _request("PUT", f"{address}{path}?restype=container", headers)
    endpoint = f"{address}/{AZURE_ACCOUNT}"
    client = AzureStore(
        container,
        account_name=AZURE_ACCOUNT,
        account_key=AZURE_KEY,
        endpoint=endpoint,
        client_options={"allow_http": True},
    )
    environment = {"AZURE_STORAGE_KEY": AZURE_KEY, "AZURE_STORAGE_ENDPOINT": endpoint}
    return Store(f"as://{AZURE_ACCOUNT}/{container}", environment, client)


def _request(
    method: str, url: str, headers: Mapping[str, str] | None = None, content: bytes = b""
) -> Mapping[str, str]:
    """The headers of the answer."""
    request = urllib.request.Request(url, content or None, dict(headers or {}), method=method)
    with urllib.request.urlopen(request) as answer:
        answer.read()
        return dict(answer.headers)
