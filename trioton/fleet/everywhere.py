"""What is done to all replicas: loads and unloads, all or none, and questions whose answers are joined.

    control → [everywhere] → every replica that serves

A load is tried on all replicas at once. Where one of them fails, it is undone on the others: a model that was not
loaded before is unloaded, one that a client had loaded before gets that load again.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
import trio

from protocol.messages import Buffer
from trioton.fleet.http_call import Answer, CallFailed, Headers, call
from trioton.fleet.model_records import ModelRecords, ModelRequest, TooMuchToRemember
from trioton.fleet.replicas import Registry, Replica

logger = logging.getLogger("trioton.fleet")

# Of a load: compilers may run in it.
LOAD_SECONDS = 3600.0
ASK_SECONDS = 30.0
_BAD_REQUEST, _UNAVAILABLE = 400, 503

Outcome = Answer | CallFailed


@dataclass(frozen=True, slots=True)
class Report:
    """What became of a request on every replica, by its name, and the answer for whoever asked."""

    status: int
    replicas: Mapping[str, str]
    error: str = ""

    @property
    def body(self) -> bytes:
        members: dict[str, Any] = {"error": self.error} if self.error else {}
        return msgspec.json.encode({**members, "replicas": dict(self.replicas)})


class Everywhere:
    """Of one fleet. `own_headers` are what the fleet itself calls replicas with. `lock` is held while models change and
    while a replica is brought up to date, so that none misses a change."""

    def __init__(self, registry: Registry, own_headers: Callable[[], Headers]) -> None:
        self._registry = registry
        self._own_headers = own_headers
        self._records = ModelRecords()
        self._last: Report | None = None
        self.lock = trio.Lock()

    @property
    def last_report(self) -> Report | None:
        """That of the last load or unload."""
        return self._last

    async def change(self, request: ModelRequest, headers: Headers = ()) -> Report:
        """Load or unload a model on all replicas, or on none; with the headers of whoever asked for it."""
        async with self.lock:
            self._last = await self._change(request, headers)
            return self._last

    async def _change(self, request: ModelRequest, headers: Headers) -> Report:
        replicas = self._registry.serving()
        if not replicas:
            return Report(_UNAVAILABLE, {}, "no replica of the fleet serves")
        try:
            self._records.check_room(request)
        except TooMuchToRemember as error:
            return Report(_BAD_REQUEST, {}, str(error))
        ready = {replica.name: await self._ready_models(replica) for replica in replicas} if request.is_load else {}
        outcomes = await self._send(replicas, "POST", request.target, headers, request.body, LOAD_SECONDS)
        here = {replica: outcome for replica, outcome in outcomes.items() if replica in self._registry}
        failed = {replica: outcome for replica, outcome in here.items() if not _is_ok(outcome)}
        if not here:
            return Report(_UNAVAILABLE, {}, "every replica has ended meanwhile")
        word = "loaded" if request.is_load else "unloaded"
        if not failed:
            self._records.note(request)
            return Report(200, {replica.name: word for replica in here})
        found = {replica.name: _text(outcome) for replica, outcome in failed.items()}
        for replica in here:
            if replica not in failed:
                was_ready = request.model in ready.get(replica.name, ())
                found[replica.name] = f"{word}, then {await self._undo(replica, request, was_ready=was_ready)}"
        if request.is_load:
            for replica in failed:
                if request.model not in ready.get(replica.name, ()):
                    await self._undo(
                        replica, request, was_ready=False
                    )  # so that the failure does not stay in its index
        first = next(iter(failed.values()))
        what = "load" if request.is_load else "unload"
        where = f"on {len(failed)} of {len(here)} replicas: " if len(here) > 1 else ""
        text = f"failed to {what} '{request.model}' {where}{_text(first)}" if where else _text(first)
        logger.error("%s", f"{what} of model '{request.model}' failed {where}{found}")
        return Report(_status(first), found, text)

    async def _undo(self, replica: Replica, request: ModelRequest, *, was_ready: bool) -> str:
        """In words, what was done."""
        before = self._records.of(request.model)
        if before is None:
            if request.is_load and was_ready:
                return "kept, as it was loaded from the repository before"
            before = ModelRequest(request.model, is_load=not request.is_load)
        [outcome] = (await self._send_own([replica], before)).values()
        word = "loaded as before" if before.is_load else "unloaded again"
        return word if _is_ok(outcome) else f"not {word}: {_text(outcome)}"

    async def _ready_models(self, replica: Replica) -> frozenset[str]:
        [outcome] = (
            await self._send([replica], "POST", "/v2/repository/index", self._own_headers(), b'{"ready":true}')
        ).values()
        if isinstance(outcome, Answer) and outcome.is_ok:
            return frozenset(entry["name"] for entry in msgspec.json.decode(outcome.body))
        return frozenset()

    async def refusal(self, headers: Headers) -> Outcome | None:
        """How a replica refuses one who may not load models; None where these headers may. Before a body is read."""
        replicas = self._registry.serving()
        if not replicas:
            return CallFailed("no replica of the fleet serves")
        own = [(name, value) for name, value in headers if not name.lower().startswith(b"content-")]
        [outcome] = (await self._send(replicas[:1], "POST", "/v2/repository/index", own, b'{"ready":true}')).values()
        return None if _is_ok(outcome) else outcome

    async def catch_up(self, replica: Replica) -> str:
        """Bring a new replica up to date. To be called with the lock held. Returns what has failed, if anything."""
        for request in self._records:
            [outcome] = (await self._send_own([replica], request)).values()
            if not _is_ok(outcome):
                return f"{request.target}: {_text(outcome)}"
        return ""

    async def broadcast(self, method: str, target: str, headers: Headers, body: Buffer) -> Outcome:
        """The same request to all replicas: the first answer that is an error, or else the first."""
        outcomes = await self._send(self._registry.serving(), method, target, headers, body, LOAD_SECONDS)
        here = [outcome for replica, outcome in outcomes.items() if replica in self._registry]
        if not here:
            return CallFailed("no replica of the fleet serves")
        return next((outcome for outcome in here if not _is_ok(outcome)), here[0])

    async def ask(self, method: str, target: str, headers: Headers, body: Buffer = b"") -> Mapping[str, Any] | Outcome:
        """The decoded answers of all replicas that answer, by name, or the first error. One that ends meanwhile is left
        out."""
        outcomes = await self._send(self._registry.serving(), method, target, headers, body)
        found: dict[str, Any] = {}
        for replica, outcome in outcomes.items():
            if isinstance(outcome, CallFailed):
                continue
            if not outcome.is_ok:
                return outcome
            found[replica.name] = msgspec.json.decode(outcome.body)
        return found or CallFailed("no replica of the fleet serves")

    async def _send_own(self, replicas: Sequence[Replica], request: ModelRequest) -> Mapping[Replica, Outcome]:
        return await self._send(replicas, "POST", request.target, self._own_headers(), request.body, LOAD_SECONDS)

    async def _send(
        self,
        replicas: Sequence[Replica],
        method: str,
        target: str,
        headers: Headers,
        body: Buffer = b"",
        seconds: float = ASK_SECONDS,
    ) -> Mapping[Replica, Outcome]:
        """To all of them at once."""
        outcomes: dict[Replica, Outcome] = {}
        async with trio.open_nursery() as nursery:
            for replica in replicas:
                request = partial(_sent, method=method, target=target, headers=headers, body=body, seconds=seconds)
                nursery.start_soon(_note, request, replica, outcomes)
        return {replica: outcomes[replica] for replica in replicas}


async def _note(request: Callable[[Replica], Any], replica: Replica, outcomes: dict[Replica, Outcome]) -> None:
    outcomes[replica] = await request(replica)


async def _sent(
    replica: Replica, *, method: str, target: str, headers: Headers, body: Buffer, seconds: float
) -> Outcome:
    address = replica.address
    if address is None:
        return CallFailed(f"{replica.name} has not started")
    try:
        return await call(address.host, address.http_port, method, target, headers=headers, body=body, seconds=seconds)
    except CallFailed as error:
        return error


def _is_ok(outcome: Outcome) -> bool:
    return isinstance(outcome, Answer) and outcome.is_ok


def _status(outcome: Outcome) -> int:
    return outcome.status if isinstance(outcome, Answer) else _UNAVAILABLE


def _text(outcome: Outcome) -> str:
    """An error as its server has written it."""
    if isinstance(outcome, CallFailed):
        return str(outcome)
    try:
        return str(msgspec.json.decode(outcome.body)["error"])
    except (msgspec.DecodeError, KeyError, TypeError):
        return f"status {outcome.status}"
