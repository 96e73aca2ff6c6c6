"""Credentials for object stores: Triton's credential file first, then each cloud's own environment variables.

Flow: URL and environment → [credentials] → what `client.py` opens the store with. Reads files, so it blocks. Source:
Triton, "Cloud Storage with Credential variables" and "Cloud Storage with Credential file".
"""

from __future__ import annotations

import configparser
import json
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from protocol.errors import InvalidArgument
from repository.stores.urls import StoreUrl

CREDENTIAL_FILE = "TRITON_CLOUD_CREDENTIAL_PATH"
_FIELDS = {
    "s3": frozenset({"secret_key", "key_id", "region", "session_token", "profile"}),
    "as": frozenset({"account_str", "account_key", "auth_type", "client_id"}),
}
_AZURE_AUTH_TYPES = ("key", "managed_identity", "default")
# More of Google's, which the client library reads by itself.
_GOOGLE_VARIABLES = (
    "GOOGLE_SERVICE_ACCOUNT",
    "GOOGLE_SERVICE_ACCOUNT_PATH",
    "GOOGLE_SERVICE_ACCOUNT_KEY",
    "GOOGLE_BEARER_TOKEN",
)
_METADATA_HOST = "metadata.google.internal"


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """`config` as obstore names it. `key` is a fixed S3 key in place of whatever the environment has; `authorities` are
    certificates as PEM, trusted besides those of the system."""

    config: Mapping[str, Any] = field(default_factory=dict)
    key: Mapping[str, str | None] | None = None
    authorities: bytes | None = None


def store_options(url: StoreUrl, environment: Mapping[str, str]) -> StoreOptions:
    """How to open the store of a URL.

    Raises:
        InvalidArgument: the credential file, or a profile, cannot be read or says what cannot be.
    """
    entry = _file_entry(url, environment)
    match url.scheme:
        case "s3":
            return _s3(url, entry, environment)
        case "gs":
            return _gs(entry, environment)
    return _azure(url, entry, environment)


def _file_entry(url: StoreUrl, environment: Mapping[str, str]) -> Any:
    """What the credential file has for a URL: the entry with the longest prefix of whole path parts, else the entry
    with the empty prefix, else None."""
    path = environment.get(CREDENTIAL_FILE)
    if not path:
        return None
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as exc:
        raise InvalidArgument(f"{CREDENTIAL_FILE}: cannot read '{path}': {exc}") from None
    except json.JSONDecodeError as exc:  # its text has the place, never the content
        raise InvalidArgument(f"{CREDENTIAL_FILE}: '{path}' is not JSON: {exc}") from None
    entries = content.get(url.scheme, {}) if isinstance(content, dict) else None
    if not isinstance(entries, dict):
        raise InvalidArgument(
            f"{CREDENTIAL_FILE}: '{path}' has no object of path prefixes "
            + (f"under '{url.scheme}'" if isinstance(content, dict) else "by scheme")
        )
    whole = f"{url}/"
    matching = [prefix for prefix in entries if not prefix or whole.startswith(f"{_plain(prefix)}/")]
    if not matching:
        return None
    chosen = max(matching, key=lambda prefix: len(_plain(prefix)))
    entry, place = entries[chosen], f"{CREDENTIAL_FILE}: '{path}': entry '{chosen}' of '{url.scheme}'"
    if url.scheme == "gs":
        if not isinstance(entry, str):
            raise InvalidArgument(f"{place} must be the path of a credentials file, got {type(entry).__name__}")
        return entry
    if not isinstance(entry, dict) or not all(isinstance(value, str) for value in entry.values()):
        raise InvalidArgument(f"{place} must be an object of texts")
    if unknown := sorted(entry.keys() - _FIELDS[url.scheme]):
        raise InvalidArgument(
            f"{place} has unknown fields: {', '.join(unknown)}; expected {', '.join(sorted(_FIELDS[url.scheme]))}"
        )
    return {name: value for name, value in entry.items() if value}


def _plain(prefix: str) -> str:
    return prefix.rstrip("/").replace("s3://http://", "s3://", 1)


