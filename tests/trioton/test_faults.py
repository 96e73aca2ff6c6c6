"""Defects on purpose: every callback of the server raises in turn, under load, and costs no more than it may.

The server runs in a thread of this process, so that its functions can be made to raise; its clients are real ones, each
with a connection of its own.
"""

from __future__ import annotations

import functools
import http.client
import importlib
import inspect
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, Queue
from typing import Any, TypeAlias

import httpx
import numpy as np
import pytest
import trio
import tritonclient.grpc
from tritonclient.utils import InferenceServerException

from trioton.cli import settings_from
from trioton.run import run_settings
from trioton.server import Server
from trioton.service_names import address_text
from trioton.settings import Settings

pytestmark = pytest.mark.slow

LOCAL = "127.0.0.1"
# How long anything may take on a machine that is busy with other work.
PATIENCE = 60.0
# How long a server may take to end that still has requests; none has when the tests have passed.
EXIT_SECONDS = 40

MODEL = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        value = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", value + 1)])
"""
DECOUPLED = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            value = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
            sender = request.get_response_sender()
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", value + 1)]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
TENSORS = """
backend: "python"
max_batch_size: 8
input [ { name: "IN" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] } ]
"""
TWO = "instance_group [ { count: 2 kind: KIND_CPU } ]\n"
BATCHING = "dynamic_batching { max_queue_delay_microseconds: 500 }\n"
ORDERED = "dynamic_batching { preserve_ordering: true }\n"
TIMED = "dynamic_batching { default_queue_policy { default_timeout_microseconds: 60000000 max_queue_size: 1000 } }\n"
ADAPTIVE = 'dynamic_batching {} parameters { key: "adaptive_batching" value { string_value: "50" } }\n'
ONE_AT_A_TIME = (
    "instance_group [ { count: 2 kind: KIND_CPU "
    'rate_limiter { resources [ { name: "R" count: 1 global: true } ] } } ]' + "\n"
)
SEQUENCES = """
sequence_batching {
  max_sequence_idle_microseconds: 60000000
  control_input [ { name: "START" control [ { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] } ] } ]
}
"""


def isolation(kind: str) -> str:
    return f'parameters {{ key: "ISOLATION" value {{ string_value: "{kind}" }} }}\n'


# Each kind of model, and the schedulers, by the configuration behind the tensors.
MODELS = {
    "worker": TWO + BATCHING,
    "direct": TWO,
    "in_loop": TWO + BATCHING + isolation("in_loop"),
    "in_thread": TWO + ORDERED + isolation("in_process"),
    "timed": TWO + TIMED + isolation("in_process"),
    "limited": ONE_AT_A_TIME + BATCHING + isolation("in_process"),
    "sequences": TWO + SEQUENCES + isolation("in_process"),
    "stream": TWO + isolation("in_process") + "model_transaction_policy { decoupled: true }\n",
    "cached": TWO + isolation("in_loop") + "response_cache { enable: true }\n",
}
ENSEMBLE = """
platform: "ensemble"
max_batch_size: 8
input [ { name: "IN" data_type: TYPE_INT32 dims: [ 1 ] } ]
output [ { name: "OUT" data_type: TYPE_INT32 dims: [ 1 ] } ]
ensemble_scheduling { step [ {
  model_name: "in_loop" model_version: -1
  input_map { key: "IN" value: "IN" } output_map { key: "OUT" value: "OUT" }
} ] }
"""


# Of those only one fits into the memory that the server has for them.
TIGHT = ("left", "right")


def add(repository: Path, name: str, rest: str) -> None:
    folder = repository / name / "1"
    folder.mkdir(parents=True)
    (folder / "model.py").write_text(DECOUPLED if name == "stream" else MODEL)
    (repository / name / "config.pbtxt").write_text(TENSORS + rest)


def build(repository: Path) -> None:
    for name, rest in MODELS.items():
        add(repository, name, rest)
    (repository / "pipeline" / "1").mkdir(parents=True)
    (repository / "pipeline" / "config.pbtxt").write_text(ENSEMBLE)


class Injected(Exception):
    """What is raised on purpose."""


@dataclass
class Fault:
    """A function that raises the next `left` times, where `matches` what it is called on."""

    left: int = 0
    fired: int = 0
    matches: Callable[[Any], bool] = lambda owner: True

    def meet(self, owner: Any) -> None:
        if self.left and self.matches(owner):
            self.left -= 1
            self.fired += 1
            raise Injected


def make_faulty(patch: pytest.MonkeyPatch, place: str, fault: Fault, *, is_behind: bool) -> None:
    """`place` is "module:Class.function"; it raises before it has done anything, or behind all that it does."""
    module, _, path = place.partition(":")
    owner: Any = importlib.import_module(module)
    *parents, name = path.split(".")
    for parent in parents:
        owner = getattr(owner, parent)
    real = getattr(owner, name)

    @functools.wraps(real)
    def faulty(*arguments: Any, **named: Any) -> Any:
        if not is_behind:
            fault.meet(arguments[0])
            return real(*arguments, **named)
        found = real(*arguments, **named)
        try:
            fault.meet(arguments[0])
        except Injected:
            if inspect.iscoroutine(found):
                found.close()
            raise
        return found

    patch.setattr(owner, name, faulty)


# The server.


@dataclass
class Running:
    server: Server
    token: trio.lowlevel.TrioToken
    thread: threading.Thread
    ended: list[BaseException | None]
    is_spoilt: bool = False  # by a test that has failed

    @property
    def is_alive(self) -> bool:
        return self.thread.is_alive()

    def wait_ready(self) -> None:
        """Until all instances serve, those too that were started anew."""
        url = f"http://{address_text(self.server.addresses['http'])}/v2/health/ready"
        wait_until(lambda: httpx.get(url, timeout=PATIENCE).status_code == 200, lambda: "not ready")

    def wait_answered(self) -> None:
        """Until nothing counts as in flight: what did so for ever would hold up the server's end."""
        accepted = self.server.core.accepted
        wait_until(lambda: not accepted(), lambda: f"in flight: {accepted()}")

    def metric(self) -> dict[str, float]:
        """`trioton_callback_failures_total` by its place."""
        text = httpx.get(f"http://{address_text(self.server.addresses['metrics'])}/metrics", timeout=PATIENCE).text
        found = {}
        for line in text.splitlines():
            if line.startswith('trioton_callback_failures_total{place="'):
                name, _, value = line.removeprefix('trioton_callback_failures_total{place="').partition('"} ')
                found[name] = float(value)
        return found


