"""Signatures of webhooks, judged by the package of those who wrote the standard."""

from __future__ import annotations

import base64
import json
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from standardwebhooks import Webhook, WebhookVerificationError

from protocol.webhooks.signing import read_secret, signature

SECRET = "whsec_" + base64.b64encode(b"0123456789abcdef01234567").decode()
OTHER = "whsec_" + base64.b64encode(b"x" * 64).decode()


def headers(secrets: list[bytes], body: bytes, age: int = 0) -> dict[str, str]:
    """Of a message that was sent so many seconds ago: the package refuses what is older than five minutes."""
    timestamp = int(time.time()) - age
    return {
        "webhook-id": "msg_1",
        "webhook-timestamp": str(timestamp),
        "webhook-signature": signature(secrets, "msg_1", timestamp, body),
    }


@given(st.dictionaries(st.text(st.characters(codec="utf-8")), st.integers()))
def test_what_is_signed_is_verified(message: dict[str, int]) -> None:
    body = json.dumps(message).encode()
    assert Webhook(SECRET).verify(body, headers([read_secret(SECRET)], body)) == message


def test_while_secrets_are_exchanged_either_verifies() -> None:
    sent = headers([read_secret(OTHER), read_secret(SECRET)], b"{}")
    for secret in (SECRET, OTHER):
        assert Webhook(secret).verify(b"{}", sent) == {}


def test_another_body_id_time_or_secret_does_not_verify() -> None:
    sent = headers([read_secret(SECRET)], b"{}")
    for secret, body, changes in (
        (SECRET, b"{ }", {}),
        (OTHER, b"{}", {}),
        (SECRET, b"{}", {"webhook-id": "msg_2"}),
        (SECRET, b"{}", {"webhook-timestamp": str(int(time.time()) + 1)}),
    ):
        with pytest.raises(WebhookVerificationError):
            Webhook(secret).verify(body, {**sent, **changes})


@pytest.mark.parametrize(
    "text",
    [
        "",
        "whsec_",
        "whsec_short",
        SECRET[6:],
        SECRET[:-1],
        "whsec_" + base64.b64encode(b"x" * 65).decode(),
        SECRET + "!",
    ],
)
def test_what_is_no_secret_is_refused_and_not_shown(text: str) -> None:
    with pytest.raises(ValueError, match="expected whsec_ and 24 to 64 bytes in base64") as caught:
        read_secret(text)
    assert len(text) < 10 or text not in str(caught.value)
