"""What models ask of their server besides inference: metrics, other models' loads, and their own readiness."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from actors.core.server_core import ControlMode, ServerCore
from actors.metrics.custom import MetricValue
from tests.backends.python.bls.test_bls import STRING_OUTPUT
from tests.backends.python.pipelines import PLUS_ONE, Models, add_model, ask, executing, serving, text
from tests.backends.python.processes import until

COUNTING = """
class TritonPythonModel:
    def initialize(self, args):
        self.family = pb_utils.MetricFamily("asked", "how often", pb_utils.MetricFamily.COUNTER)
        self.asked = self.family.Metric(labels={"model": args["model_name"]})
        self.levels = pb_utils.MetricFamily(name="level", description="", kind=pb_utils.MetricFamily.GAUGE)
        self.level = self.levels.Metric()
        self.sizes = pb_utils.MetricFamily("sizes", "", pb_utils.MetricFamily.HISTOGRAM)
        self.size = self.sizes.Metric(buckets=[1, 2.5])

    def execute(self, requests):
        for r in requests:
            self.asked.increment(1)
            self.level.set(given(r)[0])
            self.level.increment(-0.5)
            self.size.observe(len(given(r)))
        return [answer([self.asked.value(), self.level.value()]) for r in requests]
"""


def metrics_of(core: ServerCore) -> dict[tuple[str, str], MetricValue]:
    """By family and the label `model`."""
    return {
        (family.name, value.labels.get("model", "")): value
        for family in core.custom_metrics.values()
        for value in family.values
    }


async def test_metrics_of_every_kind(tmp_path: Path) -> None:
    """Two models share the families, and the values where labels are equal; all instances of one do. What a model has
    counted is there when its answer is."""
    count = "instance_group [ { count: 2 } ]"
    async with serving(tmp_path, {"a": (COUNTING, count), "b": COUNTING}) as core:
        for number in range(1, 5):
            assert (await ask(core, "a", 2.0, 3.0)).tolist() == [number, 1.5]
        assert (await ask(core, "b", math.inf)).tolist() == [1.0, math.inf]
        found = metrics_of(core)
        assert {key: value.value for key, value in found.items()} == {
            ("asked", "a"): 4,
            ("asked", "b"): 1,
            ("level", ""): math.inf,
            ("sizes", ""): 9,
        }
        assert list(found["sizes", ""].cumulative) == [1, 5, 5]
    assert metrics_of(core) == {}


async def test_metrics_end_with_their_objects_and_with_their_process(tmp_path: Path) -> None:
    model = """
class TritonPythonModel:
    def execute(self, requests):
        if given(requests[0])[0] == 0:
            os._exit(3)
        family = pb_utils.MetricFamily("mine", "", pb_utils.MetricFamily.COUNTER)
        metric = family.Metric()
        metric.increment(1)
        if given(requests[0])[0] == 2:
            self.kept = family, metric
        return [answer([metric.value()]) for r in requests]
"""
    async with serving(tmp_path, {"m": model}) as core:
        for _ in range(3):
            assert (await ask(core, "m", 1.0)).tolist() == [1.0]
            await until(lambda: metrics_of(core) == {})
        await ask(core, "m", 2.0)
        assert len(metrics_of(core)) == 1
        with pytest.raises(Exception, match="exited with code 3"):
            await ask(core, "m", 0.0)
        await until(lambda: metrics_of(core) == {})


CANNOT = "TRITONSERVER_METRIC_KIND_{} does not support {}"


@pytest.mark.parametrize(
    ("work", "message"),
    [
        ("c.Metric(labels=[1])", "Failed to create metric. Labels must be a dictionary."),
        ("h.Metric(buckets=3)", "Failed to create metric. Buckets must be a list."),
        ("c.Metric(buckets=[1])", "Failed to create metric. Unexpected buckets found."),
        ("h.Metric()", "Failed to create metric. Missing required buckets."),
        (
            "c.Metric().increment(-1)",
            "Failed to increment metric value: TRITONSERVER_METRIC_KIND_COUNTER can only be incremented monotonically "
            "by non-negative values.",
        ),
        (
            "h.Metric(buckets=[1]).increment(1)",
            "Failed to increment metric value: " + CANNOT.format("HISTOGRAM", "Increment"),
        ),
        ("h.Metric(buckets=[1]).set(1)", "Failed to set metric value: " + CANNOT.format("HISTOGRAM", "Set")),
        ("h.Metric(buckets=[1]).value()", "Failed to get metric value: " + CANNOT.format("HISTOGRAM", "Value")),
        ("c.Metric().set(1)", "Failed to set metric value: " + CANNOT.format("COUNTER", "Set")),
        ("c.Metric().observe(1)", "Failed to observe metric value: " + CANNOT.format("COUNTER", "Observe")),
        ("g.Metric().observe(1)", "Failed to observe metric value: " + CANNOT.format("GAUGE", "Observe")),
        (
            "(pb_utils.MetricFamily('gone', '', pb_utils.MetricFamily.GAUGE).Metric()).set(1)",
            "Invalid metric operation as the corresponding 'MetricFamily' has been deleted. ",
        ),
        (
            "pb_utils.MetricFamily('1', '', KINDS[0])",
            "Error when creating MetricFamily: '1' is no name",
        ),
        (
            "pb_utils.MetricFamily('c', '', KINDS[1])",
            "Error when creating MetricFamily: metric family 'c' exists already",
        ),
        ("h.Metric(buckets=[2, 1])", "Error when creating Metric: the buckets of the metric 'h' must ascend"),
    ],
)
async def test_metrics_that_cannot_be(tmp_path: Path, work: str, message: str) -> None:
    """Triton's texts, as exceptions in the model."""
    model = executing(f"""
        KINDS = [pb_utils.MetricFamily.COUNTER, pb_utils.MetricFamily.GAUGE, pb_utils.MetricFamily.HISTOGRAM]
        c, g, h = (pb_utils.MetricFamily(name, "", kind) for name, kind in zip("cgh", KINDS))
        try:
            {work}
        except pb_utils.TritonModelException as error:
            return [answer(np.array([str(error)], object), "TEXT")]
    """)
    async with serving(tmp_path, {"m": (model, STRING_OUTPUT)}) as core:
        assert text(await ask(core, "m")).startswith(message)


