"""Models that call models, load them and count for themselves, seen by real clients."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tritonclient.utils import InferenceServerException

from tests.backends.python.pipelines import (
    COUNT_DOWN,
    DECOUPLED,
    PLUS_ONE,
    Models,
    add_model,
    executing,
)
from tests.e2e.client import Client, status_of
from tests.e2e.server_process import ServerProcess, eventually
from tests.e2e.test_metrics import scrape
from tests.e2e.test_tracing import entries

# Ends when its client has gone, and says so.
SLOW = """
    while not requests[0].is_cancelled():
        time.sleep(0.001)
    open(os.path.join(os.environ["SEEN"], requests[0].request_id()), "w").close()
    return [answer(given(r)) for r in requests]
"""
COUNTING = """
class TritonPythonModel:
    def initialize(self, args):
        self.asked_family = pb_utils.MetricFamily("pipeline_asked", "Requests so far", pb_utils.MetricFamily.COUNTER)
        self.asked = self.asked_family.Metric(labels={"stage": "first"})
        self.level_family = pb_utils.MetricFamily("pipeline_level", "The last input", pb_utils.MetricFamily.GAUGE)
        self.level = self.level_family.Metric()
        self.size_family = pb_utils.MetricFamily("pipeline_size", "How much", pb_utils.MetricFamily.HISTOGRAM)
        self.size = self.size_family.Metric(buckets=[1, 4])

    def execute(self, requests):
        for r in requests:
            self.asked.increment(1)
            self.level.set(given(r)[0])
            self.size.observe(len(given(r)))
        return [answer(given(r)) for r in requests]
"""
MANAGER = executing("""
    do = int(given(requests[0])[0])
    if do == 1:
        pb_utils.load_model("later")
    elif do == 2:
        pb_utils.unload_model("later")
    return [answer([float(do != 2 and pb_utils.is_model_ready("later"))])]
""")
OPINION = """
class TritonPythonModel:
    def execute(self, requests):
        return [answer(given(r)) for r in requests]

    def is_ready(self):
        return not os.path.exists(os.path.join(os.environ["SEEN"], "not ready"))
"""
MODELS: Models = {
    "plus": executing(PLUS_ONE),
    "down": (executing(COUNT_DOWN), DECOUPLED),
    "slow": executing(SLOW),
    "exec": executing("return [answer(value(call('plus', given(r)).exec())) for r in requests]"),
    "async_exec": """
class TritonPythonModel:
    async def execute(self, requests):
        return await asyncio.gather(*[self.one(r) for r in requests])

    async def one(self, request):
        responses = await asyncio.gather(*[call("plus", given(request) * n).async_exec() for n in range(100)])
        return answer(sum(value(r) for r in responses))
