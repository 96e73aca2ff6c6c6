"""Plans behind the whole core of a server, over the stand-ins of TensorRT and cupy."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from protocol.errors import ServerError
from tests.backends.conformance.serving import model_of, serving
from tests.backends.tensorrt.engine_models import add_sub_plan, write_plan
from tests.backends.tensorrt.fake_tensorrt import plan, tensor
from tests.fake_cupy import FakeRuntime

A, B = np.arange(8, dtype=np.float32).reshape(2, 4), np.ones((2, 4), np.float32)
SHAPE = (1, 3, 4, 4)


@pytest.fixture(autouse=True)
def has_gpus(gpu: FakeRuntime, monkeypatch: pytest.MonkeyPatch) -> None:
    gpu.device_count = 2
    monkeypatch.setattr("actors.core.server_core.compute_capabilities", lambda: ("8.6", "9.0"))


async def test_a_plan_needs_no_configuration(gpu: FakeRuntime, tmp_path: Path) -> None:
    write_plan(tmp_path / "m", add_sub_plan((1, 4, 8)))
    async with serving(tmp_path) as core:
        config = core.model_config("m")
        assert (config["platform"], config["backend"], config["max_batch_size"]) == ("tensorrt_plan", "tensorrt", 8)
        assert config["instance_group"][0]["gpus"] == [0, 1]
        found = await model_of(core).infer({"INPUT0": A, "INPUT1": B})
        np.testing.assert_array_equal(found["OUTPUT0"], A + B)
        np.testing.assert_array_equal(found["OUTPUT1"], A - B)
    assert not gpu.allocated


async def test_groups_have_profiles_of_their_own(gpu: FakeRuntime, tmp_path: Path) -> None:
    write_plan(tmp_path / "m", add_sub_plan((1, 1, 4), (1, 2, 4), (1, 4, 4)))
    (tmp_path / "m" / "config.pbtxt").write_text(
        """
        platform: "tensorrt_plan"
        instance_group [ { kind: KIND_GPU gpus: 0 profile: [ "0", "2" ] }, { kind: KIND_GPU gpus: 0 profile: "1" } ]
        """
    )
    async with serving(tmp_path) as core:
        assert core.model_config("m")["max_batch_size"] == 4
        await model_of(core).infer({"INPUT0": A, "INPUT1": B})
        contexts = sys.modules["tensorrt"].seen["contexts"]
        assert sorted(context.profile for context in contexts) == [0, 1, 2]


async def test_requests_with_other_values_of_a_shape_tensor_run_apart(gpu: FakeRuntime, tmp_path: Path) -> None:
    write_plan(
        tmp_path / "m",
        plan(
            "resized",
            tensor("X", (-1, -1), [[1, 1], [2, 2], [8, 8]]),
            tensor("SHAPE", (2,), [[1, 1], [2, 2], [8, 20]], dtype="INT32", shape_tensor=True),
            tensor("Y", (-1, -1), output=True),
            tensor("NEXT", (2,), output=True, dtype="INT64", shape_tensor=True),
        ),
    )
    async with serving(tmp_path) as core:
        metadata = core.model_metadata("m")
        assert [tuple(each.shape) for each in (*metadata.inputs, *metadata.outputs)] == [(-1, -1), (1,), (-1, -1), (1,)]
        for width in (3, 5):
            found = await model_of(core).infer({"X": A, "SHAPE": np.array([width], np.int32)})
            assert found["Y"].shape == (2, width)
            assert found["NEXT"].tolist() == [width + 1]


async def test_states_of_sequences(gpu: FakeRuntime, tmp_path: Path) -> None:
    rows = [[1, 1], [2, 1], [4, 1]]
    inputs = [tensor(name, (-1, 1), rows) for name in ("X", "START", "STATE")]
    write_plan(tmp_path / "m", plan("step", *inputs, *(tensor(name, (-1, 1), output=True) for name in ("Y", "NEXT"))))
    (tmp_path / "m" / "config.pbtxt").write_text(
        """
        platform: "tensorrt_plan" max_batch_size: 4
        sequence_batching {
          control_input { name: "START" control { kind: CONTROL_SEQUENCE_START fp32_false_true: [ 0, 1 ] } }
          state { input_name: "STATE" output_name: "NEXT" data_type: TYPE_FP32 dims: 1 }
        }
        """
    )
    async with serving(tmp_path) as core:
        model, one = model_of(core), np.ones((1, 1), np.float32)
        totals = [
            float(
                (await model.infer({"X": one}, sequence_id=7, sequence_start=at == 0, sequence_end=at == 3))["Y"][0, 0]
            )
            for at in range(4)
        ]
    assert totals == [1, 2, 3, 4]


async def test_formats_of_tensors_other_than_linear_are_refused_by_name(gpu: FakeRuntime, tmp_path: Path) -> None:
    write_plan(
        tmp_path / "m",
        plan("identity", tensor("X", SHAPE, [SHAPE] * 3, format="CHW32"), tensor("Y", SHAPE, output=True)),
    )
    async with serving(tmp_path, load=()) as core:
        with pytest.raises(
            ServerError, match=r"uses 'input\.is_non_linear_format_io', which this server does not support"
        ):
            await core.load_model("m")


CHAIN = """
platform: "ensemble" max_batch_size: 8
input [ { name: "A" data_type: TYPE_FP32 dims: [ 4 ] }, { name: "B" data_type: TYPE_FP32 dims: [ 4 ] } ]
output { name: "OUT" data_type: TYPE_FP32 dims: [ 4 ] }
ensemble_scheduling { step [
  { model_name: "first" model_version: -1 input_map { key: "INPUT0" value: "A" } input_map { key: "INPUT1" value: "B" }
    output_map { key: "OUTPUT0" value: "SUM" } output_map { key: "OUTPUT1" value: "DIFFERENCE" } },
  { model_name: "second" model_version: -1
    input_map { key: "INPUT0" value: "SUM" } input_map { key: "INPUT1" value: "DIFFERENCE" }
    output_map { key: "OUTPUT0" value: "OUT" } }
] }
"""


def write_chain(repository: Path, content: bytes, groups: Mapping[str, str]) -> None:
    """Twice the first input, by two plans one after the other."""
    for name, group in groups.items():
        write_plan(repository / name, content)
        (repository / name / "config.pbtxt").write_text(f"instance_group {{ {group} }}")
    (repository / "e" / "1").mkdir(parents=True)
    (repository / "e" / "config.pbtxt").write_text(CHAIN)


@pytest.mark.parametrize(("second", "copies"), [("0", 0), ("1", 2)])
async def test_between_the_steps_of_an_ensemble_tensors_stay_on_the_gpu(
    gpu: FakeRuntime, tmp_path: Path, second: str, copies: int
) -> None:
    groups = {"first": "kind: KIND_GPU gpus: 0", "second": f"kind: KIND_GPU gpus: {second}"}
    write_chain(tmp_path, add_sub_plan((1, 4, 8)), groups)
    async with serving(tmp_path, load=["e"]) as core:
        found = await model_of(core, "e").infer({"A": A, "B": B})
    np.testing.assert_array_equal(found["OUT"], 2 * A)
    # The two inputs there, one output back, and what lies between from GPU to GPU where they are two.
    assert gpu.copied == [A.nbytes] * (3 + copies)
    assert not gpu.allocated
