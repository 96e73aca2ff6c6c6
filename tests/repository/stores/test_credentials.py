"""Which credentials a URL is opened with."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from protocol.errors import InvalidArgument
from repository.stores.credentials import CREDENTIAL_FILE, StoreOptions, store_options
from repository.stores.urls import parse_store_url


def options(url: str, environment: Mapping[str, str], home: Path) -> StoreOptions:
    return store_options(parse_store_url(url), {"HOME": str(home), **environment})


def credential_file(directory: Path, content: Any) -> dict[str, str]:
    path = directory / "credentials.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return {CREDENTIAL_FILE: str(path)}


def key(name: str) -> dict[str, str]:
    return {"key_id": name, "secret_key": f"{name}-secret"}


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("s3://other/models", "default"),
        ("s3://one/models", "one"),
        ("s3://one", "one"),
        ("s3://one-more/models", "default"),
        ("s3://one/models/team/x", "team"),
        ("s3://host:9000/bucket/models", "endpoint"),
        ("s3://http://host:9000/bucket/models", "endpoint"),
        ("s3://https://host:9000/bucket/models", "default"),
    ],
)
def test_the_longest_prefix_wins(url: str, expected: str, tmp_path: Path) -> None:
    """Prefixes are whole parts of paths: a bucket's key is not for a bucket whose name begins like its name."""
    entries = {
        "": key("default"),
        "s3://one": key("one"),
        "s3://one/models/team/": key("team"),
        "s3://host:9000/bucket": key("endpoint"),
    }
    found = options(url, credential_file(tmp_path, {"s3": entries}), tmp_path)
    assert found.key == {"access_key_id": expected, "secret_access_key": f"{expected}-secret", "token": None}


def test_s3_from_the_credential_file(tmp_path: Path) -> None:
    """It wins over the environment, with the token of the environment's key left out."""
    entry = {**key("file"), "region": "eu-west-1"}
    environment = {"AWS_ACCESS_KEY_ID": "a", "AWS_SESSION_TOKEN": "t", "AWS_DEFAULT_REGION": "us-east-2"}
    found = options("s3://b", {**environment, **credential_file(tmp_path, {"s3": {"": entry}})}, tmp_path)
    assert found == StoreOptions(
        {"region": "eu-west-1"}, {"access_key_id": "file", "secret_access_key": "file-secret", "token": None}
    )


def test_s3_from_the_environment(tmp_path: Path) -> None:
    """The key is left to the library, which knows all of AWS's variables."""
    environment = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_DEFAULT_REGION": "eu-west-1"}
    assert options("s3://h:1/b", environment, tmp_path) == StoreOptions(
        {"endpoint": "http://h:1", "region": "eu-west-1"}
    )


def test_s3_from_profiles(tmp_path: Path) -> None:
    """By AWS_PROFILE, by the credential file, or the default one where there is nothing else."""
    (tmp_path / ".aws").mkdir()
    (tmp_path / ".aws" / "credentials").write_text(
        "[default]\naws_access_key_id=d\naws_secret_access_key=ds\n"
        "[team]\naws_access_key_id=t\naws_secret_access_key=ts\naws_session_token=tt\n"
    )
    (tmp_path / ".aws" / "config").write_text(
        "[default]\nregion=eu-1\n[profile team]\nregion=eu-2\n[profile sso]\nx=y\n"
    )
    team = StoreOptions({"region": "eu-2"}, {"access_key_id": "t", "secret_access_key": "ts", "token": "tt"})
    assert options("s3://b", {"AWS_PROFILE": "team"}, tmp_path) == team
    file = credential_file(tmp_path, {"s3": {"": {"profile": "team"}}})
    assert options("s3://b", {"AWS_ACCESS_KEY_ID": "a", **file}, tmp_path) == team
    assert options("s3://b", {}, tmp_path).key == {"access_key_id": "d", "secret_access_key": "ds", "token": None}
    with pytest.raises(InvalidArgument, match="profile 'sso' has no aws_access_key_id"):
        options("s3://b", {"AWS_PROFILE": "sso"}, tmp_path)