@contextmanager
def running(settings: Settings) -> Iterator[Running]:
    begun: Queue[tuple[Server, trio.lowlevel.TrioToken] | BaseException] = Queue()
    ended: list[BaseException | None] = []

    async def main() -> None:
        server = Server(settings)
        async with trio.open_nursery() as nursery:
            await nursery.start(server.run)
            begun.put((server, trio.lowlevel.current_trio_token()))

    def run() -> None:
        try:
            trio.run(main)
        except BaseException as error:
            ended.append(error)
            begun.put(error)
        else:
            ended.append(None)

    thread = threading.Thread(target=run)
    thread.start()
    first = begun.get(timeout=PATIENCE * 2)
    if isinstance(first, BaseException):
        raise first
    server, token = first
    found = Running(server, token, thread, ended)
    try:
        yield found
    finally:
        with suppress(trio.RunFinishedError):
            trio.from_thread.run_sync(server.stop, trio_token=token)
        thread.join(PATIENCE)
    assert found.is_spoilt or ended == [None]


@pytest.fixture(scope="module")
def faults() -> Iterator[dict[tuple[str, bool], Fault]]:
    """By function, and whether it raises behind what it does. Made before the server, which keeps many a function."""
    found: dict[tuple[str, bool], Fault] = {}
    with pytest.MonkeyPatch.context() as patch:
        for site in SITES:
            for is_behind in (False, True):
                fault = found[site.function, is_behind] = Fault()
                make_faulty(patch, site.function, fault, is_behind=is_behind)
        yield found


