"""Webhooks of jobs: an actor that sends what the store has to deliver, until receivers have taken it.

Flow: runner → store → [webhooks] → receiver. Started and owned by `actors.jobs.jobs`. What it must not lose is in the
store; in memory is only what is under way. A receiver that hangs holds a few deliveries and nobody else's.
"""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import trio

from actors.jobs.figures import WebhookFigures
from protocol.errors import InvalidArgument, ServerError, Unsupported
from protocol.failures import CallbackFailures
from protocol.jobs.store import JobStore
from protocol.jobs.webhook import Delivery, DeliveryRoom, Webhook
from protocol.jobs.webhook_messages import webhook_body, webhook_headers
from protocol.outgoing.urls import HttpUrl, UrlError
from protocol.webhooks.exchange import Answer
from protocol.webhooks.retries import is_refused_for_good, is_taken, retry_after_seconds, retry_delay

logger = logging.getLogger(__name__)

TICK_SECONDS = 1.0
MAX_SENDING = 64
MAX_OF_HOST = 4
MAX_OF_OWNER = 32
# Longer than any attempt: what a server that crashed had under way is due again then.
CLAIM_SECONDS = 60.0


class Client(Protocol):
    """`protocol.webhooks.client.WebhookClient`."""

    def checked(self, text: str) -> HttpUrl: ...

    async def post(self, text: str, headers: Sequence[tuple[str, str]], body: bytes) -> Answer: ...


@dataclass(frozen=True, slots=True)
class WebhookSettings:
    """Attributes:
    secrets: those that sign what an owner is told, the newest first; empty where there are none.
    default: who is told of jobs that have no webhook of their own.
    is_cloud_event: how messages are written.
    """

    secrets: Callable[[str], Sequence[bytes]]
    default: Webhook | None = None
    is_cloud_event: bool = False


class Webhooks:
    """Of one server. Cancelled, what is under way is sent again by the next start."""

    def __init__(
        self,
        store: JobStore,
        client: Client,
        settings: WebhookSettings,
        failures: CallbackFailures,
        now: Callable[[], float],
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self.figures = WebhookFigures()
        self._store = store
        self._client = client
        self._settings = settings
        self._failures = failures
        self._now = now
        self._jitter = jitter
        self._hosts: Counter[str] = Counter()
        self._owners: Counter[str] = Counter()
        self._freed = trio.Event()
        self._is_failing = False

    def for_job(self, owner: str, webhook: Webhook | None) -> Webhook | None:
        """Who is to be told of a new job.

        Raises:
            InvalidArgument: its receiver may not be asked.
            Unsupported: there is no secret to sign with.
        """
        if webhook is None:
            return self._settings.default
        try:
            url = self._client.checked(webhook.url)
        except UrlError as error:
            raise InvalidArgument(f"'webhook': {webhook.url[:200]}: {error}") from None
        if not self._settings.secrets(owner):
            raise Unsupported(
                f"webhooks are signed, and there is no secret for '{owner}': give its key a 'webhook_secret', or start "
                f"the server with --jobs-webhook-secret-file"
            )
        return Webhook(webhook.url, f"{url.scheme}://{url.authority}", webhook.states)

    async def run(self) -> None:
        """Ends by cancellation."""
        async with trio.open_nursery() as nursery:
            while True:
                self._freed = trio.Event()
                with self._failures.noted("job", "webhooks of jobs failed, and go on"):
                    for delivery in await self._claimed():
                        self._hosts[delivery.host] += 1
                        self._owners[delivery.owner] += 1
                        nursery.start_soon(self._deliver, delivery)
                with trio.move_on_after(TICK_SECONDS):
                    await self._freed.wait()

    async def _claimed(self) -> Sequence[Delivery]:
        room = DeliveryRoom(MAX_SENDING, MAX_OF_HOST, MAX_OF_OWNER, dict(self._hosts), dict(self._owners))
        now = self._now()
        try:
            found = await self._store.claim_deliveries(room, now, now + CLAIM_SECONDS)
        except ServerError as error:
            self._note_failure(error)
            return ()
        self._is_failing = False
        return found

    async def _deliver(self, delivery: Delivery) -> None:
        try:
            try:
                again = await self._attempt(delivery)
            except Exception as error:
                self._failures.note("job", error, f"webhook '{delivery.id}' could not be sent")
                again = self._failed(delivery, "it could not be sent")
            await self._store.settle_delivery(delivery, again)
        except ServerError as error:  # it stays claimed, and is due again when that is over
            self._note_failure(error)
        finally:
            self._leave(delivery)

    def _leave(self, delivery: Delivery) -> None:
        for counts, name in ((self._hosts, delivery.host), (self._owners, delivery.owner)):
            counts[name] -= 1
            if not counts[name]:
                del counts[name]
        self._freed.set()

    async def _attempt(self, delivery: Delivery) -> float | None:
        """When it is due again; None where it is done with."""
        try:
            answer = await self._post(delivery)
        except UrlError as error:
            return self._failed(delivery, str(error))
        if is_taken(answer.status):
            self.figures.delivered += 1
            return None
        reason = f"its receiver answered {answer.status}"
        if is_refused_for_good(answer.status):
            self.figures.failures += 1
            self._give_up(delivery, reason)
            return None
        return self._failed(delivery, reason, retry_after_seconds(answer.retry_after, self._now()))

    async def _post(self, delivery: Delivery) -> Answer:
        secrets = self._settings.secrets(delivery.owner)
        if not secrets:
            raise UrlError(f"there is no secret any more to sign it with for '{delivery.owner}'")
        is_cloud_event = self._settings.is_cloud_event
        body = webhook_body(delivery, is_cloud_event=is_cloud_event)
        headers = webhook_headers(delivery, body, secrets, int(self._now()), is_cloud_event=is_cloud_event)
        return await self._client.post(delivery.url, headers, body)

    def _failed(self, delivery: Delivery, reason: str, retry_after: float = 0.0) -> float | None:
        self.figures.failures += 1
        delay = retry_delay(delivery.attempt, self._jitter(), retry_after)
        if delay is None:
            self._give_up(delivery, reason)
            return None
        logger.info(
            "webhook '%s' of job '%s' to %s failed (attempt %d), and is sent again in %.0f s: %s",
            delivery.id,
            delivery.job.id,
            delivery.host,
            delivery.attempt,
            delay,
            reason,
        )
        return self._now() + delay

    def _give_up(self, delivery: Delivery, reason: str) -> None:
        self.figures.abandoned += 1
        logger.warning(
            "webhook '%s' of job '%s' to %s is given up after %d attempts: %s",
            delivery.id,
            delivery.job.id,
            delivery.host,
            delivery.attempt,
            reason,
        )

    def _note_failure(self, error: ServerError) -> None:
        """Once, until the store works again."""
        if not self._is_failing:
            self._is_failing = True
            logger.error("the job store failed: %s; webhooks wait until it works again", error.message)
