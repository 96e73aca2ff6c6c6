"""The one question of both edges, with restricted APIs and keys together."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from protocol.access.categories import Category
from protocol.access.control import AccessControl
from protocol.access.keys_file import KeysFile
from protocol.access.restricted import GRPC_PROTOCOL, RestrictedApis
from protocol.errors import Forbidden, Restricted, ServerError, Unauthenticated

KEY = {"authorization": "Bearer alice-0123456789"}
HEADER = {"triton-grpc-protocol-admin": "s3cret"}
RESTRICTED = RestrictedApis.parse(["model-repository,health:admin=s3cret"], GRPC_PROTOCOL)


@pytest.fixture
def keys(tmp_path: Path) -> KeysFile:
    path = tmp_path / "keys.toml"
    path.write_text(
        "[anonymous]\nallow = ['health']\n[keys.alice]\nkey = 'alice-0123456789'\nallow = ['model-control']\n"
    )
    return KeysFile(path)


def outcome(control: AccessControl, category: Category, headers: Mapping[str, str]) -> type[ServerError] | None:
    try:
        control.check(category, headers.get)
    except ServerError as error:
        return type(error)
    return None


def test_nothing_configured_is_open_and_looks_at_no_header() -> None:
    def no_headers(name: str) -> str | None:
        raise AssertionError(f"looked at {name}")

    control = AccessControl()
    assert control.is_open
    for category in Category:
        control.check(category, no_headers)


@pytest.mark.parametrize(
    ("category", "headers", "expected"),
    [
        (Category.MODEL_REPOSITORY, KEY | HEADER, None),
        (Category.MODEL_REPOSITORY, HEADER, Unauthenticated),
        (Category.MODEL_REPOSITORY, KEY, Restricted),
        (Category.MODEL_REPOSITORY, {}, Unauthenticated),
        (Category.INFERENCE, KEY | HEADER, Forbidden),
        (Category.HEALTH, HEADER, None),
        (Category.HEALTH, {}, Restricted),
        (Category.METRICS, {}, Unauthenticated),
    ],
)
def test_both_rules_must_be_content(
    keys: KeysFile, category: Category, headers: dict[str, str], expected: type[ServerError] | None
) -> None:
    control = AccessControl(RESTRICTED, keys)
    assert not control.is_open
    assert outcome(control, category, headers) is expected


def test_each_rule_works_alone(keys: KeysFile) -> None:
    only_restricted, only_keys = AccessControl(RESTRICTED), AccessControl(keys=keys)
    assert not only_restricted.is_open
    assert not only_keys.is_open
    assert outcome(only_restricted, Category.HEALTH, {}) is Restricted
    assert outcome(only_restricted, Category.INFERENCE, {}) is None
    assert outcome(only_keys, Category.HEALTH, {}) is None
    assert outcome(only_keys, Category.INFERENCE, {}) is Unauthenticated


def test_whose_call_it_is(keys: KeysFile) -> None:
    control = AccessControl(RESTRICTED, keys)
    assert control.caller(KEY.get) == "alice"
    assert control.caller(lambda name: None) == "anonymous"
    assert control.caller({"authorization": "Bearer another-0123456789"}.get) == "anonymous"
    assert AccessControl(RESTRICTED).caller(KEY.get) == "anonymous"


async def test_new_keys_count_from_the_next_call_on(tmp_path: Path, keys: KeysFile) -> None:
    control = AccessControl(keys=keys)
    assert outcome(control, Category.INFERENCE, KEY) is Forbidden
    (tmp_path / "keys.toml").write_text("[keys.alice]\nkey = 'alice-0123456789'\nallow = ['inference']\n")
    await keys.look()
    assert outcome(control, Category.INFERENCE, KEY) is None
    assert outcome(control, Category.HEALTH, {}) is Unauthenticated