@pytest.fixture(scope="module", autouse=True)
def no_collections() -> Iterator[None]:
    """An unload has the garbage collected. Here that goes through all that the packages of all tests hold, for a
    second or more each time, and models of the memory budget are exchanged with every request."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("actors.lifecycle.freed_memory.return_free_memory", lambda has_frozen: None)
        yield


class Servers:
    """One server for all tests of a kind, and another one after a test that has failed, so that the rest do
    not fail with it."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._stack = ExitStack()
        self._kind = ""
        self._present: Running | None = None

    def present(self, kind: str) -> Running:
        if kind != self._kind:
            self.end()
            self._kind = kind
        if self._present is None:
            self._present = self._stack.enter_context(running(KINDS[kind](self.directory)))
        return self._present

    def end(self, *, is_spoilt: bool = False) -> None:
        if self._present is not None:
            self._present.is_spoilt = is_spoilt
            self._present = None
        self._stack.close()


@pytest.fixture(scope="module")
def servers(faults: dict[tuple[str, bool], Fault], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    directory = tmp_path_factory.mktemp("faults")
    build(directory / "models")
    for name in TIGHT:
        add(directory / "tight", name, isolation("in_loop"))
    (directory / "keys.toml").write_text('[anonymous]\nallow = ["all"]\n')
    found = Servers(directory)
    yield found
    found.end()


@pytest.fixture
def server(
    servers: Servers, faults: dict[tuple[str, bool], Fault], request: pytest.FixtureRequest
) -> Iterator[Running]:
    failed = request.session.testsfailed
    call = getattr(request.node, "callspec", None)
    site = None if call is None else call.params.get("site")
    yield servers.present("plain" if site is None else site.kind)
    for fault in faults.values():
        fault.left = 0
    if request.session.testsfailed > failed:
        servers.end(is_spoilt=True)


def common() -> list[str]:
    return [
        *(f"--{service}-address={LOCAL}" for service in ("http", "grpc", "metrics")),
        *(f"--{service}-port=0" for service in ("http", "grpc", "metrics")),
        "--backend-config=python,allow-in-process=true",
        "--metrics-interval-ms=200",
        f"--exit-timeout-secs={EXIT_SECONDS}",
    ]


def _tracing(mode: str) -> list[str]:
    return [f"--trace-config=mode={mode}", "--trace-config=level=TIMESTAMPS", "--trace-config=rate=1"]


def plain(directory: Path) -> Settings:
    """Most requests take no task."""
    arguments = ["--cache-config=local,size=1048576", "--rate-limit=execution_count"]
    return settings_from([f"--model-repository={directory / 'models'}", *common(), *arguments], {})


def watched(directory: Path) -> Settings:
    """With all that looks at files, and writes them."""
    arguments = [
        f"--auth-keys-file={directory / 'keys.toml'}",
        "--model-control-mode=poll",
        "--repository-poll-secs=0.5",
        "--cache-config=local,size=1048576",
        "--rate-limit=execution_count",
        *_tracing("triton"),
        f"--trace-config=triton,file={directory / 'trace.json'}",
    ]
    return settings_from([f"--model-repository={directory / 'models'}", *common(), *arguments], {})


def tight(directory: Path) -> Settings:
    arguments = ["--model-memory-budget=1"]
    return settings_from([f"--model-repository={directory / 'tight'}", *common(), *arguments], {})


def reloading(directory: Path) -> Settings:
    """`trioton run --reload`, with traces for a collector that is not there."""
    arguments = ["--reload", *_tracing("opentelemetry"), f"--trace-config=opentelemetry,url=http://{LOCAL}:9/v1/traces"]
    return run_settings([str(directory / "models" / "in_loop"), *common(), *arguments], {})


KINDS: dict[str, Callable[[Path], Settings]] = {
    "plain": plain,
    "watched": watched,
    "tight": tight,
    "reloading": reloading,
}


# The clients.


class Failed(Exception):
    """No answer, or an error."""


class Client:
    """Asks one model again and again on a connection of its own; `run` is its thread's."""

    def __init__(self, server: Server, model: str) -> None:
        self.model = model
        self._server = server
        self.good = 0
        self.failures: list[str] = []
        self.wrong: list[str] = []
        self._number = hash((model, id(self))) % 1000

    def run(self, stop: threading.Event) -> None:
        self.open()
        try:
            self._ask_on(stop)
        finally:
            self.close()

    def _ask_on(self, stop: threading.Event) -> None:
        while not stop.is_set():
            self._number += 1
            try:
                found = self.ask(self._number)
            except Failed as failure:
                self.failures.append(str(failure))
                self.close()
                time.sleep(0.02)
                self.open()
            except Exception as error:
                self.wrong.append(repr(error))
                return
            else:
                if found != self._number + 1:
                    self.wrong.append(f"asked {self._number}, got {found}")
                self.good += 1

    def __str__(self) -> str:
        return f"{type(self).__name__} of {self.model}"

    def open(self) -> None:
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError

    def ask(self, number: int) -> int:
        """Raises Failed."""
        raise NotImplementedError


class HttpClient(Client):
    def __init__(self, server: Server, model: str, parameters: Mapping[str, object] | None = None) -> None:
        super().__init__(server, model)
        self._parameters = parameters or {}

    def open(self) -> None:
        host, port = self._server.addresses["http"]
        self._connection = http.client.HTTPConnection(host, port, timeout=PATIENCE)

    def close(self) -> None:
        self._connection.close()

    def ask(self, number: int) -> int:
        given = {"name": "IN", "shape": [1, 1], "datatype": "INT32", "data": [number]}
        body = json.dumps({"inputs": [given], "parameters": self._parameters})
        try:
            self._connection.request("POST", f"/v2/models/{self.model}/infer", body)
            response = self._connection.getresponse()
            text = response.read()
        except (OSError, http.client.HTTPException) as error:
            if isinstance(error, TimeoutError):
                raise AssertionError("no answer") from None
            raise Failed(repr(error)) from None
        if response.status in (500, 503):
            raise Failed(f"{response.status} {text.decode()}")
        assert response.status == 200, text
        return int(json.loads(text)["outputs"][0]["data"][0])


class Http2Client(Client):
    def open(self) -> None:
        self._client = httpx.Client(http1=False, http2=True, trust_env=False, timeout=PATIENCE)
        self._url = f"http://{address_text(self._server.addresses['http'])}/v2/models/{self.model}/infer"

    def close(self) -> None:
        self._client.close()

    def ask(self, number: int) -> int:
        given = {"name": "IN", "shape": [1, 1], "datatype": "INT32", "data": [number]}
        try:
            response = self._client.post(self._url, json={"inputs": [given]})
        except httpx.TimeoutException:
            raise AssertionError("no answer") from None
        except httpx.HTTPError as error:
            raise Failed(repr(error)) from None
        if response.status_code in (500, 503):
            raise Failed(f"{response.status_code} {response.text}")
        assert response.status_code == 200, response.text
        return int(response.json()["outputs"][0]["data"][0])


class SequenceClient(HttpClient):
    """Each of its sequences is one request long."""

    def __init__(self, server: Server, model: str) -> None:
        super().__init__(server, model, {"sequence_id": id(self), "sequence_start": True, "sequence_end": True})


class GrpcClient(Client):
    def open(self) -> None:
        self._client = tritonclient.grpc.InferenceServerClient(
            address_text(self._server.addresses["grpc"]), channel_args=[("grpc.use_local_subchannel_pool", 1)]
        )

    def close(self) -> None:
        self._client.close()

    def ask(self, number: int) -> int:
        try:
            result = self._client.infer(self.model, [_input(number)], client_timeout=PATIENCE)
        except InferenceServerException as error:
            raise _failed(error) from None
        return int(result.as_numpy("OUT")[0, 0])


class StreamClient(GrpcClient):
    def open(self) -> None:
        super().open()
        self._answers: Queue[tuple[Any, Any]] = Queue()
        self._client.start_stream(lambda result, error: self._answers.put((result, error)))

    def close(self) -> None:
        requests = self._client._stream._request_queue
        self._client.stop_stream(cancel_requests=True)
        requests.put(None)  # else a thread of gRPC waits for the next one for ever
        super().close()

    def ask(self, number: int) -> int:
        try:
            self._client.async_stream_infer(self.model, [_input(number)])
            result, error = self._answers.get(timeout=PATIENCE)
        except InferenceServerException as failure:
            raise _failed(failure) from None
        except Empty:
            raise AssertionError("no answer") from None
        if error is not None:
            raise _failed(error)
        return int(result.as_numpy("OUT")[0, 0])


def _input(number: int) -> tritonclient.grpc.InferInput:
    given = tritonclient.grpc.InferInput("IN", [1, 1], "INT32")
    given.set_data_from_numpy(np.array([[number]], np.int32))
    return given


def _failed(error: InferenceServerException) -> Exception:
    text = str(error)
    assert "DEADLINE_EXCEEDED" not in text, "no answer"
    return Failed(text)


Clients: TypeAlias = tuple[tuple[Callable[[Server, str], Client], str], ...]
CLIENTS: Clients = (
    (HttpClient, "worker"),
    (HttpClient, "direct"),
    (HttpClient, "in_loop"),
    (HttpClient, "in_thread"),
    (HttpClient, "in_thread"),
    (HttpClient, "timed"),
    (HttpClient, "limited"),
    (HttpClient, "cached"),
    (HttpClient, "pipeline"),
    (SequenceClient, "sequences"),
    (SequenceClient, "sequences"),
    (Http2Client, "worker"),
    (Http2Client, "in_loop"),
    (GrpcClient, "worker"),
    (GrpcClient, "in_loop"),
    (StreamClient, "worker"),
    (StreamClient, "in_loop"),
    (StreamClient, "stream"),
)


# Of the servers that have not all models.
FEW_CLIENTS: Mapping[str, Clients] = {
    "tight": tuple((kind, model) for kind in (HttpClient, Http2Client, GrpcClient) for model in TIGHT),
    "reloading": tuple((kind, "in_loop") for kind in (HttpClient, Http2Client, GrpcClient, StreamClient)),
}


class Load:
    """All clients, each in a thread."""

    def __init__(self, server: Server, clients: Clients = CLIENTS) -> None:
        self.clients = [kind(server, model) for kind, model in clients]
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=client.run, args=(self._stop,)) for client in self.clients]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(PATIENCE * 2)
        assert not any(thread.is_alive() for thread in self._threads)

    def wait_served(self, times: int, clients: Sequence[Client] | None = None) -> None:
        """Until each has had so many good answers more."""
        clients = self.clients if clients is None else clients
        wanted = {client: client.good + times for client in clients}
        wait_until(
            lambda: all(client.good >= good or client.wrong for client, good in wanted.items()),
            lambda: (
                f"not served: {[(type(c).__name__, c.model, c.failures[-3:]) for c in clients if c.good < wanted[c]]}"
            ),
        )
        self.check()

    def check(self) -> None:
        assert [client.wrong for client in self.clients if client.wrong] == []

    @property
    def failures(self) -> list[str]:
        return [f"{c}: {text}" for c in self.clients for text in c.failures]


