"""What an edge process is started with. It comes to it by its standard input, from the process that it belongs to."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from dataclasses import dataclass, replace

from protocol.grpc.settings import GrpcSettings
from protocol.http.settings import HttpSettings
from protocol.log.access_log import AccessPolicy
from protocol.reactor.drivers import PollerKind
from protocol.reactor.tls import TlsFiles
from trioton.edge_processes.linked import Rules, linked_words, rules_of
from trioton.settings import Address, Settings

# Of an edge process: blocked when it begins, then ignored.
IGNORED_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@dataclass(frozen=True, slots=True)
class EdgeStart:
    """No more of the server's settings than its edges need.

    Attributes:
        number: from 1 on.
        addresses: where clients reach the services that it serves, by the words of their flags.
        memory: the most bytes that it holds of responses.
        tls: certificates by the words of the services that have any.
        linked: services whose inference it answers by the link to the core, as `linked_words` has them.
        rules: theirs, of access and headers.
        has_keys: whether the server has keys of clients, which the core tells.
        access: which requests have lines in the access log.
        tells_failures: whether the core is to be told of requests that fail.
        keeps_responses: whether the core keeps responses of the OpenAI interface.
        fetches_media: whether the core fetches pictures that clients name by URLs.
    """

    number: int
    addresses: Mapping[str, Address]
    memory: int
    http: HttpSettings
    grpc: GrpcSettings
    tls: Mapping[str, TlsFiles]
    linked: frozenset[str]
    rules: Mapping[str, Rules]
    has_keys: bool
    access: AccessPolicy
    tells_failures: bool
    keeps_responses: bool
    fetches_media: bool
    log_verbose: int
    poller: PollerKind
    busy_poll_seconds: float


def edge_start(settings: Settings, number: int, addresses: Mapping[str, Address], memory: int) -> EdgeStart:
    http, grpc = settings.http_tls(), settings.grpc_tls()
    files = {"http": http, "openai": http, "grpc": grpc}
    return EdgeStart(
        number,
        addresses,
        memory,
        replace(
            settings.http_edge(),
            interface=settings.http_interface(),
            openai=settings.openai(),
            metrics=settings.allow_metrics and settings.metrics_on_http_port,
        ),
        settings.grpc_edge(),
        {word: found for word, found in files.items() if found is not None and word in addresses},
        linked_words(settings),
        rules_of(settings),
        settings.auth_keys_file is not None,
        settings.access_log.policy,
        settings.console,
        settings.openai_store_bytes > 0,
        settings.media() is not None,
        settings.log_verbose,
        settings.poller,
        settings.busy_poll_seconds(),
    )
