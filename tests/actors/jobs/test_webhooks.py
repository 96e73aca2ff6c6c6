"""Webhooks of jobs in virtual time: told, tried again over days, given up, and never lost by the end of a server."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from actors.jobs import runner
from actors.jobs import webhooks as webhooks_actor
from actors.jobs.jobs import ServerJobs
from actors.jobs.webhooks import MAX_OF_HOST, MAX_OF_OWNER, Webhooks, WebhookSettings
from protocol.errors import InvalidArgument, Unsupported
from protocol.failures import CallbackFailures
from protocol.jobs.execution import ModelLoad, Partial
from protocol.jobs.job import Job, new_job_id
from protocol.jobs.states import JobState
from protocol.jobs.store import NewItem, NewJob
from protocol.jobs.webhook import END_STATES, Webhook
from protocol.messages import Buffer
from protocol.outgoing.urls import HttpUrl, UrlError, parse_url
from protocol.webhooks.exchange import Answer
from protocol.webhooks.retries import DELAYS
from tests.actors.jobs.direct_store import DirectStore

HOUR = 3600.0


@pytest.fixture
def slow_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests of days: nothing is looked at more often than every quarter of an hour."""
    monkeypatch.setattr(webhooks_actor, "TICK_SECONDS", HOUR / 4)
    monkeypatch.setattr(runner, "TICK_SECONDS", HOUR / 4)


@dataclass
class Post:
    at: float
    url: str
    headers: dict[str, str]
    body: bytes


@dataclass
class ScriptedClient:
    """Answers by a function of the URL, which may raise, and may say None: then it never answers."""

    answer: Callable[[str], Answer | None] = lambda _: Answer(204)
    posts: list[Post] = field(default_factory=list)
    running: Counter[str] = field(default_factory=Counter)
    most: Counter[str] = field(default_factory=Counter)

    def checked(self, text: str) -> HttpUrl:
        url = parse_url(text)
        if url.host == "forbidden":
            raise UrlError("it is not allowed")
        return url

    async def post(self, text: str, headers: Sequence[tuple[str, str]], body: bytes) -> Answer:
        self.posts.append(Post(trio.current_time(), text, dict(headers), body))
        self.running[text] += 1
        self.most[text] = max(self.most[text], self.running[text])
        try:
            answer = self.answer(text)
            if answer is None:
                await trio.sleep(15)
                raise UrlError("there was no answer")
            await trio.lowlevel.checkpoint()
            return answer
        finally:
            self.running[text] -= 1


class Executor:
    """Runs every item at once."""

    async def run(self, owner: str, request: Buffer, partial: Partial) -> Sequence[Buffer]:
        await trio.lowlevel.checkpoint()
        return [b"result"]

    def load_of(self, model: str) -> ModelLoad:
        return ModelLoad(0, 0)


@dataclass
class Fixture:
    jobs: ServerJobs
    webhooks: Webhooks
    client: ScriptedClient
    store: DirectStore
    secrets: dict[str, list[bytes]]

    async def add(
        self, url: str | None = "https://a/", owner: str = "ann", states: frozenset[JobState] = END_STATES
    ) -> Job:
        webhook = None if url is None else Webhook(url, "", states)
        now = self.jobs.now()
        new = NewJob(new_job_id(now), owner, [NewItem("m", [b"r"])], now + 1000, model="m", webhook=webhook)
        return (await self.jobs.add(new))[0]


@asynccontextmanager
async def server(
    folder: Path,
    answer: Callable[[str], Answer | None] = lambda _: Answer(204),
    *,
    default: Webhook | None = None,
    is_cloud_event: bool = False,
) -> AsyncIterator[Fixture]:
    """Left, all is cancelled, as by a crash; what is on the disk stays."""
    store, client, failures = DirectStore(folder), ScriptedClient(answer), CallbackFailures()
    secrets = {name: [b"s" * 32] for name in ("ann", "bob")}
    settings = WebhookSettings(lambda owner: secrets.get(owner, ()), default, is_cloud_event)
    webhooks = Webhooks(store, client, settings, failures, trio.current_time, lambda: 0.5)
    jobs = ServerJobs(store, Executor(), webhooks=webhooks, failures=failures, now=trio.current_time)
    async with trio.open_nursery() as nursery:
        await nursery.start(jobs.run)
        yield Fixture(jobs, webhooks, client, store, secrets)
        nursery.cancel_scope.cancel()
    assert failures.counts() == {}


