"""Flags of the server and its model repositories. Part of `trioton.settings`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from protocol.reactor.drivers import PollerKind
from repository.layout import ModelDirectory, Repository
from repository.stores.store_repository import Stores
from repository.stores.urls import StoreUrl
from trioton.flags.fields import (
    BOOLEAN,
    INTEGER,
    PATH,
    STRING,
    at_least,
    boolean,
    choice,
    filesystem_path,
    flag,
    integer,
    repeatable,
    seconds,
    switch,
)
from trioton.flags.store import repository_place
from trioton.machine import available_memory, core_count, default_request_memory, memory_size

SERVER = "Server and model repository"
BUSY_POLL_SECONDS = 200e-6
MOST_EDGES = 128
_CORES_FOR_EDGES, _MOST_AUTO_EDGES = 4, 8


@dataclass(frozen=True, slots=True)
class BackendSetting:
    """One `--backend-config`. An empty `backend` means a setting for all backends."""

    backend: str
    key: str
    value: str


def backend_setting(text: str) -> BackendSetting:
    head, equals, value = text.partition("=")
    backend, comma, key = head.partition(",")
    if not comma:
        backend, key = "", backend
    if not equals or not key or (comma and not backend):
        raise ValueError("--backend-config option format is '<backend name>,<setting>=<value>'")
    return BackendSetting(backend, key, value)


def backend_settings(settings: Sequence[BackendSetting]) -> dict[str, dict[str, str]]:
    """The settings of each backend, by its name ("" for all)."""
    made: dict[str, dict[str, str]] = {}
    for setting in settings:
        made.setdefault(setting.backend, {})[setting.key] = setting.value
    return made


def edge_count(text: str) -> int:
    """The value of --edge-processes."""
    if text == "auto":
        cores = math.floor(core_count())
        return 0 if cores < _CORES_FOR_EDGES else min(cores // 2, _MOST_AUTO_EDGES)
    try:
        return integer(0, MOST_EDGES)(text)
    except ValueError as error:
        raise ValueError(f"{error}, or auto") from None


def config_name(text: str) -> str:
    if not text or not text.isprintable() or any(mark in text for mark in " /\\"):
        raise ValueError("expected the name of a file in configs/, without .pbtxt, spaces and slashes")
    return text


def _poller_kind(text: str) -> PollerKind:
    return cast(PollerKind, choice("inline", "task")(text))


@dataclass(frozen=True, kw_only=True)  # without slots, so that a class may have several such parts
class ServerFlags:
    """The part of the settings that is about the server as a whole, and where its models are."""

    model_repository: tuple[Path | StoreUrl, ...] = repeatable(
        repository_place,
        group=SERVER,
        metavar=PATH,
        aliases=("model-store",),
        help="A directory of models, or one in an object store: s3://bucket/path, gs://bucket/path, "
        "as://account/container/path. May be given several times; all are served together.",
    )
    # No flag: folders that are a model each, of the words of `trioton serve`.
    folders: tuple[ModelDirectory, ...] = ()
    # No flags: `trioton run` sets them. One model to serve besides the repositories, and whether it is loaded again
    # when its files change (which takes `model_control_mode` explicit).
    model: ModelDirectory | None = None
    reload: bool = False
    id: str = flag(
        "trioton", str, group=SERVER, metavar=STRING, help="The server's name in the answer to a metadata request."
    )
    model_control_mode: str = flag(
        "none",
        choice("none", "poll", "explicit"),
        group=SERVER,
        metavar="{none,poll,explicit}",
        help="none: load all models at start, and leave it at that. poll: as none, and follow the changes of the "
        "repositories. explicit: load those named by --load-model, and let clients load and unload.",
    )
    repository_poll_secs: float = flag(
        15.0,
        seconds,
        group=SERVER,
        metavar="<seconds>",
        help="In poll mode, how often to look at the repositories; 0 for never.",
    )
    model_namespacing: bool = flag(
        False,
        boolean,
        group=SERVER,
        metavar=BOOLEAN,
        help="Serve models of one name from several repositories, told apart by their repository's path.",
    )
    load_model: tuple[str, ...] = repeatable(
        str,
        group=SERVER,
        metavar="<name>",
        help="A model to load at start in explicit mode. May be given several times; `*` alone means all.",
    )
    exit_on_error: bool = flag(
        True, boolean, group=SERVER, metavar=BOOLEAN, help="Stop if a model fails to load at start."
    )
    strict_readiness: bool = flag(
        True, boolean, group=SERVER, metavar=BOOLEAN, help="Be ready only while every model that was asked for is."
    )
    disable_auto_complete_config: bool = switch(
        group=SERVER, help="Require complete configurations; fill in nothing from the models."
    )
    strict_model_config: bool = flag(
        False, boolean, group=SERVER, metavar=BOOLEAN, help="Deprecated: --disable-auto-complete-config."
    )
    model_config_name: str = flag(
        "",
        config_name,
        group=SERVER,
        metavar="<name>",
        help="Take the configuration of each model that has configs/<name>.pbtxt in its directory from there.",
    )
    backend_config: tuple[BackendSetting, ...] = repeatable(
        backend_setting,
        group=SERVER,
        metavar="<backend>,<setting>=<value>",
        help="A setting for a backend. May be given several times.",
    )
    backend_directory: tuple[Path, ...] = repeatable(
        filesystem_path,
        group=SERVER,
        metavar=PATH,
        help="A directory of Python-based backends, each a folder <name>/model.py. May be given several times.",
    )
    allow_client_shm: bool = flag(
        False,
        boolean,
        group=SERVER,
        metavar=BOOLEAN,
        help="Let clients on this machine register shared memory and pass tensors in it.",
    )
    auth_keys_file: Path | None = flag(  # noqa: RUF009 (a field, as its neighbours)
        None,
        filesystem_path,
        group=SERVER,
        metavar=PATH,
        help="A TOML file of bearer keys; every call then needs one that allows it. Read again when it changes.",
    )
    max_request_memory: int | None = flag(
        None,
        integer(1),
        group=SERVER,
        metavar=INTEGER,
        help="The most bytes that the bodies of all requests in flight hold, over HTTP and gRPC, with the responses "
        "that wait for their clients to read; others are refused. "
        "Where absent, a quarter of the memory that is available once the models are loaded, in this machine or its "
        "control group.",
    )
    busy_poll_microseconds: int | None = flag(
        None,
        integer(0, 10_000),
        group=SERVER,
        metavar=INTEGER,
        help="How long to look for requests and for answers of workers before sleeping, where they have come sooner "
        "than that lately; 0 for never. It answers quick requests sooner, and takes as much of one core. Where absent, "
        "200, or 0 where the server has less than two cores.",
    )
    poller: PollerKind = flag(  # noqa: RUF009 (a field, as its neighbours)
        "inline",
        _poller_kind,
        group=SERVER,
        metavar="{inline,task}",
        help="How sockets of clients and workers are waited for. inline: in place of Trio's own wait for I/O, with one "
        "private attribute of Trio's. task: by a task, with Trio's public interface only; it takes more processor time "
        "for each request, and does not busy-poll. Where the attribute is missing, it is task.",
    )
    edge_processes: int = flag(
        0,
        edge_count,
        group=SERVER,
        metavar="<n>|auto",
        help="How many processes have the connections of clients, with TLS, HTTP and gRPC, off the loop that models "
        "are called from; 0 for none: everything in one process. auto: none below four cores, else one for every two, "
        "eight at most.",
    )
    drain_secs: int = flag(
        0,
        integer(0),
        group=SERVER,
        metavar=INTEGER,
        help="How long a server that was told to stop goes on taking requests while it says that it is not ready, so "
        "that load balancers look elsewhere.",
    )
    exit_timeout_secs: int = flag(
        30, at_least(0), group=SERVER, metavar=INTEGER, help="How long requests in flight may take to end at exit."
    )

    def repositories(self, stores: Stores) -> tuple[Repository, ...]:
        """Where models are looked for."""
        given = dict.fromkeys(self.model_repository)  # one that is given twice is one
        places: tuple[Repository, ...] = tuple(
            stores.repository(place) if isinstance(place, StoreUrl) else place for place in given
        )
        places = (*self.folders, *places)
        return places if self.model is None else (self.model, *places)

    def auto_complete_config(self) -> bool:
        """Whether configurations are filled up from the models."""
        return not (self.disable_auto_complete_config or self.strict_model_config)

    def request_memory(self) -> int:
        """As given, or what suits the memory that is available now: to be asked when the models are loaded."""
        return self.max_request_memory or default_request_memory(memory_size(), available_memory())

    def busy_poll_seconds(self) -> float:
        if self.busy_poll_microseconds is not None:
            return self.busy_poll_microseconds / 1e6
        return BUSY_POLL_SECONDS if core_count() >= 2 else 0.0  # of one core, its workers need what it would take
