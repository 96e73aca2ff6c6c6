"""Quotas over HTTP, whichever driver reads the request: what is refused leaves the connection in use if it can."""

from __future__ import annotations

import json

import pytest

from protocol.access.control import AccessControl
from protocol.quotas.accounts import Charge
from tests.protocol.access.changing_keys import ChangingKeys
from tests.protocol.http.conftest import Serve
from tests.protocol.http.fake_core import FakeCore
from tests.protocol.http.fake_services import make_services
from tests.protocol.http.http1.test_connection import EMPTY, INFER, Client, connect, sized
from tests.protocol.http.test_direct_infer import binary

KEY = "a-key-of-enough-characters"
AUTHORIZATION = f"Authorization: Bearer {KEY}"


def keys(quota: str) -> ChangingKeys:
    return ChangingKeys(f'[quotas.q]\n{quota}\n[keys.alice]\nkey = "{KEY}"\nallow = ["all"]\nquota = "q"\n')


async def connected(serve: Serve, core: FakeCore, source: ChangingKeys) -> Client:
    return await connect(await serve(core, None, make_services(core, access=AccessControl(keys=source))))


async def test_a_refused_request_that_has_come_whole_leaves_the_connection(serve: Serve) -> None:
    core = FakeCore()
    client = await connected(serve, core, keys("requests = { limit = 2, seconds = 3600 }"))
    for _ in range(2):
        await client.send(binary(INFER, bytes(16), AUTHORIZATION))
        status, headers, _ = await client.response()
        assert (status, headers["ratelimit-policy"]) == (200, '"requests";q=2;w=3600')
    for _ in range(2):
        await client.send(binary(INFER, bytes(16), AUTHORIZATION))
        status, headers, body = await client.response()
        assert (status, headers["retry-after"], headers.get("connection")) == (429, "1800", None)
        assert json.loads(body)["error"].startswith("key 'alice' has reached the limit of quota 'q', 2 requests in ")
    assert len(core.submitted) == 2


async def test_a_refused_request_is_not_waited_for(serve: Serve) -> None:
    core = FakeCore()
    client = await connected(serve, core, keys("requests = { limit = 1, seconds = 3600 }"))
    request = binary(INFER, bytes(16), AUTHORIZATION)
    await client.send(request)
    assert (await client.response())[0] == 200
    await client.send(request[:-10])
    status, headers, _ = await client.response()
    assert (status, headers["connection"]) == (429, "close")


@pytest.mark.parametrize("path", [INFER, "/v2/models/echo/generate"])
async def test_places_are_given_back_by_whatever_ends_a_request(serve: Serve, path: str) -> None:
    """Answered, wrong, or left by its client: the next one is taken."""
    core = FakeCore()
    source = keys("concurrent_requests = 1")
    for sent in (sized(path, EMPTY if path == INFER else b"{}", AUTHORIZATION), sized(path, b"{", AUTHORIZATION)):
        client = await connected(serve, core, source)
        for _ in range(3):
            await client.send(sent)
            assert (await client.response())[0] in (200, 400)
    assert not source.ledger.account("alice").may_be_refused("echo", 0)


async def test_the_request_carries_its_charge_to_the_core(serve: Serve) -> None:
    core = FakeCore()
    client = await connected(serve, core, keys("bytes = { limit = 1000000, seconds = 3600 }"))
    sent = binary(INFER, bytes(16), AUTHORIZATION)
    await client.send(sent)
    _, headers, body = await client.response()
    charge = core.submitted[0].request.charge
    assert isinstance(charge, Charge)
    assert charge.account.name == "alice"
    assert headers["ratelimit"].startswith('"bytes";r=')
    used = 1000000 - int(headers["ratelimit"].partition("r=")[2].partition(";")[0])
    assert used == pytest.approx(len(sent.partition(b"\r\n\r\n")[2]) + len(body), abs=2)
