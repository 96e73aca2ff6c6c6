"""What is Google's alone: pages of a listing, who is let in, and how a service account signs."""

from __future__ import annotations

import base64
import http.server
import json
import os
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.padding import PKCS1v15
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.hashes import SHA256

from repository.stores.client import Bucket, Patience
from repository.stores.errors import AccessDenied
from repository.stores.urls import parse_store_url
from tests.emulators import GCS_PAGE_SIZE, GoogleStore, service_account
from tests.repository.stores.endpoint import answer, endpoint, forward


def keys(url: str, prefix: str = "") -> list[str]:
    patience = Patience(connect_seconds=1, read_seconds=1, request_seconds=1, retries=1, retry_seconds=2)
    return sorted(each.key for each in Bucket(parse_store_url(url), os.environ, patience).list(prefix))


def test_a_listing_of_several_pages(google: GoogleStore) -> None:
    """Complete, and in it nothing of another prefix."""
    wanted = [f"models/m/1/{number:02}" for number in range(2 * GCS_PAGE_SIZE + 3)]
    for key in (*wanted, "models2/x", "a"):
        google.put(key, b"x")
    assert keys(google.url, "models") == wanted
    assert len(keys(google.url)) == len(wanted) + 2


def test_without_credentials(google: GoogleStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what everybody may read."""
    google.put("models/x", b"x")
    monkeypatch.delenv("GOOGLE_APPLICATION_CREDENTIALS")
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(AccessDenied) as raised:
        keys(google.url, "models")
    assert str(raised.value) == (
        f"{google.url}: cannot list 'models/': access to bucket '{google.url[5:]}' was denied "
        "(status 403, AccessDenied, Access denied.); see GOOGLE_APPLICATION_CREDENTIALS"
    )
    google.let_everybody_read()
    assert keys(google.url, "models") == ["models/x"]


def claims(authorization: str, key: RSAPublicKey) -> dict[str, Any]:
    """What a token says that was signed with the key.

    Raises:
        InvalidSignature: by another one.
    """
    signed, _, signature = authorization.removeprefix("Bearer ").rpartition(".")
    key.verify(decoded(signature), signed.encode(), PKCS1v15(), SHA256())
    head, said = (json.loads(decoded(part)) for part in signed.split("."))
    assert head == {"typ": "JWT", "alg": "RS256", "kid": "1"}
    assert isinstance(said, dict)
    return said


def decoded(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def test_credentials(google: GoogleStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the environment, and before them those of the credential file: each signs what Google's documentation of
    self-signed tokens asks for, with its own key."""
    google.put("models/x", b"x")
    asked: list[str] = []

    def note(request: http.server.BaseHTTPRequestHandler) -> None:
        asked.append(request.headers["Authorization"])
        forward(request, google.environment["GOOGLE_BASE_URL"] + request.path)

    accounts = {name: service_account(tmp_path / name, f"{name}@example.org") for name in ("environment", "file")}
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "environment"))
    entries = {"": str(tmp_path / "absent"), google.url: str(tmp_path / "file")}
    (tmp_path / "credentials.json").write_text(json.dumps({"gs": entries}))
    with endpoint(note) as address:
        monkeypatch.setenv("GOOGLE_BASE_URL", address)
        assert keys(google.url) == ["models/x"]
        monkeypatch.setenv("TRITON_CLOUD_CREDENTIAL_PATH", str(tmp_path / "credentials.json"))
        assert keys(google.url) == ["models/x"]
    for authorization, (name, key) in zip(asked, accounts.items(), strict=True):
        said = claims(authorization, key)
        assert said["iss"] == said["sub"] == f"{name}@example.org"
        assert said["scope"] == "https://www.googleapis.com/auth/cloud-platform"
        assert said["exp"] - said["iat"] == 3600


def test_a_key_that_google_does_not_know(google: GoogleStore, monkeypatch: pytest.MonkeyPatch) -> None:
    said = "<Error><Code>AuthenticationRequired</Code><Message>Authentication required.</Message></Error>"
    with endpoint(answer(401, said)) as address:
        monkeypatch.setenv("GOOGLE_BASE_URL", address)
        with pytest.raises(AccessDenied, match=r"was denied \(status 401, AuthenticationRequired, .*see GOOGLE_APPLIC"):
            keys(google.url)