MANAGING = executing("""
    try:
        do = ["load", "unload", "ready"][int(given(requests[0])[0])]
        if do == "load":
            said = pb_utils.load_model("plus")
        elif do == "unload":
            said = pb_utils.unload_model("plus", unload_dependents=True)
        else:
            said = pb_utils.is_model_ready("plus", model_version="1")
    except pb_utils.TritonModelException as error:
        said = error
    return [answer(np.array([str(said)], object), "TEXT")]
""")
LOAD, UNLOAD, READY = 0.0, 1.0, 2.0


async def test_a_model_loads_and_unloads_another(tmp_path: Path) -> None:
    models: Models = {"plus": executing(PLUS_ONE), "manager": (MANAGING, STRING_OUTPUT)}
    async with serving(tmp_path, models, control_mode=ControlMode.EXPLICIT, load_models=["manager"]) as core:
        assert text(await ask(core, "manager", READY)) == "False"
        assert text(await ask(core, "manager", LOAD)) == "None"
        assert text(await ask(core, "manager", READY)) == "True"
        assert (await ask(core, "plus", 1.0)).tolist() == [2.0]
        assert text(await ask(core, "manager", UNLOAD)) == "None"
        assert text(await ask(core, "manager", READY)) == "False"
        (tmp_path / "plus" / "1" / "model.py").write_text("raise ValueError('broken')")
        assert text(await ask(core, "manager", LOAD)).startswith("Failed to load model: failed to load 'plus': ")


async def test_only_in_explicit_mode(tmp_path: Path) -> None:
    async with serving(tmp_path, {"plus": executing(PLUS_ONE), "manager": (MANAGING, STRING_OUTPUT)}) as core:
        for do, problem in ((LOAD, "Failed to load model: "), (UNLOAD, "Failed to unload model: ")):
            assert text(await ask(core, "manager", do)) == (
                problem + "explicit model load / unload is not allowed if polling is enabled"
            )
        assert text(await ask(core, "manager", READY)) == "True"


async def test_a_model_loads_what_it_needs_in_initialize(tmp_path: Path) -> None:
    """From files that it brings itself, and with a configuration of its own."""
    add_model(tmp_path, "plus", executing(PLUS_ONE))
    content = (tmp_path / "plus" / "1" / "model.py").read_bytes()
    model = f"""
CONFIG = {{"backend": "python",
          "input": [{{"name": "IN", "data_type": "TYPE_FP32", "dims": [-1]}}],
          "output": [{{"name": "OUT", "data_type": "TYPE_FP32", "dims": [-1]}}]}}

class TritonPythonModel:
    def initialize(self, args):
        pb_utils.load_model("brought", config=json.dumps(CONFIG), files={{"file:1/model.py": {content!r}}})

    def execute(self, requests):
        return [answer(value(call("brought", given(r)).exec())) for r in requests]
"""
    async with serving(tmp_path, {"m": model}, control_mode=ControlMode.EXPLICIT) as core:
        await core.load_model("m")
        assert (await ask(core, "m", 4.0)).tolist() == [5.0]


OPINION = """
class TritonPythonModel:
    def execute(self, requests):
        self.opinion = given(requests[0])[0]
        return [answer(given(r)) for r in requests]

    def is_ready(self):
        if self.opinion == 2:
            raise ValueError("do not ask")
        return [False, True, None, "yes"][int(self.opinion)]

    def initialize(self, args):
        self.opinion = 1
"""


async def test_a_model_says_whether_it_is_ready(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """No, errors and nonsense all mean that it is not; the log says why. It can be asked for inference meanwhile."""
    async with serving(tmp_path, {"m": OPINION, "silent": executing(PLUS_ONE)}) as core:
        assert await core.check_ready()
        for opinion, words in (
            (0.0, "Model 'm_0' is not ready (user-defined check failed)."),
            (2.0, "do not ask"),
            (3.0, "is_ready() must return a boolean value"),
        ):
            caplog.clear()
            await ask(core, "m", opinion)
            assert not await core.check_model_ready("m")
            assert words in caplog.text
            assert not await core.check_ready()
            assert await core.check_model_ready("silent")
        await ask(core, "m", 1.0)
        assert await core.check_model_ready("m")


async def test_a_model_in_execute_can_be_asked(tmp_path: Path) -> None:
    """Also by another model: the caller waits for the answer, the called one for a file."""
    waiting = f"while not os.path.exists({str(tmp_path)!r} + '/go'): time.sleep(0.001)"
    busy = OPINION.replace("return [answer", f"{waiting}\n        return [answer")
    asking = executing(f"""
        thread = threading.Thread(target=lambda: call("busy", [1]).exec())
        thread.start()
        said = pb_utils.is_model_ready("busy")
        open({str(tmp_path)!r} + "/go", "w").close()
        thread.join()
        return [answer([float(said)])]
    """)
    async with serving(tmp_path / "models", {"busy": busy, "asking": asking}) as core:
        assert (await ask(core, "asking")).tolist() == [1.0]
