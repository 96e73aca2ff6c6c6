"""The calls of the fleet itself, `/v2/fleet`: status, scale, update, canary.

They are answered on the fleet's own port only, to programs that come with the fleet's key where there is one, and to no
page in a browser.
"""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
import trio

from protocol.errors import Forbidden, InvalidArgument, NotFound, Unauthenticated
from protocol.http.errors import Conflict, MethodNotAllowed
from protocol.http.reply import Reply, json_reply
from trioton.flags.fields import UsageError
from trioton.fleet.checks import check_change, check_settings
from trioton.fleet.everywhere import Everywhere
from trioton.fleet.flags import FleetFlags
from trioton.fleet.scaler import Scaler
from trioton.fleet.supervisor import Busy, Supervisor, Update
from trioton.fleet.words import ServerWords

PREFIX = "/v2/fleet"
PATHS = tuple(
    f"{PREFIX}{what}" for what in ("", "/scale", "/update", "/targets", "/canary", "/canary/share", "/canary/promote")
)
_ACCEPTED = 202

Share = Annotated[float, msgspec.Meta(ge=0.0, le=1.0)]
Count = Annotated[int, msgspec.Meta(ge=1)]


class ScaleBody(msgspec.Struct, forbid_unknown_fields=True):
    replicas: Count


class WordsBody(msgspec.Struct, forbid_unknown_fields=True):
    """How new replicas differ: flags that are added, other repositories, another command (another version)."""

    flags: tuple[str, ...] = ()
    repositories: tuple[str, ...] = ()
    command: tuple[str, ...] = ()


class CanaryBody(msgspec.Struct, forbid_unknown_fields=True):
    share: Share
    replicas: Count = 1
    flags: tuple[str, ...] = ()
    repositories: tuple[str, ...] = ()
    command: tuple[str, ...] = ()


class ShareBody(msgspec.Struct, forbid_unknown_fields=True):
    share: Share


class FleetApi:
    """`key` is the fleet's; empty where there is none. `environment` is that of the replicas."""

    def __init__(
        self,
        flags: FleetFlags,
        supervisor: Supervisor,
        everywhere: Everywhere,
        scaler: Scaler,
        environment: Mapping[str, str],
        key: str,
    ) -> None:
        self._flags = flags
        self._supervisor = supervisor
        self._everywhere = everywhere
        self._scaler = scaler
        self._environment = environment
        self._key = key

    async def __call__(self, method: str, path: str, headers: Mapping[bytes, bytes], body: bytes) -> Reply | None:
        """The reply; None where the path is none of the fleet's.

        Raises:
            ServerError: what is wrong with the call, or why it cannot be done now.
        """
        if path != PREFIX and not path.startswith(f"{PREFIX}/"):
            return None
        self._check(headers)
        try:
            return await self._answer(method, path.removeprefix(PREFIX).strip("/"), body)
        except Busy as error:
            raise Conflict(str(error)) from None
        except UsageError as error:
            raise InvalidArgument(str(error)) from None

    def _check(self, headers: Mapping[bytes, bytes]) -> None:
        if b"origin" in headers or headers.get(b"sec-fetch-site", b"none") != b"none":
            raise Forbidden("the fleet is not controlled by pages in a browser")
        given = headers.get(b"authorization", b"")
        if self._key and not hmac.compare_digest(given, f"Bearer {self._key}".encode()):
            raise Unauthenticated("the fleet's key is needed: authorization: Bearer <key>, see --fleet-key-file")

    async def _answer(self, method: str, what: str, body: bytes) -> Reply:
        match method, what:
            case "GET", "":
                return json_reply(self.status())
            case "GET", "targets":
                return json_reply(self._targets())
            case "POST", "scale":
                wanted = _read(ScaleBody, body).replicas
                self._check_count(wanted)
                self._supervisor.scale(wanted)
                self._scaler.note_change()
            case "POST", "update":
                self._supervisor.start_update(self._words(_read(WordsBody, body)))
            case "POST", "canary":
                canary = _read(CanaryBody, body)
                self._check_count(canary.replicas)
                await self._supervisor.start_canary(self._words(canary), canary.replicas, canary.share)
            case "POST", "canary/share":
                await self._supervisor.set_share(_read(ShareBody, body).share)
            case "POST", "canary/promote":
                await self._supervisor.promote_canary()
            case "DELETE", "canary":
                await self._supervisor.end_canary()
            case _, "" | "targets":
                raise MethodNotAllowed(("GET",))
            case _, "scale" | "update" | "canary" | "canary/share" | "canary/promote":
                raise MethodNotAllowed(("POST",))
            case _:
                raise NotFound(f"the fleet has no '{what[:100]}'")
        return json_reply(self.status(), _ACCEPTED)

    def _check_count(self, count: int) -> None:
        flags = self._flags
        if not flags.min_replicas <= count <= flags.max_replicas:
            raise InvalidArgument(
                f"'replicas' must lie within --min-replicas and --max-replicas, expected {flags.min_replicas} to "
                f"{flags.max_replicas}, got {count}"
            )

    def _words(self, body: WordsBody | CanaryBody) -> ServerWords:
        """Raises UsageError: a server would not start with them, or not as one of this fleet."""
        current = self._supervisor.current.words
        words = current.changed(flags=body.flags, repositories=body.repositories, command=body.command)
        settings = words.settings(self._environment)
        check_change(current.settings(self._environment), settings)
        check_settings(settings, self._flags)
        return words

    def status(self) -> dict[str, Any]:
        """All that there is to say of the fleet."""
        supervisor, report = self._supervisor, self._everywhere.last_report
        canary, now = supervisor.canary, trio.current_time()
        return {
            "wanted": supervisor.count,
            "generation": supervisor.current.number,
            "replicas": [each.described(now) for each in supervisor.registry],
            "restarts": supervisor.restarts,
            "canary": None
            if canary is None
            else {"generation": canary.generation.number, "replicas": canary.replicas, "share": canary.share},
            "update": None if supervisor.update is None else described_update(supervisor.update),
            "scaling": self._scaler.described(),
            "last_change_of_models": None
            if report is None
            else {"status": report.status, "error": report.error, "replicas": dict(report.replicas)},
        }

    def _targets(self) -> list[dict[str, Any]]:
        """As Prometheus' HTTP service discovery has them."""
        return [
            {"targets": [f"{each.address.host}:{each.address.metrics_port}"], "labels": {"replica": each.name}}
            for each in self._supervisor.registry
            if each.address is not None
        ]


def described_update(update: Update) -> dict[str, Any]:
    return {
        "from": update.old.number,
        "to": update.new.number,
        "state": str(update.machine.state),
        "replaced": update.machine.replaced,
        "reason": update.machine.reason,
    }


def _read(kind: type[Any], body: bytes) -> Any:
    try:
        return msgspec.json.decode(body or b"{}", type=kind)
    except msgspec.DecodeError as error:
        raise InvalidArgument(f"the body: {error}") from None
