"""SageMaker's endpoint, called without a socket: every route with every status of its contract."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
import trio
import trio.testing

from protocol.access.control import AccessControl
from protocol.access.restricted import HTTP_API, RestrictedApis
from protocol.core import LoadParameters, ModelIndex, ModelRepository
from protocol.errors import AlreadyExists, Internal, InvalidArgument, NotFound, Overloaded, ServerError, Unavailable
from protocol.http.cloud.hosted_models import UNLOAD_SECONDS
from protocol.http.cloud.sagemaker import SageMaker, SageMakerSettings
from protocol.http.settings import HttpSettings
from protocol.log.access_log import AccessLog, AccessMode, AccessPolicy
from protocol.messages import LATEST_VERSION
from tests.protocol.http.asgi import Answer, call
from tests.protocol.http.fake_core import DEFAULT_PARAMETERS, FakeCore
from tests.protocol.http.fake_services import make_services

BINARY = "application/vnd.sagemaker-triton.binary+json;json-header-size="
VALUES = b"\0\0\x80?" * 4
ROW = {"name": "IN", "datatype": "FP32", "shape": [1, 4]}
JSON = json.dumps({"inputs": [{**ROW, "data": [1, 2, 3, 4]}]}).encode()
BINARY_JSON = json.dumps(
    {
        "inputs": [{**ROW, "parameters": {"binary_data_size": 16}}],
        "outputs": [{"name": "OUT_IN", "parameters": {"binary_data": True}}],
    }
).encode()


@dataclass
class HostingCore(FakeCore):
    """One that loads models: `states` are theirs. A load raises `refusal` if there is one, and a model named `stuck`
    never ends to unload."""

    states: dict[str, str] = field(default_factory=dict)
    registered: dict[str, Mapping[str, str]] = field(default_factory=dict)
    refusal: ServerError | None = None

    async def register_repository(self, repository: ModelRepository) -> None:
        if repository.path in self.registered:
            raise AlreadyExists(f"model repository '{repository.path}' has already been registered")
        self.registered[repository.path] = repository.names

    async def unregister_repository(self, path: str) -> None:
        del self.registered[path]

    async def load_model(self, name: str, parameters: LoadParameters = DEFAULT_PARAMETERS) -> None:
        await trio.sleep(1)
        assert parameters.within_budget
        if self.refusal is not None:
            self.states[name] = "UNAVAILABLE"
            raise self.refusal
        self.states[name] = "READY"

    async def unload_model(self, name: str, *, unload_dependents: bool = False) -> None:
        assert unload_dependents
        if self.states.pop(name, "") == "READY":
            self.states[name] = "UNLOADING"
            if name != "stuck":
                assert self.tasks is not None
                self.tasks.start_soon(self._unload, name)

    async def _unload(self, name: str) -> None:
        await trio.sleep(3)
        del self.states[name]

    async def repository_index(self, *, ready: bool = False) -> Sequence[ModelIndex]:
        return [ModelIndex(name, "1", state) for name, state in self.states.items()]

    def is_model_ready(self, name: str, version: int = LATEST_VERSION) -> bool:
        if name not in self.states:
            raise NotFound(f"Request for unknown model: '{name}' is not found")
        return self.states[name] == "READY"


def make_app(
    core: FakeCore | None = None,
    sagemaker: SageMakerSettings | None = None,
    access: AccessControl | None = None,
    settings: HttpSettings | None = None,
) -> SageMaker:
    sagemaker = sagemaker or SageMakerSettings(default_model="echo")
    return SageMaker(make_services(core, access=access), settings or HttpSettings(), sagemaker)


async def test_ping_tells_of_readiness_or_of_life() -> None:
    core = FakeCore(ready=False)
    assert (await call(make_app(core), "GET", "/ping")).status == 400
    assert (await call(make_app(core, SageMakerSettings(pings_ready=False)), "GET", "/ping")).status == 200
    core.ready = True
    assert (await call(make_app(core), "GET", "/ping")).status == 200
    core.exiting = True
    assert (await call(make_app(core), "GET", "/ping")).status == 400, "not 503: the contract has 200 and 400"


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "/ping", 405),
        ("GET", "/invocations", 405),
        ("PUT", "/models", 400),
        ("POST", "/models/h", 400),
        ("GET", "/models/h/invoke", 400),
        ("GET", "/", 400),
        ("GET", "/v2", 400),
        ("POST", "/v2/models/echo/infer", 400),
        ("POST", "/invocations/echo/infer", 400),
        ("POST", "/invoke/echo", 400),
        ("GET", "/models/", 400),
    ],
)
async def test_other_methods_and_paths(method: str, path: str, status: int) -> None:
    """Those that requests run as inside are not to be had from outside."""
    answer = await call(make_app(), method, path)
    assert answer.status == status
    assert (answer.body == b"") is (status == 400)


async def test_invocations_run_the_default_model() -> None:
    answer = await call(make_app(), "POST", "/invocations", JSON)
    assert (answer.status, answer.headers["content-type"]) == (200, "application/json")
    assert answer.json["model_name"] == "echo"
    assert answer.json["outputs"][0]["data"] == [1.0, 2.0, 3.0, 4.0]


async def test_the_default_model_may_have_any_name() -> None:
    app = make_app(sagemaker=SageMakerSettings(default_model="größe"))
    assert (await call(app, "POST", "/invocations", JSON)).json["model_name"] == "größe"


async def test_without_a_default_model_the_error_names_the_variable() -> None:
    answer = await call(make_app(sagemaker=SageMakerSettings()), "POST", "/invocations", JSON)
    assert answer.status == 404
    assert "'unspecified_SAGEMAKER_TRITON_DEFAULT_MODEL_NAME'" in answer.error


async def test_binary_tensors_are_announced_by_the_media_type() -> None:
    headers = {"content-type": f"{BINARY}{len(BINARY_JSON)}", "accept-encoding": "gzip"}
    answer = await call(make_app(), "POST", "/invocations", BINARY_JSON + VALUES, headers)
    assert answer.status == 200
    assert "inference-header-content-length" not in answer.headers
    assert "content-encoding" not in answer.headers
    start, _, size = answer.headers["content-type"].partition("=")
    assert start + "=" == BINARY
    assert json.loads(answer.body[: int(size)])["outputs"][0]["parameters"] == {"binary_data_size": 16}
    assert answer.body[int(size) :] == VALUES


async def test_a_size_of_0_announces_raw_data() -> None:
    answer = await call(make_app(), "POST", "/invocations", VALUES, {"content-type": f"{BINARY}0"})
    assert answer.status == 200
    assert answer.body.endswith(VALUES)


@pytest.mark.parametrize("size", ["x", "9999999999", "-1", "99", ""])
@pytest.mark.parametrize("before", ["", "x"])
async def test_media_types_that_cannot_be_leave_the_server_serving(before: str, size: str) -> None:
    app, content_type = make_app(), f"{before}{BINARY}{size}"
    answer = await call(app, "POST", "/invocations", b'{"inputs":[]}', {"content-type": content_type})
    assert answer.status == 400
    assert "inference header size" in answer.error or "expect MIME type" in answer.error
    assert (await call(app, "POST", "/invocations", JSON)).status == 200


async def test_what_http_may_take_is_the_limit_here_too() -> None:
    app = make_app(settings=HttpSettings(max_input_size=128, max_body_size=400))
    assert (await call(app, "POST", "/invocations", b" " * 129)).status == 413
    headers = {"content-type": f"{BINARY}100"}
    assert (await call(app, "POST", "/invocations", b" " * 300, headers)).status == 400, "its tensors may be longer"
    assert (await call(app, "POST", "/invocations", b" " * 401, headers)).status == 413


@pytest.mark.parametrize(
    ("failure", "status"),
    [
        (Internal("broken"), 500),
        (Unavailable("later"), 503),
        (InvalidArgument("wrong"), 400),
        (Overloaded("full"), 503),
    ],
)
async def test_errors_of_invocations_have_the_statuses_of_http(failure: ServerError, status: int) -> None:
    app = make_app(FakeCore(failure=failure), SageMakerSettings(default_model="broken"))
    assert (await call(app, "POST", "/invocations", JSON)).status == status


@pytest.mark.parametrize(
    ("inference_type", "content_type"),
    [("generate", "application/json"), ("generate_stream", "text/event-stream; charset=utf-8")],
)
async def test_invocations_may_generate(inference_type: str, content_type: str) -> None:
    app = make_app(sagemaker=SageMakerSettings(default_model="echo", inference_type=inference_type))
    answer = await call(app, "POST", "/invocations", b'{"IN": [1, 2, 3, 4]}')
    assert (answer.status, answer.headers["content-type"]) == (200, content_type)
    assert b'"OUT_IN":[1.0,2.0,3.0,4.0]' in answer.body


# Models that SageMaker loads.


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """With the models `h1` and `h2`."""
    for name in ("h1", "h2"):
        (tmp_path / name / "model" / "1").mkdir(parents=True)
        (tmp_path / name / "model" / "config.pbtxt").touch()
    return tmp_path


@dataclass
class Hosting:
    """A client of an endpoint with many models."""

    core: HostingCore
    app: SageMaker
    root: Path

    async def load(self, model_hash: str, target: str = "", url: str = "") -> Answer:
        body = {"model_name": model_hash, "url": url or str(self.root / model_hash / "model")}
        headers = {"X-Amzn-SageMaker-Target-Model": target} if target else {}
        return await call(self.app, "POST", "/models", json.dumps(body).encode(), headers)

    async def list(self) -> list[dict[str, str]]:
        answer = await call(self.app, "GET", "/models")
        assert answer.status == 200
        return list(answer.json["models"])


@pytest.fixture
def hosting(root: Path, nursery: trio.Nursery) -> Hosting:
    core = HostingCore(tasks=nursery)
    return Hosting(core, make_app(core, SageMakerSettings(root=root)), root)


async def test_a_model_is_loaded_listed_and_unloaded(hosting: Hosting, autojump_clock: trio.testing.MockClock) -> None:
    answer = await hosting.load("h1", "echo")
    assert (answer.status, answer.body) == (200, b"")
    assert hosting.core.registered == {str(hosting.root / "h1"): {"model": "echo"}}
    entry = {"modelName": "h1", "modelUrl": str(hosting.root / "h1")}
    assert await hosting.list() == [entry]
    assert (await call(hosting.app, "GET", "/models/h1")).json == entry
    invoked = await call(hosting.app, "POST", "/models/h1/invoke", JSON)
    assert (invoked.status, invoked.json["model_name"]) == (200, "echo")
    before = trio.current_time()
    answer = await call(hosting.app, "DELETE", "/models/h1")
    assert (answer.status, answer.body) == (200, b"")
    assert trio.current_time() - before >= 3, "it was waited for"
    assert hosting.core.registered == {}
    assert await hosting.list() == []


async def test_models_that_are_not_there(hosting: Hosting) -> None:
    for method, path in (("GET", "/models/h1"), ("DELETE", "/models/h1"), ("POST", "/models/h1/invoke")):
        answer = await call(hosting.app, method, path, JSON if method == "POST" else b"")
        assert (method, answer.status, answer.body) == (method, 404, b"")


async def test_the_header_names_the_model(hosting: Hosting, autojump_clock: trio.testing.MockClock) -> None:
    await hosting.load("h1")
    assert hosting.core.states == {"h1": "READY"}, "without one it is served under its hash"
    answer = await call(hosting.app, "POST", "/models/h1/invoke", JSON, {"X-Amzn-SageMaker-Target-Model": "with space"})
    assert answer.json["model_name"] == "with space"


async def test_what_is_taken_cannot_be_loaded_again(hosting: Hosting, autojump_clock: trio.testing.MockClock) -> None:
    assert (await hosting.load("h1", "echo")).status == 200
    assert (await hosting.load("h1", "echo")).status == 409
    answer = await hosting.load("h2", "other", str(hosting.root / "h1" / "model"))
    assert (answer.status, "already been registered" in answer.error) == (409, True)
    assert [each["modelName"] for each in await hosting.list()] == ["h1"]


async def test_two_loads_at_once(hosting: Hosting, autojump_clock: trio.testing.MockClock) -> None:
    """The second is refused, and the first goes on; a model that is being loaded is not listed."""
    statuses = []

    async def load() -> None:
        statuses.append((await hosting.load("h1", "echo")).status)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(load)
        nursery.start_soon(load)
        await trio.sleep(0.5)
        assert await hosting.list() == []
    assert sorted(statuses) == [200, 409]
    assert len(await hosting.list()) == 1


@pytest.mark.parametrize(
    ("refusal", "status"),
    [
        (InvalidArgument("failed to load 'm': the file is damaged"), 400),
        (Unavailable("exiting"), 400),
        (InvalidArgument("load failed for model 'm': version 1: Internal: CUDA out of memory. Tried to allocate"), 507),
        (InvalidArgument("failed to load 'm', Overloaded: out of memory: it needs 8 bytes of the memory budget"), 507),
        (InvalidArgument("load failed: OSError: [Errno 28] No space left on device"), 507),
    ],
)
async def test_of_a_load_that_fails_nothing_is_left(
    hosting: Hosting, refusal: ServerError, status: int, autojump_clock: trio.testing.MockClock
) -> None:
    hosting.core.refusal = refusal
    answer = await hosting.load("h1", "echo")
    assert (answer.status, answer.error) == (status, refusal.message)
    assert (hosting.core.registered, hosting.core.states) == ({}, {})
    hosting.core.refusal = None
    assert (await hosting.load("h1", "echo")).status == 200


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"", "The document is empty"),
        (b"{}", "Unable to parse 'model_name': expected a string"),
        (b'{"model_name": "h1"}', "Unable to parse 'url': expected a string"),
        (b'{"model_name": "h1", "url": 3}', "Unable to parse 'url': expected a string that is not empty, got 3"),
        (b'{"model_name": "h1", "url": "/etc"}', "expected a path of the form"),
        (b'{"model_name": "h1", "url": "/dev/shm"}', "paths under /dev, /proc and /sys are not allowed"),
    ],
)
async def test_loads_that_cannot_be_read(hosting: Hosting, body: bytes, text: str) -> None:
    answer = await call(hosting.app, "POST", "/models", body)
    assert (answer.status, text in answer.error) == (400, True)


@pytest.mark.parametrize(
    ("failure", "status"),
    [(Internal("broken"), 400), (Unavailable("later"), 400), (Internal("failed to allocate memory"), 507)],
)
async def test_errors_of_invoke(
    hosting: Hosting, failure: ServerError, status: int, autojump_clock: trio.testing.MockClock
) -> None:
    hosting.core.failure = failure
    await hosting.load("h1", "broken")
    answer = await call(hosting.app, "POST", "/models/h1/invoke", JSON)
    assert (answer.status, answer.error) == (status, failure.message)


async def test_models_with_any_number_of_responses_are_refused(
    hosting: Hosting, autojump_clock: trio.testing.MockClock
) -> None:
    await hosting.load("h1", "many")
    answer = await call(hosting.app, "POST", "/models/h1/invoke", JSON)
    assert (answer.status, "decoupled" in answer.error) == (400, True)


async def test_an_unload_waits_no_longer_than_sagemaker(
    hosting: Hosting, autojump_clock: trio.testing.MockClock
) -> None:
    await hosting.load("h1", "stuck")
    before = trio.current_time()
    answer = await call(hosting.app, "DELETE", "/models/h1")
    assert (answer.status, "is not unloaded after 350 seconds" in answer.error) == (400, True)
    assert trio.current_time() - before == pytest.approx(UNLOAD_SECONDS, abs=1)


async def test_restrictions_of_http_hold() -> None:
    restricted = RestrictedApis.parse(["model-repository:admin=a", "inference:key=b"], HTTP_API)
    app = make_app(access=AccessControl(restricted))
    for method, path in (
        ("GET", "/models"),
        ("POST", "/models"),
        ("GET", "/models/h"),
        ("DELETE", "/models/h"),
        ("POST", "/invocations"),
        ("POST", "/models/h/invoke"),
    ):
        answer = await call(app, method, path, JSON if method == "POST" else b"")
        assert (path, answer.status) == (path, 403)
        assert answer.error.startswith("This API is restricted, expecting header '")
    assert (await call(app, "POST", "/invocations", JSON, {"key": "b"})).status == 200
    assert (await call(app, "GET", "/models", b"", {"admin": "a"})).status == 200
    assert (await call(app, "GET", "/ping")).status == 200


async def test_the_access_log_has_the_paths_that_were_asked_for() -> None:
    lines: list[bytes] = []
    log = AccessLog(AccessPolicy(AccessMode.ALL), lines.append)
    services = replace(make_services(), access_log=log)
    app = SageMaker(services, HttpSettings(), SageMakerSettings(default_model="echo"))
    await call(app, "POST", "/invocations", JSON)
    await call(app, "GET", "/nowhere")
    told = [json.loads(line) for line in lines]
    assert [(line["path"], line["status"]) for line in told] == [("/invocations", 200), ("/nowhere", 400)]
    assert told[0]["model"] == "echo"