def wait_until(is_so: Callable[[], bool], problem: Callable[[], str]) -> None:
    end = time.monotonic() + PATIENCE
    while not is_so():
        assert time.monotonic() < end, problem()
        time.sleep(0.01)


# What is made to fail.


@dataclass(frozen=True)
class Site:
    """A function that raises, where that is counted (one of these places), and how many requests each time may cost.
    Behind what it does a defect leaves more undone than before, and may cost `costs_behind` instead."""

    function: str
    counted_at: str = ""
    costs: int = 1
    kind: str = "plain"  # of the server
    trigger: Callable[[Path, Running], None] = lambda directory, server: None
    costs_behind: int = 0  # not fewer than `costs`, nor than one

    def __str__(self) -> str:
        return self.function.rpartition(":")[2]


_REST = "protocol.http.http1.fast_path:FastPath."
_SCHEDULER = "actors.scheduling.scheduler:Scheduler."
_DYNAMIC = "actors.scheduling.batching.dynamic:DynamicBatchingPolicy."
_SEQUENCES = "actors.scheduling.sequence.policy:SequencePolicy."


def _change(directory: Path, server: Running) -> None:
    with (directory / "models" / "in_loop" / "config.pbtxt").open("a") as file:
        file.write("\n")


def _scrape(directory: Path, server: Running) -> None:
    url = f"http://{address_text(server.server.addresses['metrics'])}/metrics"
    assert httpx.get(url, timeout=PATIENCE).status_code in (200, 500)