""",
    "stream": executing("""
        def all(request):
            responses = call("down", given(request)).exec(decoupled=True)
            return np.concatenate([value(r) for r in responses if r.output_tensors()])
        return [answer(all(r)) for r in requests]
    """),
    "me": executing("return [answer(value(call('me', given(r)).exec())) for r in requests]"),
    "a": executing("return [answer(value(call('b', given(r)).exec())) for r in requests]"),
    "b": executing("return [answer(value(call('a', given(r)).exec())) for r in requests]"),
    "waiting": executing("""
        return [answer(value(call('slow', given(r), request_id=r.request_id()).exec())) for r in requests]
    """),
    "counting": COUNTING,
    "manager": MANAGER,
    "opinion": OPINION,
}


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where models leave files for the tests, and the other way round."""
    return tmp_path_factory.mktemp("seen")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, seen: Path) -> Iterator[ServerProcess]:
    repository = tmp_path_factory.mktemp("pipelines")
    for name, model in MODELS.items():
        text, config = (model, "") if isinstance(model, str) else model
        add_model(repository, name, text, config)
    add_model(repository, "later", executing(PLUS_ONE))
    flags = [
        "--model-control-mode=explicit",
        *(f"--load-model={name}" for name in MODELS),
        f"--trace-config=triton,file={seen / 'trace.json'}",
        "--trace-config=rate=1",
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SEEN", str(seen))
        process = ServerProcess(*flags, repository=repository)
    with process:
        assert len(process.addresses) == 3
        yield process


@pytest.fixture(scope="module", params=["http", "grpc"])
def client(server: ServerProcess, request: pytest.FixtureRequest) -> Iterator[Client]:
    with Client(request.param, server.addresses[request.param]) as made:
        yield made


@pytest.fixture(scope="module")
def grpc(server: ServerProcess) -> Iterator[Client]:
    with Client("grpc", server.addresses["grpc"]) as made:
        yield made


def ask(client: Client, model: str, *given: float, **more: Any) -> list[float]:
    found: list[float] = client.infer(model, {"IN": np.array(given, np.float32)}, **more)["OUT"].tolist()
    return found


def executions(client: Client, model: str) -> int:
    (statistics,) = client.json("get_inference_statistics", model)["model_stats"]
    return int(statistics["execution_count"])


def test_exec(client: Client) -> None:
    """The called model counts the call as any other."""
    before = executions(client, "plus")
    assert ask(client, "exec", 5, 6) == [6, 7]
    assert executions(client, "plus") == before + 1


def test_many_calls_at_a_time_by_async_exec(client: Client) -> None:
    assert ask(client, "async_exec", 2) == [2 * 4950 + 100]


@pytest.mark.parametrize("count", [1, 100])
def test_a_decoupled_model_is_called(client: Client, count: int) -> None:
    assert ask(client, "stream", count) == list(range(count, 0, -1))


def test_a_model_loads_asks_for_and_unloads_another(client: Client) -> None:
    assert ask(client, "manager", 1) == [1]
    assert ask(client, "later", 1) == [2]
    assert ask(client, "manager", 0) == [1]
    ask(client, "manager", 2)
    assert eventually(lambda: not client.is_ready("later"))


def test_metrics_of_a_model_are_shown(server: ServerProcess, client: Client) -> None:
    before = custom(server).get(("pipeline_asked", "first"), 0)
    for size in (1, 3, 9):
        ask(client, "counting", *range(size, 0, -1))
    text = scrape(server)
    assert "# HELP pipeline_asked Requests so far\n# TYPE pipeline_asked counter\n" in text
    assert "# TYPE pipeline_level gauge\npipeline_level 9.0\n" in text
    assert "# TYPE pipeline_size histogram\n" in text
    found = custom(server)
    assert found["pipeline_asked", "first"] - before == 3
    asked = found["pipeline_asked", "first"]
    assert (found["pipeline_size_bucket", "1.0"], found["pipeline_size_bucket", "4.0"]) == (asked / 3, asked * 2 / 3)
    assert found["pipeline_size_bucket", "+Inf"] == found["pipeline_size_count", ""] == asked


def custom(server: ServerProcess) -> dict[tuple[str, str], float]:
    """Samples of the models' own, by name and their only label."""
    return {
        (sample.name.removesuffix("_total"), next(iter(sample.labels.values()), "")): sample.value
        for family in text_string_to_metric_families(scrape(server))
        for sample in family.samples
        if sample.name.startswith("pipeline_")
    }


@pytest.mark.parametrize(("model", "chain"), [("me", "me → me"), ("a", "b → a → b")])
def test_a_circle_is_refused_and_the_models_go_on(client: Client, model: str, chain: str) -> None:
    for _ in range(2):
        with pytest.raises(InferenceServerException) as caught:
            ask(client, model, 1)
        assert "could never be answered" in caught.value.message()
        assert chain in caught.value.message()
        assert status_of(caught.value) == "INTERNAL"
    assert ask(client, "exec", 1) == [2]


def test_a_client_that_leaves_ends_the_call(grpc: Client, seen: Path) -> None:
    with pytest.raises(InferenceServerException) as caught:
        ask(grpc, "waiting", 1, request_id="left", client_timeout=0.5)
    assert status_of(caught.value) == "DEADLINE_EXCEEDED"
    assert eventually((seen / "left").exists)


def test_a_deadline_ends_the_call(client: Client, seen: Path) -> None:
    """The caller's; the call itself has none."""
    name = f"late {client.protocol}"
    with pytest.raises(InferenceServerException, match=r"timeout of 500000 microseconds"):
        ask(client, "waiting", 1, request_id=name, timeout=500_000)
    assert eventually((seen / name).exists)


def test_a_model_says_whether_it_is_ready(client: Client, seen: Path) -> None:
    assert client.is_ready("opinion")
    assert client.raw.is_server_ready()
    (seen / "not ready").touch()
    try:
        assert not client.is_ready("opinion")
        assert not client.raw.is_server_ready()
        assert client.is_ready("plus")
    finally:
        (seen / "not ready").unlink()
    assert client.is_ready("opinion")


def test_a_call_is_traced_beneath_its_caller(grpc: Client, seen: Path) -> None:
    path = seen / "trace.json"
    grpc.raw.update_trace_settings(model_name="exec", settings={"trace_level": ["TIMESTAMPS"], "trace_count": "1"})
    ask(grpc, "exec", 1, request_id="traced")

    def traces() -> dict[str, Any]:
        return {entry["model_name"]: entry for entry in entries(path) if "model_name" in entry}

    assert eventually(lambda: traces().keys() >= {"exec", "plus"}), json.dumps(entries(path))
    found = traces()
    assert found["plus"]["parent_id"] == found["exec"]["id"]
