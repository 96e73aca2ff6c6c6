"""What an edge process answers with the core's help over shared memory, in place of relaying it: inference, by tensors
and by texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, NoReturn, cast

import trio

from protocol.access.control import AccessControl
from protocol.access.forwarding import HeaderForwarding
from protocol.access.keys import KeyRing
from protocol.access.restricted import GRPC_PROTOCOL, HTTP_API, OPENAI_API, RestrictedApis, Restriction
from protocol.access.told_keys import ToldKeys
from protocol.core import InferenceCore
from protocol.edge_link.edge_traces import EdgeTrace
from protocol.edge_link.linked_core import LinkedCore
from protocol.errors import NotHere
from protocol.failures import CallbackFailures
from protocol.http.app import HttpApp
from protocol.http.direct_infer import DirectHead, DirectInference, DirectRequest, ReplySink
from protocol.http.head import Head
from protocol.http.routes import route_table
from protocol.http.settings import HttpSettings
from protocol.limits.counter import LimitCounter
from protocol.limits.request_memory import RequestMemory
from protocol.log.access_log import AccessLog
from protocol.log.failure_log import FailureLog
from protocol.log.request_ids import RequestIds
from protocol.media.fetcher import MediaFetcher
from protocol.messages import Buffer
from protocol.responses.background import Responses
from protocol.server_settings import LogControl, Trace, TraceControl
from protocol.services import EdgeServices
from protocol.shared_memory.table import SharedMemoryTable
from trioton.settings import Settings


def linked_words(settings: Settings) -> frozenset[str]:
    """The services whose inference edge processes answer; `openai` stands for the OpenAI and Anthropic interfaces, on
    whatever port."""
    return frozenset() if settings.debug_delays.holds_calls else frozenset(("http", "grpc", "openai"))


class Rules(NamedTuple):
    """Who may call a service, and which of a call's headers its models are given, as a process is told it."""

    restrictions: Sequence[Restriction] = ()
    forwarding: str = ""


def rules_of(settings: Settings) -> dict[str, Rules]:
    """By the words of services."""
    http, grpc = settings.http_header_forward_pattern, settings.grpc_header_forward_pattern
    return {
        "http": Rules(settings.http_restricted_api, "" if http is None else http.pattern),
        "grpc": Rules(settings.grpc_restricted_protocol, "" if grpc is None else grpc.pattern),
        "openai": Rules(settings.openai_restricted_api),
    }


_DIALECTS = {"http": HTTP_API, "grpc": GRPC_PROTOCOL, "openai": OPENAI_API}


class _PicturesElsewhere:
    """The part of `MediaFetcher` that chats ask for: the core's process fetches what clients name by URLs, so that the
    limits on that hold for all."""

    async def fetch_all(self, *_: object) -> NoReturn:
        raise NotHere("pictures are fetched by the core's process")


class Tracing:
    """The part of `TraceControl` that inference asks for: whatever may be traced has a trace for the time being."""

    def __init__(self, core: LinkedCore) -> None:
        self._core = core

    @property
    def is_sampling(self) -> bool:
        return self._core.is_traced

    @property
    def follows_context(self) -> bool:
        return self._core.follows_context

    def sample(self, model: str, *, traceparent: str = "", tracestate: str = "") -> Trace | None:
        return EdgeTrace(self._core, model, traceparent, tracestate)


@dataclass(frozen=True, slots=True)
class Linking:
    """What the services of one edge process have of the link, and of the core behind it."""

    core: LinkedCore
    keys: ToldKeys | None
    tracing: Tracing
    limits: LimitCounter
    memory: RequestMemory
    failures: CallbackFailures
    access_log: AccessLog
    failure_log: FailureLog
    fetches_media: bool = False
    request_ids: RequestIds = field(default_factory=RequestIds)

    def services(self, word: str, rules: Rules) -> EdgeServices:
        """Those of one service. No region of shared memory is known."""
        return EdgeServices(
            core=cast(InferenceCore, self.core),
            shared_memory=SharedMemoryTable(allow_registration=False),
            access=AccessControl(RestrictedApis(rules.restrictions, _DIALECTS[word]), self.keys),
            forwarding=HeaderForwarding(rules.forwarding),
            limits=self.limits,
            memory=self.memory,
            log=cast(LogControl, None),  # inference does not ask for it
            trace=cast(TraceControl, self.tracing),
            gen_ai=self.core.gen_ai,
            failures=self.failures,
            failure_log=self.failure_log,
            access_log=self.access_log,
            request_ids=self.request_ids,
            responses=Responses(0),  # those that are kept are the core's
            media=cast(MediaFetcher, _PicturesElsewhere()) if self.fetches_media else None,
        )

    async def know(self, name: str, version: int, outputs: tuple[str, ...]) -> None:
        """As `ModelFacts.know`."""
        await self.core.facts.know(name, version, outputs)


# In place of the keys of a head that was read while others were coming into force.
_OLD = KeyRing({})


class _KeysOfHeads:
    """What connections compare the keys of a head with that they have read before. Implements `KeySource` for that."""

    def __init__(self, keys: ToldKeys) -> None:
        self._keys = keys
        self.ledger = keys.ledger

    @property
    def current(self) -> KeyRing:
        return self._keys.current if self._keys.are_current else _OLD

    @property
    def changed(self) -> trio.Event:
        return self._keys.changed


class LinkedInference(DirectInference):
    """Also passes on what may be meant for the core's jobs, and what was read by keys that are out of date."""

    def __init__(self, app: HttpApp, keys: ToldKeys | None) -> None:
        super().__init__(app)
        if keys is not None:
            self.keys = _KeysOfHeads(keys)

    @classmethod
    def of(cls, services: EdgeServices, settings: HttpSettings, keys: ToldKeys | None = None) -> LinkedInference:
        routes = route_table(settings.interface, has_console=False, has_metrics=False)
        return cls(HttpApp(services, settings, routes), keys)

    def head(self, head: Head, data: bytes) -> DirectHead | None:
        if b"prefer" in head.headers:
            return None
        return super().head(head, data)

    def begin(self, head: DirectHead, data: Buffer, sink: ReplySink, start: int = 0) -> DirectRequest | None:
        return None if head.keys is _OLD else super().begin(head, data, sink, start)