_RESIDENCE = "actors.lifecycle.residence:Residence."
# Requests of one model that may be in one batch, or wait for one; and sequences, which are all of one model.
_BATCH = 6
SITES = (
    # Calls of the poller.
    Site(_REST + "_read", "poller"),
    Site(_REST + "_begin", "poller"),
    Site("protocol.http.direct_infer:DirectInference.begin", "poller connection"),  # of HTTP/1, and of HTTP/2
    Site("protocol.http2.reader:Http2Reader._on_readable", "poller"),
    Site("protocol.http2.reader:Http2Reader.take", "poller"),
    Site("protocol.http2.output:FrameOutput.end_burst", "poller"),
    Site("protocol.grpc.connection.calls:Calls.on_request", "connection"),
    Site("protocol.grpc.connection.calls:Calls.on_data", "connection"),
    Site("protocol.grpc.connection.direct_calls:DirectCalls.begin", "connection"),
    Site("protocol.http2.connection:ServerConnection.receive_data", "poller"),
    Site("backends.python.wire.channel:Channel._read", "worker", _BATCH),
    # What it calls at the end of a burst.
    Site("actors.core.server_core:ServerCore.flush", "", 0),
    Site("actors.model.model:Model.flush", "scheduler", 0),
    # Requests, on their way to their schedulers.
    Site("actors.model.model:Model.submit"),  # an ensemble answers for its steps
    Site("actors.ensemble.ensemble:Ensemble.submit", "request"),
    Site("actors.model.deferred:DeferredRequests.submit", "request"),
    # Deliveries of answers.
    Site(_REST + "answer", "delivery"),
    Site(_REST + "_send", "delivery"),
    Site("protocol.http.direct_infer:DirectInference.reply", "delivery"),
    Site("protocol.http.direct_infer:DirectInference.close", "delivery"),
    Site("protocol.grpc.connection.direct_calls:DirectCalls.answer", "delivery"),
    Site("protocol.grpc.connection.outgoing:Outgoing.send_response", "delivery"),
    Site("protocol.grpc.inference.stream_infer:StreamInfer.take", "delivery"),
    # Schedulers and their policies.
    Site(_SCHEDULER + "_submit", "scheduler"),
    Site(_SCHEDULER + "_flush", "scheduler", 0),
    Site(_SCHEDULER + "_assign", "scheduler", 0),
    Site(_SCHEDULER + "_hand_over", "scheduler", _BATCH),
    Site(_SCHEDULER + "_finish", "scheduler", _BATCH),
    Site(_SCHEDULER + "_count", "scheduler", 0),
    Site("actors.scheduling.batching.policy:DirectPolicy.add", "scheduler"),
    Site("actors.scheduling.batching.policy:DirectPolicy.next_batch", "scheduler", 0),
    Site(_DYNAMIC + "add", "scheduler"),
    Site(_DYNAMIC + "next_batch", "scheduler", 0),
    Site(_DYNAMIC + "_ready", "scheduler", 0),
    Site(_DYNAMIC + "_removed", "scheduler", 0),
    Site(_DYNAMIC + "take_expired", "scheduler", 0),
    Site(_DYNAMIC + "wake_at", "scheduler", 0),
    Site("actors.scheduling.ordered_replies:OrderedReplies.expect", "scheduler"),
    Site("actors.scheduling.ordered_replies:OrderedReplies.answer", "scheduler", _BATCH),
    Site("actors.metrics.statistics:VersionStatistics.count_batch", "scheduler", 0),
    Site(_SEQUENCES + "add", "scheduler"),
    Site(_SEQUENCES + "next_batch", "scheduler", _BATCH),
    Site(_SEQUENCES + "finish", "scheduler", _BATCH),
    Site(_SEQUENCES + "take_expired", "scheduler", _BATCH),
    Site(_SEQUENCES + "wake_at", "scheduler", _BATCH),
    Site("actors.scheduling.sequence.tensors:SequenceTensors.dressed", "scheduler", _BATCH),
    Site("actors.scheduling.sequence.tensors:SequenceTensors.undressed", "scheduler", _BATCH),
    Site("actors.instance.rate_limit_policy:RateLimitPolicy.ask", "instance"),
    Site("actors.instance.rate_limit_policy:RateLimitPolicy.grant", "", 0),
    Site("actors.instance.rate_limit_policy:RateLimitPolicy.release", "instance"),
    Site("actors.cache.response_cache:ResponseCache.look_up", "request"),
    Site("actors.cache.local:LocalCache.look_up", "", 0),
    Site("actors.ensemble.state:EnsembleState.complete"),
    # Instances and backends.
    Site("actors.instance.slot:BatchSlot.send_nowait", "scheduler", _BATCH),
    Site("actors.instance.runner:BatchRunner.begin", "scheduler", _BATCH),
    Site("backends.python.backend:PythonBackend.begin", "backend", _BATCH),
    Site("backends.python.in_loop.loop_batches:LoopBatches._compute", "backend", _BATCH),
    # Counted where no task waits for the batch. Behind them the worker answers what nobody has asked for then, which
    # costs what else it has, too.
    Site("backends.python.batches.batches:Batches._send", "", _BATCH, costs_behind=2 * _BATCH),
    Site("backends.python.wire.channel:Channel.give", "", _BATCH, costs_behind=2 * _BATCH),
    Site("backends.python.batches.batch_answers:BatchAnswers._executed", "worker", _BATCH),
    Site("backends.python.wire.frames:FrameReader.next_frame", "worker", _BATCH),
    Site("backends.python.batches.open_batches:OpenBatches.close", "", _BATCH),
    # Timers.
    Site("protocol.http.http1.connection:Http1.check_time", "timer"),
    # REST over HTTP/2.
    Site("protocol.http.http2.streams:Http2Streams.on_request", "connection"),
    Site("protocol.http.http2.streams:Http2Streams.on_data", "connection"),
    Site("protocol.http.http2.streams:Http2Streams._submit", "connection"),
    Site("protocol.http.http2.streams:Http2Streams.answer", "delivery"),
    Site("protocol.http.http2.output:HttpOutput.send_reply_at_once", "delivery"),
    # What looks at files.
    Site("protocol.access.keys_file:KeysFile.look", "background", 0, "watched"),
    Site("actors.lifecycle.watcher:RepositoryWatcher._poll", "background", 0, "watched"),
    Site("actors.lifecycle.poll_policy:PollPolicy.look", "background", 0, "watched"),
    Site("actors.lifecycle.control:ModelControl.needs", "background", 0, "watched", _change),
    Site("actors.lifecycle.control:ModelControl.load", "background", 0, "watched", _change),
    Site("actors.lifecycle.control:ModelControl.failed_for", "background", 0, "watched", _change),
    Site("trioton.reload:Reloader._follow", "background", 0, "reloading"),
    Site("trioton.reload:Reloader._load", "background", 0, "reloading", _change),
    # Traces, metrics, the cache and the rate limiter.
    Site("actors.tracing.tracer:Tracer.sample", "", 1, "watched"),
    Site("actors.tracing.tracer:Tracer._take", "", 1, "watched"),
    Site("actors.tracing.record:RequestTrace.stamp", "", _BATCH, "watched"),
    Site("actors.tracing.record:RequestTrace.end", "", 1, "watched"),
    Site("actors.tracing.files:TraceFiles.write", "", 0, "watched"),
    Site("actors.tracing.export:TraceExport.write", "", 0, "reloading"),
    Site("trioton.metrics.metrics:Metrics.render", "", 0, "plain", _scrape),
    Site("actors.cache.response_cache:VersionCache.infer"),
    Site("actors.cache.response_cache:ResponseCache.insert"),
    Site("actors.cache.local:LocalCache.insert", "", 0),
    Site("actors.instance.rate_limiter:RateLimiter.acquire", "", _BATCH),
    Site("actors.instance.rate_limiter:RateLimiter._grant", "", _BATCH),
    # Models that come and go for want of memory: all that wait for one may be refused.
    Site(_RESIDENCE + "lease", "", 1, "tight"),
    Site(_RESIDENCE + "_serve_line", "scheduler", _BATCH, "tight"),
    Site(_RESIDENCE + "_trim", "scheduler", _BATCH, "tight"),
    Site(_RESIDENCE + "_load", "background", _BATCH, "tight"),
    Site(_RESIDENCE + "_evict", "background", _BATCH, "tight"),
    Site("actors.lifecycle.memory_budget:MemoryBudget.victims", "scheduler", _BATCH, "tight"),
    Site("actors.lifecycle.control:ModelControl.load_resident", "background", _BATCH, "tight"),
    Site("actors.lifecycle.control:ModelControl.evict", "background", _BATCH, "tight"),
)


