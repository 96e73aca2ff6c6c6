"""What a model asks of its server, in each isolation mode: other models, and metrics. The server is played."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import numpy as np
import pytest

from backends.interface import InstanceSpec, ModelSource
from backends.python import PythonBackend
from backends.services import BackendServices, CustomMetric, CustomMetricFamily, Execution, MetricKind, ModelNotReady
from protocol.core import LoadParameters, Respond
from protocol.messages import InferenceRequest, InferenceResponse, Tensor
from tests.backends.python.models import CONFIG, infer, output, parameters, request, running, write_model

MODES = ("process", "threads", "fork", "in_process")

IMPORTS = """
import asyncio, threading
import numpy as np
import triton_python_backend_utils as pb_utils
import c_python_backend_utils

def answer(text):
    return pb_utils.InferenceResponse([pb_utils.Tensor("OUT", np.array([text], object))])

def calling(request, model, **options):
    return pb_utils.InferenceRequest(
        model_name=model, inputs=request.inputs(), requested_output_names=["OUT"], trace=request.trace(), **options
    )

def read(response):
    return response.error().message() if response.has_error() else str(response.output_tensors()[0].as_numpy().sum())
"""


@dataclass(eq=False)
class Metric(CustomMetric):
    done: list[tuple[str, float]] = field(default_factory=list)

    def increment(self, value: float) -> None:
        self.done.append(("increment", value))

    def set(self, value: float) -> None:
        self.done.append(("set", value))

    def observe(self, value: float, count: int = 1) -> None:
        self.done.append(("observe", value))

    def value(self) -> float:
        return sum(value for _, value in self.done)

    def close(self) -> None:
        self.done.append(("close", 0))


@dataclass(eq=False)
class Family(CustomMetricFamily):
    kind: MetricKind
    metrics: list[Metric] = field(default_factory=list)
    given: list[object] = field(default_factory=list)

    def metric(self, labels: Mapping[str, str], buckets: Sequence[float]) -> CustomMetric:
        self.given.append((dict(labels), list(buckets)))
        self.metrics.append(Metric())
        return self.metrics[-1]

    def close(self) -> None:
        self.given.append("close")


@dataclass(eq=False)
class Server:
    """Other models double their input; `stream` gives the doubled input twice."""

    families: dict[str, Family] = field(default_factory=dict)
    asked: list[object] = field(default_factory=list)

    def family(self, name: str, description: str, kind: MetricKind, *, is_own: bool = False) -> CustomMetricFamily:
        return self.families.setdefault(name, Family(kind))

    async def infer(self, request: InferenceRequest, caller: Execution | None = None) -> InferenceResponse:
        if request.model_name == "absent":
            raise ModelNotReady("no")
        self.asked.append((request.model_name, request.sequence_id, None if caller is None else caller.instance_name))
        return InferenceResponse("x", 1, [Tensor.from_numpy("OUT", request.inputs[0].as_numpy() * 2)])

    async def infer_stream(self, request: InferenceRequest, respond: Respond, caller: Execution | None = None) -> bool:
        for is_final in (False, True):
            response = await self.infer(request, caller)
            response.is_final = is_final
            await respond(response)
        return True

    def is_decoupled(self, name: str, version: int) -> bool:
        return name == "stream"

    async def is_model_ready(self, name: str, version: int) -> bool:
        return name != "absent"

    async def load_model(self, name: str, parameters: LoadParameters, *, loading: str = "") -> None:
        self.asked.append(("load", name, parameters.config, parameters.files))

    async def unload_model(self, name: str, *, unload_dependents: bool = False, loading: str = "") -> None:
        self.asked.append(("unload", name, unload_dependents))


def made(directory: Path, body: str, mode: str, server: Server) -> ModelSource:
    write_model(directory, IMPORTS + body)
    config = msgspec.structs.replace(CONFIG, parameters=parameters(ISOLATION=mode))
    services = BackendServices(server, server)
    return ModelSource("m", 1, directory, config, {"allow-in-process": "true"}, services)


async def answered(source: ModelSource, count: int = 1) -> list[list[str]]:
    """What each of several instances answers."""
    found = []
    for number in range(count):
        async with running(PythonBackend(InstanceSpec(source, f"m_{number}"))) as instance:
            responses = await infer(instance, request())
            found.append([text.decode() for text in output(responses[0]).tolist()])
    return found


@pytest.mark.parametrize("mode", MODES)
async def test_names_may_be_elements_of_a_bytes_tensor(tmp_path: Path, mode: str) -> None:
    """NVIDIA's example of a call names the model so; each name crosses to the server as text."""
    body = """
class TritonPythonModel:
    def execute(self, requests):
        model, output, family = pb_utils.Tensor("NAMES", np.array([b"double", b"OUT", b"seen"], object)).as_numpy()
        called = pb_utils.InferenceRequest(
            model_name=model, inputs=requests[0].inputs(), requested_output_names=[output], request_id=np.bytes_(b"7"),
            model_version=np.int64(1),
        )
        response = called.exec()
        family = pb_utils.MetricFamily(family, b"text", pb_utils.MetricFamily.GAUGE)
        family.Metric({"a": "b"}).set(np.float32(2))
        pb_utils.Logger.log_info(model)
        text = read(response) + " " + str(pb_utils.is_model_ready(np.bytes_(b"absent")))
        response = pb_utils.InferenceResponse([pb_utils.Tensor(output, np.array([text], object))])
        return [response]
"""
    server = Server()
    source = made(tmp_path, body, mode, server)
    assert await answered(source) == [["6.0 False"]]
    assert server.asked == [("double", 0, "m_0")]
    assert server.families["seen"].metrics[0].done[0] == ("set", 2.0)


