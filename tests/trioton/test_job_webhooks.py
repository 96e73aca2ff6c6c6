"""Webhooks of jobs from a server's settings: flags that contradict each other, and the file of secrets."""

from __future__ import annotations

from pathlib import Path

import pytest

from protocol.outgoing.hosts import HostRule
from trioton.flags.fields import UsageError
from trioton.job_webhooks import UnusableSecrets, read_secrets
from trioton.settings import Settings

SECRET = "whsec_MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3"


def test_secrets(tmp_path: Path) -> None:
    path = tmp_path / "secrets"
    path.write_text(f"{SECRET}\n\n  {SECRET}\n")
    assert read_secrets(path) == (b"0123456789abcdef01234567",) * 2


@pytest.mark.parametrize("text", ["", "whsec_short", f"{SECRET}\n" * 5, "ä", SECRET[:-4]])
def test_what_is_no_file_of_secrets(tmp_path: Path, text: str) -> None:
    path = tmp_path / "secrets"
    with pytest.raises(UnusableSecrets, match="cannot be read: No such file"):
        read_secrets(path)
    path.write_text(text)
    with pytest.raises(UnusableSecrets, match=r"must have 1 to 4 lines|expected whsec_") as caught:
        read_secrets(path)
    assert SECRET[:-4] not in str(caught.value)


def test_the_operators_own_receiver_is_a_host_that_is_named(tmp_path: Path) -> None:
    words = ["--model-repository=models", "--jobs-webhook-url=http://localhost:9000/a"]
    with pytest.raises(UsageError, match="--jobs-webhook-url needs --jobs-webhook-secret-file"):
        Settings.from_flags(words)
    settings = Settings.from_flags([*words, f"--jobs-webhook-secret-file={tmp_path}"])
    assert settings.webhook_hosts() == [HostRule("localhost", port=9000)]


def test_what_is_no_url() -> None:
    with pytest.raises(UsageError, match="expected an http or https URL"):
        Settings.from_flags(["--model-repository=models", "--jobs-webhook-url=localhost"])