@pytest.mark.parametrize("is_behind", [False, True], ids=["before", "behind"])
@pytest.mark.parametrize("site", SITES, ids=str)
def test_a_defect_costs_what_it_meets_and_no_more(
    site: Site, is_behind: bool, server: Running, servers: Servers, faults: dict[tuple[str, bool], Fault]
) -> None:
    """Everybody else gets the right answer, and so does everybody afterwards; the metric counts it."""
    times = 1 if is_behind else 2
    server.wait_ready()
    before = server.metric()
    fault = faults[site.function, is_behind]
    fault.fired = 0
    with Load(server.server, FEW_CLIENTS.get(site.kind, CLIENTS)) as load:
        load.wait_served(2)
        assert load.failures == []
        for _ in range(times):
            fault.left += 1
            site.trigger(servers.directory, server)
            wait_until(lambda: not fault.left, lambda: f"{site} is not called")
            server.wait_ready()
            load.wait_served(2)
    load.check()
    server.wait_answered()
    assert fault.fired == times
    most = times * (max(site.costs, site.costs_behind, 1) if is_behind else site.costs)
    assert len(load.failures) <= most, load.failures
    assert server.is_alive
    if site.counted_at and not is_behind:
        places = site.counted_at.split()
        counted = server.metric()
        assert sum(counted.get(place, 0) - before.get(place, 0) for place in places) >= times