def test_google(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file; else whatever Google's environment has; else anonymous."""
    path = tmp_path / "service.json"
    path.write_text('{"type": "authorized_user"}')
    environment = {"GOOGLE_APPLICATION_CREDENTIALS": str(path)}
    assert options("gs://b", environment, tmp_path) == StoreOptions({"application_credentials": str(path)})
    path.write_text('{"type": "service_account"}')
    expected = StoreOptions({"service_account": str(path)})
    assert options("gs://b", environment, tmp_path) == expected
    assert options("gs://b", credential_file(tmp_path, {"gs": {"gs://b": str(path)}}), tmp_path) == expected
    assert options("gs://b", {"GOOGLE_BEARER_TOKEN": "t"}, tmp_path) == StoreOptions()
    monkeypatch.setattr("repository.stores.credentials._METADATA_HOST", "metadata.invalid")
    assert options("gs://b", {}, tmp_path) == StoreOptions({"skip_signature": True})
    with pytest.raises(InvalidArgument, match="cannot read '/absent'"):
        options("gs://b", {"GOOGLE_APPLICATION_CREDENTIALS": "/absent"}, tmp_path)


@pytest.mark.parametrize(
    ("entry", "expected"),
    [
        ({"account_key": "k"}, {"account_key": "k"}),
        ({"account_str": "acc", "account_key": "k", "auth_type": "key"}, {"account_key": "k"}),
        ({"auth_type": "managed_identity", "client_id": "c", "account_key": "k"}, {"client_id": "c"}),
        ({"auth_type": "default"}, {}),
    ],
)
def test_azure(entry: Mapping[str, str], expected: Mapping[str, str], tmp_path: Path) -> None:
    """The same from the credential file and from the environment."""
    account = {"account_name": "acc"}
    found = options("as://acc/c", credential_file(tmp_path, {"as": {"as://acc": entry}}), tmp_path)
    assert found.config == {**account, **expected}
    names = {
        "account_str": "AZURE_STORAGE_ACCOUNT",
        "account_key": "AZURE_STORAGE_KEY",
        "auth_type": "AZURE_STORAGE_AUTH_TYPE",
        "client_id": "AZURE_STORAGE_CLIENT_ID",
    }
    assert options("as://acc/c", {names[name]: value for name, value in entry.items()}, tmp_path) == found


@pytest.mark.parametrize(
    ("url", "content", "expected"),
    [
        ("s3://b", "{", "is not JSON"),
        ("s3://b", "[]", "no object of path prefixes by scheme"),
        ("s3://b", {"s3": []}, "no object of path prefixes under 's3'"),
        ("s3://b", {"s3": {"": "x"}}, "must be an object of texts"),
        ("s3://b", {"s3": {"": {"key_id": 1}}}, "must be an object of texts"),
        ("s3://b", {"s3": {"": {"key": "x"}}}, "unknown fields: key; expected key_id"),
        ("s3://b", {"s3": {"": {"key_id": "x"}}}, "must have both a key id and a secret key"),
        ("s3://b", {"s3": {"": {"profile": "absent"}}}, "profile 'absent' has no aws_access_key_id"),
        ("gs://b", {"gs": {"": {}}}, "must be the path of a credentials file"),
        ("as://a/c", {"as": {"": {"auth_type": "sas"}}}, "auth_type must be key, managed_identity, default, got 'sas'"),
        ("as://a/c", {"as": {"": {"auth_type": "key"}}}, "auth_type 'key' needs an account key"),
    ],
)
def test_what_cannot_be(url: str, content: Any, expected: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=expected):
        options(url, credential_file(tmp_path, content), tmp_path)


def test_a_credential_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=f"{CREDENTIAL_FILE}: cannot read"):
        options("s3://b", {CREDENTIAL_FILE: str(tmp_path / "absent")}, tmp_path)
