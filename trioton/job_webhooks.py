"""Composes the webhooks of a server's jobs from its settings. Part of the composition root, beside `job_service`."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import trio

from actors.jobs.webhooks import Webhooks, WebhookSettings
from protocol.access.keys_file import KeysFile
from protocol.failures import CallbackFailures
from protocol.jobs.store import JobStore
from protocol.jobs.webhook import Webhook
from protocol.outgoing.hosts import AllowedHosts
from protocol.outgoing.urls import HttpUrl
from protocol.webhooks.client import WebhookClient
from protocol.webhooks.signing import MOST_SECRETS, read_secret
from trioton.settings import Settings


class UnusableSecrets(Exception):
    """The secrets of webhooks cannot be read; the text says why, and shows none."""


async def make_webhooks(
    settings: Settings, keys: KeysFile | None, store: JobStore, failures: CallbackFailures
) -> Webhooks | None:
    """None where nobody may be told of jobs. Raises UnusableSecrets."""
    hosts = settings.webhook_hosts()
    if not hosts:
        return None
    path = settings.jobs_webhook_secret_file
    common = () if path is None else await trio.to_thread.run_sync(read_secrets, path)
    return Webhooks(
        store,
        WebhookClient(AllowedHosts(hosts, "--jobs-webhook-allowed-hosts")),
        WebhookSettings(
            _secrets(keys, common),
            None if settings.jobs_webhook_url is None else _default(settings.jobs_webhook_url),
            settings.jobs_webhook_cloudevents,
        ),
        failures,
        time.time,
    )


def read_secrets(path: Path) -> tuple[bytes, ...]:
    """Blocks. Raises UnusableSecrets."""
    try:
        lines = path.read_text("ascii").split()
    except OSError as error:
        raise UnusableSecrets(f"'{path}' cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError:
        lines = []
    if not 1 <= len(lines) <= MOST_SECRETS:
        raise UnusableSecrets(f"'{path}' must have 1 to {MOST_SECRETS} lines, each a secret")
    try:
        return tuple(map(read_secret, lines))
    except ValueError as error:
        raise UnusableSecrets(f"'{path}': {error}") from None


def _secrets(keys: KeysFile | None, common: Sequence[bytes]) -> Callable[[str], Sequence[bytes]]:
    """By the name of a job's owner, as the keys file is now."""

    def of(owner: str) -> Sequence[bytes]:
        own = () if keys is None else keys.current.webhook_secrets(owner)
        return own or common

    return of


def _default(url: HttpUrl) -> Webhook:
    return Webhook(url.text, f"{url.scheme}://{url.authority}")