@pytest.mark.parametrize("mode", MODES)
async def test_other_models_are_called(tmp_path: Path, mode: str) -> None:
    """From `execute`, and from a thread that the model has started."""
    body = """
class TritonPythonModel:
    def execute(self, requests):
        [request] = requests
        texts = [read(calling(request, "double", correlation_id=7).exec())]
        texts += [read(each) for each in calling(request, "stream").exec(decoupled=True)]
        texts += [read(calling(request, "stream").exec()), read(calling(request, "absent").exec())]
        def work():
            texts.append(read(calling(request, "double").exec()))
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        return [answer(chr(10).join(texts))]
"""
    server = Server()
    [[text]] = await answered(made(tmp_path, body, mode, server))
    *sums, decoupled, absent, threaded = text.split("\n")
    assert (sums, threaded) == (["6.0"] * 3, "6.0")
    assert decoupled.startswith("Model stream - Error when running inference: Model stream is using the decoupled.")
    assert absent.endswith("Failed for execute the inference request. Model 'absent' is not ready.")
    assert server.asked == [("double", 7, "m_0"), ("stream", 0, "m_0"), ("stream", 0, "m_0"), ("double", 0, "m_0")]


@pytest.mark.parametrize("mode", MODES)
async def test_other_models_are_called_by_coroutines(tmp_path: Path, mode: str) -> None:
    body = """
class TritonPythonModel:
    async def execute(self, requests):
        [request] = requests
        found = await asyncio.gather(*[calling(request, "double").async_exec() for _ in range(3)])
        stream = await calling(request, "stream").async_exec(decoupled=True)
        found += [each async for each in stream]
        return [answer(" ".join(map(read, found)))]
"""
    assert await answered(made(tmp_path, body, mode, Server())) == [["6.0 6.0 6.0 6.0 6.0"]]


@pytest.mark.parametrize("mode", MODES)
async def test_models_are_loaded_and_looked_at(tmp_path: Path, mode: str) -> None:
    body = """
class TritonPythonModel:
    def execute(self, requests):
        pb_utils.load_model("a", "{}", {"file:1/x": b"12"})
        pb_utils.unload_model("a", unload_dependents=True)
        return [answer(str([pb_utils.is_model_ready("a"), pb_utils.is_model_ready("absent", "2")]))]
"""
    server = Server()
    assert await answered(made(tmp_path, body, mode, server)) == [["[True, False]"]]
    assert server.asked == [("load", "a", "{}", {"1/x": b"12"}), ("unload", "a", True)]


@pytest.mark.parametrize("mode", MODES)
async def test_metrics_of_a_models_own(tmp_path: Path, mode: str) -> None:
    """Made by the instance that first executes, and changed by threads too."""
    body = """
class TritonPythonModel:
    def execute(self, requests):
        self.counter = pb_utils.MetricFamily("count", "text", pb_utils.MetricFamily.COUNTER)
        self.metric = self.counter.Metric(labels={"a": "b"})
        self.metric.increment(2)
        thread = threading.Thread(target=self.metric.increment, args=(3,))
        thread.start()
        thread.join()
        gauge = pb_utils.MetricFamily("gauge", "text", pb_utils.MetricFamily.GAUGE)
        gauge.Metric().set(0.5)
        histogram = pb_utils.MetricFamily("histogram", "text", c_python_backend_utils.MetricKind.HISTOGRAM)
        histogram.Metric(buckets=[1.0, 2.0]).observe(1.5)
        return [answer(str(self.metric.value()))]
"""
    server = Server()
    assert await answered(made(tmp_path, body, mode, server)) == [["5.0"]]
    count, gauge, histogram = (server.families[name] for name in ("count", "gauge", "histogram"))
    assert [each.kind for each in (count, gauge, histogram)] == ["counter", "gauge", "histogram"]
    assert count.given[0] == ({"a": "b"}, [])
    assert count.metrics[0].done[:2] == [("increment", 2), ("increment", 3)]
    assert gauge.metrics[0].done == [("set", 0.5), ("close", 0)]
    assert histogram.given == [({}, [1.0, 2.0]), "close"]
    assert histogram.metrics[0].done == [("observe", 1.5), ("close", 0)]


@pytest.mark.parametrize("mode", ["threads", "in_process", "in_loop"])
async def test_instances_share_a_metric_of_their_module(tmp_path: Path, mode: str) -> None:
    """It is the instance's that made it, whoever changes it."""
    body = """
family = None
class TritonPythonModel:
    def initialize(self, args):
        global family
        if family is None:
            family = pb_utils.MetricFamily("count", "text", pb_utils.MetricFamily.COUNTER)
        self.metric = family.Metric()
    def execute(self, requests):
        self.metric.increment(1)
        return [answer(str(self.metric.value()))]
"""
    server = Server()
    source = made(tmp_path, body, mode, server)
    first, second = (PythonBackend(InstanceSpec(source, f"m_{number}")) for number in range(2))
    async with running(first), running(second):
        for instance in (first, second):
            [response] = await infer(instance, request(np.zeros((1, 1), np.float32)))
            assert output(response).tolist() == [b"1.0"]
    assert len(server.families["count"].metrics) == 2


async def test_a_preloading_process_has_no_server(tmp_path: Path) -> None:
    body = """
class TritonPythonModel:
    def initialize(self, args):
        pb_utils.Logger.log_info("my words")
        try:
            pb_utils.MetricFamily("count", "text", pb_utils.MetricFamily.COUNTER)
        except pb_utils.TritonModelException as error:
            self.text = str(error)
    def execute(self, requests):
        return [answer(self.text)]
"""
    source = made(tmp_path, body, "fork", Server())
    assert await answered(source) == [["Error when creating MetricFamily: there is no server"]]
