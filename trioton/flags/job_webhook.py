# ruff: noqa: RUF009 (the defaults are fields, made by functions)
"""Flags of the webhooks of jobs. Part of `trioton.settings`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from protocol.outgoing.hosts import HostRule
from protocol.outgoing.urls import HttpUrl, UrlError, parse_url
from trioton.flags.fields import PATH, UsageError, filesystem_path, flag, repeatable, switch
from trioton.flags.job import JOBS


def _url(text: str) -> HttpUrl:
    try:
        return parse_url(text)
    except UrlError as error:
        raise ValueError(str(error)) from None


@dataclass(frozen=True, kw_only=True)  # without slots, so that a class may have several such parts
class JobWebhookFlags:
    """The part of the settings that is about webhooks."""

    jobs_webhook_allowed_hosts: tuple[HostRule, ...] = repeatable(
        HostRule.parse,
        group=JOBS,
        metavar="<host>[:<port>]",
        help="A host that is told of jobs when their clients ask for it, *.<domain> for all within one, or * for any. "
        "May be given several times; without it clients have no webhooks. An address that is not public, or http, is "
        "used only if its host is named.",
    )
    jobs_webhook_secret_file: Path | None = flag(
        None,
        filesystem_path,
        group=JOBS,
        metavar=PATH,
        help="A file of secrets that webhooks are signed with, whsec_<base64>, one in a line, the newest first; those "
        "of keys with a 'webhook_secret' of their own in the auth keys file are not.",
    )
    jobs_webhook_url: HttpUrl | None = flag(
        None,
        _url,
        group=JOBS,
        metavar="<url>",
        help="Who is told of the end of all jobs and batches that have no webhook of their own.",
    )
    jobs_webhook_cloudevents: bool = switch(group=JOBS, help="Send webhooks as CloudEvents 1.0.")

    def check_webhooks(self) -> None:
        """Raises UsageError where they contradict each other."""
        if self.jobs_webhook_url is not None and self.jobs_webhook_secret_file is None:
            raise UsageError("--jobs-webhook-url needs --jobs-webhook-secret-file: webhooks are signed")

    def webhook_hosts(self) -> list[HostRule]:
        """Those that may be told, the operator's own among them; empty where there are no webhooks."""
        url = self.jobs_webhook_url
        own = [] if url is None else [HostRule(url.host, port=url.port)]
        return [*self.jobs_webhook_allowed_hosts, *own]