async def test_a_client_is_told_of_the_end(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with server(tmp_path) as it:
        job = await it.add("https://a/hook")
        await it.add(None)
        await trio.sleep(3)
        (post,) = it.client.posts
        message = json.loads(post.body)
        assert (post.url, message["type"], message["data"]["id"]) == ("https://a/hook", "job.succeeded", job.id)
        assert (message["data"]["state"], message["data"]["counts"]["succeeded"]) == ("succeeded", 1)
        assert post.headers["Content-Type"] == "application/json"
        assert (it.webhooks.figures.delivered, it.webhooks.figures.failures) == (1, 0)


async def test_of_every_state_that_it_asks_for(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with server(tmp_path) as it:
        await it.add(states=frozenset({JobState.RUNNING, JobState.SUCCEEDED}))
        await trio.sleep(3)
        told = sorted(json.loads(post.body)["type"] for post in it.client.posts)
        assert told == ["job.running", "job.succeeded"]
        assert len({post.headers["webhook-id"] for post in it.client.posts}) == 2


async def test_cloud_events(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with server(tmp_path, is_cloud_event=True) as it:
        job = await it.add()
        await trio.sleep(3)
        (post,) = it.client.posts
        event = json.loads(post.body)
        assert post.headers["Content-Type"] == "application/cloudevents+json"
        assert event.pop("time").endswith("Z")
        assert event.pop("data")["id"] == job.id
        assert event == {
            "specversion": "1.0",
            "id": post.headers["webhook-id"],
            "source": "/v2/jobs",
            "subject": job.id,
            "type": "job.succeeded",
            "datacontenttype": "application/json",
        }


async def test_the_operator_is_told_of_jobs_without_one(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with server(tmp_path, default=Webhook("https://own/", "https://own")) as it:
        await it.add(None)
        await it.add("https://a/")
        await trio.sleep(3)
        assert sorted(post.url for post in it.client.posts) == ["https://a/", "https://own/"]


async def test_the_same_message_is_tried_again_over_days_and_given_up(
    tmp_path: Path, autojump_clock: MockClock, slow_ticks: None
) -> None:
    async with server(tmp_path, lambda _: Answer(500)) as it:
        await it.add()
        await trio.sleep(100 * HOUR)
        posts = it.client.posts
        assert len(posts) == len(DELAYS) + 1
        assert len({(post.headers["webhook-id"], post.body) for post in posts}) == 1
        pauses = [later.at - post.at for post, later in pairwise(posts)]
        assert [abs(pause - delay) < 1000 for pause, delay in zip(pauses, DELAYS, strict=True)] == [True] * len(DELAYS)
        assert (it.webhooks.figures.failures, it.webhooks.figures.abandoned) == (len(posts), 1)
        (left,) = it.store.db.execute("SELECT count(*) FROM deliveries").fetchone()
        assert left == 0


async def test_retry_after_and_gone(tmp_path: Path, autojump_clock: MockClock) -> None:
    answers = {"https://busy/": Answer(503, "100"), "https://gone/": Answer(410), "https://moved/": Answer(302)}
    async with server(tmp_path, answers.__getitem__) as it:
        for url in answers:
            await it.add(url)
        await trio.sleep(50)
        assert Counter(post.url for post in it.client.posts) == {
            "https://busy/": 1,
            "https://gone/": 1,
            "https://moved/": 2,
        }
        await trio.sleep(100)
        assert Counter(post.url for post in it.client.posts)["https://busy/"] == 2
        assert it.webhooks.figures.abandoned == 1


@pytest.mark.parametrize("seconds", [0.5, 1.0, 1.5, 5, 20])
async def test_a_server_that_ends_loses_none(tmp_path: Path, autojump_clock: MockClock, seconds: float) -> None:
    async with server(tmp_path, lambda _: None) as it:
        jobs = [await it.add(f"https://{number}/") for number in range(3)]
        await trio.sleep(seconds)
        before = {post.headers["webhook-id"] for post in it.client.posts}
    async with server(tmp_path) as it:
        await trio.sleep(500)
        assert sorted(json.loads(post.body)["data"]["id"] for post in it.client.posts) == sorted(job.id for job in jobs)
        assert before <= {post.headers["webhook-id"] for post in it.client.posts}
        assert len(it.client.posts) == 3


async def test_a_receiver_that_hangs_is_before_nobody(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with server(tmp_path, lambda url: None if "dead" in url else Answer(204)) as it:
        for _ in range(100):
            await it.add("https://dead/")
        for number in range(100):
            await it.add(f"https://dead{number}/")
        await trio.sleep(5)
        began = trio.current_time()
        await it.add("https://alive/", "bob")
        await trio.sleep(5)
        (told,) = [post for post in it.client.posts if post.url == "https://alive/"]
        assert told.at - began < 3
        assert it.client.most["https://dead/"] == MAX_OF_HOST
        assert sum(it.client.running.values()) <= MAX_OF_OWNER


async def test_what_cannot_be_stored_is_sent_again(tmp_path: Path, autojump_clock: MockClock) -> None:
    def answer(_: str) -> Answer:
        it.store.is_full = True
        return Answer(204)

    async with server(tmp_path, answer) as it:
        await it.add()
        await trio.sleep(30)
        assert len(it.client.posts) == 1
        it.store.is_full = False
        it.client.answer = lambda _: Answer(204)
        await trio.sleep(200)
        assert len({post.headers["webhook-id"] for post in it.client.posts}) == 1
        assert len(it.client.posts) == 2


async def test_a_secret_that_has_gone_is_waited_for(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with server(tmp_path) as it:
        await it.add()
        secrets, it.secrets["ann"] = it.secrets["ann"], []
        await trio.sleep(3)
        assert (it.client.posts, it.webhooks.figures.failures) == ([], 1)
        it.secrets["ann"] = secrets
        await trio.sleep(10)
        assert len(it.client.posts) == 1


async def test_webhooks_that_are_refused(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with server(tmp_path) as it:
        with pytest.raises(InvalidArgument, match=r"'webhook': https://forbidden/: it is not allowed"):
            await it.add("https://forbidden/")
        with pytest.raises(Unsupported, match="there is no secret for 'eve'"):
            await it.add(owner="eve")
    jobs = ServerJobs(DirectStore(tmp_path), Executor())
    async with trio.open_nursery() as nursery:
        await nursery.start(jobs.run)
        with pytest.raises(Unsupported, match="--jobs-webhook-allowed-hosts"):
            await jobs.add(NewJob("job_1", "ann", [NewItem("m", [b"r"])], 1.0, webhook=Webhook("https://a/", "")))
        nursery.cancel_scope.cancel()


async def test_a_defect_in_sending_is_an_attempt(tmp_path: Path, autojump_clock: MockClock, slow_ticks: None) -> None:
    def answer(_: str) -> Answer:
        raise RuntimeError("a defect")

    store, client, failures = DirectStore(tmp_path), ScriptedClient(answer), CallbackFailures()
    settings = WebhookSettings(lambda _: [b"s" * 32])
    webhooks = Webhooks(store, client, settings, failures, trio.current_time, lambda: 0.5)
    jobs = ServerJobs(store, Executor(), webhooks=webhooks, failures=failures, now=trio.current_time)
    async with trio.open_nursery() as nursery:
        await nursery.start(jobs.run)
        new = NewJob("job_1", "ann", [NewItem("m", [b"r"])], 1000.0, webhook=Webhook("https://a/", ""))
        await jobs.add(new)
        await trio.sleep(100 * HOUR)
        nursery.cancel_scope.cancel()
    assert len(client.posts) == len(DELAYS) + 1
    assert failures.counts() == {"job": len(DELAYS) + 1}