def _s3(url: StoreUrl, entry: Mapping[str, str] | None, environment: Mapping[str, str]) -> StoreOptions:
    config = {"endpoint": url.endpoint} if url.endpoint else {}
    region = environment.get("AWS_REGION") or environment.get("AWS_DEFAULT_REGION") or ""
    given = entry or {}
    key: dict[str, str | None] | None = None
    profile = given.get("profile", "")
    if "key_id" in given or "secret_key" in given:
        key = _key(given.get("key_id", ""), given.get("secret_key", ""), given.get("session_token"), "the entry", url)
    elif profile or not (environment.get("AWS_ACCESS_KEY_ID") or environment.get("AWS_SKIP_SIGNATURE")):
        wanted = profile or environment.get("AWS_PROFILE") or ""
        found = _profile(wanted or "default", environment)
        if "aws_access_key_id" in found:
            key = _key(
                found["aws_access_key_id"],
                found.get("aws_secret_access_key", ""),
                found.get("aws_session_token"),
                f"profile '{wanted or 'default'}'",
                url,
            )
        elif wanted:
            raise InvalidArgument(
                f"{url}: AWS profile '{wanted}' has no aws_access_key_id in the AWS configuration files; other "
                "kinds of profiles are not supported, use environment variables"
            )
        region = region or found.get("region", "")
    if region := given.get("region") or region:
        config["region"] = region
    return StoreOptions(config, key, _authorities(environment))


def _authorities(environment: Mapping[str, str]) -> bytes | None:
    path = environment.get("AWS_CA_BUNDLE")
    try:
        return Path(path).read_bytes() if path else None
    except OSError as exc:
        raise InvalidArgument(f"AWS_CA_BUNDLE: cannot read '{path}': {exc.strerror}") from None


def _key(key_id: str, secret: str, token: str | None, source: str, url: StoreUrl) -> dict[str, str | None]:
    if not key_id or not secret:
        raise InvalidArgument(f"{url}: {source} must have both a key id and a secret key")
    return {"access_key_id": key_id, "secret_access_key": secret, "token": token or None}


def _profile(name: str, environment: Mapping[str, str]) -> dict[str, str]:
    """A profile of the files that AWS's own tools share; empty where there is none."""
    home = Path(environment.get("HOME") or Path.home()) / ".aws"
    found: dict[str, str] = {}
    for variable, file, section in (
        ("AWS_CONFIG_FILE", "config", name if name == "default" else f"profile {name}"),
        ("AWS_SHARED_CREDENTIALS_FILE", "credentials", name),
    ):
        parser = configparser.ConfigParser(interpolation=None)
        path = environment.get(variable) or str(home / file)
        try:
            parser.read(path, encoding="utf-8")
        except (OSError, UnicodeDecodeError, configparser.Error) as exc:
            raise InvalidArgument(f"cannot read AWS profiles from '{path}': {type(exc).__name__}") from None
        if parser.has_section(section):
            found.update(parser.items(section))
    return found


def _gs(entry: str | None, environment: Mapping[str, str]) -> StoreOptions:
    if path := entry or environment.get("GOOGLE_APPLICATION_CREDENTIALS"):
        return StoreOptions({"service_account" if _is_service_account(path) else "application_credentials": path})
    of_user = Path(environment.get("HOME") or Path.home(), ".config/gcloud/application_default_credentials.json")
    if any(environment.get(name) for name in _GOOGLE_VARIABLES) or of_user.is_file() or _is_in_google_cloud():
        return StoreOptions()
    return StoreOptions({"skip_signature": True})  # anonymous, as Triton's last resort


def _is_service_account(path: str) -> bool:
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as exc:
        raise InvalidArgument(f"Google credentials: cannot read '{path}' as JSON: {type(exc).__name__}") from None
    return isinstance(content, dict) and content.get("type") == "service_account"


def _is_in_google_cloud() -> bool:
    """Whether the machine may have a service account attached: only there has the metadata server a name."""
    try:
        socket.getaddrinfo(_METADATA_HOST, 80)
    except OSError:
        return False
    return True


def _azure(url: StoreUrl, entry: Mapping[str, str] | None, environment: Mapping[str, str]) -> StoreOptions:
    given = entry or {
        "account_key": environment.get("AZURE_STORAGE_KEY", ""),
        "auth_type": environment.get("AZURE_STORAGE_AUTH_TYPE", ""),
        "client_id": environment.get("AZURE_STORAGE_CLIENT_ID", ""),
    }
    config: dict[str, Any] = {"account_name": url.account}
    if url.endpoint:
        config["endpoint"] = url.endpoint
    key, how = given.get("account_key", ""), given.get("auth_type", "")
    if how and how not in _AZURE_AUTH_TYPES:
        raise InvalidArgument(f"{url}: auth_type must be {', '.join(_AZURE_AUTH_TYPES)}, got '{how}'")
    if how == "key" and not key:
        raise InvalidArgument(f"{url}: auth_type 'key' needs an account key")
    if key and how in ("", "key"):
        config["account_key"] = key
    elif client := given.get("client_id"):
        config["client_id"] = client
    return StoreOptions(config)