@pytest.mark.parametrize("function", [_DYNAMIC + "next_batch", _SCHEDULER + "_submit", _SCHEDULER + "_assign"])
def test_a_model_that_fails_always_is_the_only_one_that_does(
    function: str, server: Running, faults: dict[tuple[str, bool], Fault]
) -> None:
    """Its requests get an error, each of them, and it serves as soon as the defect has gone."""
    server.wait_ready()
    with Load(server.server) as load:
        load.wait_served(1)
        fault = faults[function, False]
        victims = {"worker", "in_loop"}
        fault.matches = lambda owner: getattr(owner, "name", "worker") in victims
        fault.left = 1 << 30
        hit = [client for client in load.clients if client.model in (*victims, "pipeline")]
        if function.startswith(_DYNAMIC):  # a policy does not know its model: all that batch dynamically fail
            hit = [client for client in load.clients if client.model not in ("direct", "sequences", "stream", "cached")]
        failed = {client: len(client.failures) for client in hit}
        wait_until(lambda: all(len(c.failures) > failed[c] + 2 for c in hit), lambda: "no errors")
        load.wait_served(3, [client for client in load.clients if client not in hit])
        fault.left = 0
        fault.matches = lambda owner: True
        server.wait_ready()
        load.wait_served(3)
    assert all(client in hit for client in load.clients if client.failures), load.failures
    assert server.is_alive


@pytest.mark.parametrize("length", [b"0" * 5000, b"9" * 5000])
def test_a_length_of_thousands_of_digits_is_answered_and_costs_nobody_else(length: bytes, server: Running) -> None:
    with Load(server.server) as load:
        load.wait_served(1)
        with socket.create_connection(server.server.addresses["http"], timeout=PATIENCE) as client:
            path = b"/v2/models/worker/infer"
            client.sendall(b"POST " + path + b" HTTP/1.1\r\nHost: x\r\nContent-Length: " + length + b"\r\n\r\n")
            assert client.recv(100).startswith(b"HTTP/1.1 400 ")
        load.wait_served(1)
    assert load.failures == []
