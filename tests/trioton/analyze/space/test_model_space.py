"""What may be changed about a model, and what the configurations of candidates look like."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import pytest

from protocol.datatypes import DataType
from repository.instance_groups import NO_GPUS
from repository.model_config import (
    InstanceKind,
    ModelConfig,
    ModelDynamicBatching,
    ModelEnsembling,
    ModelInput,
    ModelInstanceGroup,
    ModelOutput,
    ModelParameter,
    ModelSequenceBatching,
    ModelTransactionPolicy,
)
from repository.validation import normalise
from trioton.analyze.search.service_times import service_times
from trioton.analyze.space.facts import Facts
from trioton.analyze.space.model_space import ModelSpace, model_space


def config(**fields: Any) -> ModelConfig:
    made: dict[str, Any] = {
        "name": "m",
        "backend": "onnxruntime",
        "max_batch_size": 8,
        "input": (ModelInput("IN", DataType.FP32, dims=(4,)),),
        "output": (ModelOutput("OUT", DataType.FP32, dims=(4,)),),
        "dynamic_batching": ModelDynamicBatching(preferred_batch_size=(8,)),
        "instance_group": (ModelInstanceGroup(name="m", kind=InstanceKind.CPU, count=1),),
    }
    return ModelConfig(**{**made, **fields})


FACTS = Facts(cores=4, bound=0.02)


def options(space: ModelSpace) -> dict[str, tuple[str, ...]]:
    return {setting.axis.name: setting.axis.options for setting in space.settings}


def test_what_a_batching_model_of_onnxruntime_can_do() -> None:
    assert options(model_space(config(), FACTS)) == {
        "instances": ("1", "2", "3", "4"),
        "batch": ("8", "1", "2", "4", "16", "32"),
        "delay": ("0us", "1200us", "2500us", "5000us"),
        "preferred": ("none", "4"),
        "adaptive": ("off", "on"),
        "threads": ("auto", "1", "2"),
    }


def test_no_batch_is_smaller_than_requests_are() -> None:
    space = model_space(config(), Facts(cores=4, bound=0.02, largest_request=8))
    assert options(space)["batch"] == ("8", "16", "32")


def test_the_default_of_every_axis_is_the_configuration() -> None:
    given = config(
        dynamic_batching=ModelDynamicBatching(max_queue_delay_microseconds=700, preferred_batch_size=(4,)),
        parameters={"intra_op_thread_count": ModelParameter("3")},
        instance_group=(ModelInstanceGroup(kind=InstanceKind.CPU, count=5),),
    )
    space = model_space(given, FACTS)
    defaults = {setting.axis.name: setting.axis.options[0] for setting in space.settings}
    assert defaults["instances"] == "5"
    assert defaults["delay"] == "700us"
    assert defaults["preferred"] == "4"
    assert defaults["threads"] == "3"
    assert space.apply({}, given) == given


@pytest.mark.parametrize(
    ("changes", "missing", "reason"),
    [
        ({"max_batch_size": 0, "dynamic_batching": None}, "batching", "no batch dimension"),
        ({"sequence_batching": ModelSequenceBatching(), "dynamic_batching": None}, "batching", "sequences"),
        ({"backend": "pytorch"}, "threads", "belong to the process"),
        ({"backend": "vllm"}, "instances, batching, backend", "schedules on its own"),
        ({"instance_group": (ModelInstanceGroup(), ModelInstanceGroup())}, "instances", "2 instance groups"),
        ({"model_transaction_policy": ModelTransactionPolicy(decoupled=True)}, "cache", "decoupled"),
        (
            {"platform": "ensemble", "ensemble_scheduling": ModelEnsembling()},
            "instances, batching, backend",
            "ensemble",
        ),
        ({"parameters": {"adaptive_batching": ModelParameter("20000")}}, "adaptive", "on already"),
        ({"backend": "python"}, "in_process, in_loop", "not allowed"),
    ],
)
def test_what_is_left_out_is_told(changes: dict[str, Any], missing: str, reason: str) -> None:
    assert reason in model_space(config(**changes), FACTS).left_out[missing]


def test_what_needs_a_server_that_has_it() -> None:
    facts = Facts(cores=2, bound=0.02, has_cache=True, allows_in_process=True, host_policies=("left", "right"))
    found = options(model_space(config(backend="python"), facts))
    assert found["cache"] == ("off", "on")
    assert found["isolation"] == ("process", "threads", "fork", "in_process", "in_loop")
    assert found["host-policy"] == ("auto", "left", "right")


def test_a_candidate_without_a_delay_has_no_preferred_sizes() -> None:
    space = model_space(config(), FACTS)
    assert not space.is_allowed({"preferred": "4", "delay": "0us", "batch": "8"})
    assert space.is_allowed({"preferred": "4", "delay": "1200us", "batch": "8"})
    assert not space.is_allowed({"preferred": "4", "delay": "1200us", "batch": "2"})
    assert not space.is_allowed({"adaptive": "on", "delay": "1200us", "batch": "8"})


def test_every_candidate_is_a_valid_configuration() -> None:
    """By the rules that a server checks."""
    facts = Facts(cores=2, bound=0.02, has_cache=True, host_policies=("left",), shape_rules='{"batch":{"multiple":1}}')
    for given in (config(), config(dynamic_batching=None), config(backend="python")):
        space = model_space(given, facts)
        axes = [setting.axis for setting in space.settings]
        made = 0
        for picks in itertools.islice(itertools.product(*(axis.options for axis in axes)), 0, None, 37):
            settings = dict(zip((axis.name for axis in axes), picks, strict=True))
            if space.is_allowed(settings):
                normalise(
                    space.apply(settings, given), gpus=NO_GPUS, backend_default_cpu_count=1, backend_prefers_gpu=False
                )
                made += 1
        assert made > 20


def test_what_a_candidate_changes() -> None:
    space = model_space(config(), FACTS)
    made = space.apply({"instances": "3", "batch": "16", "delay": "2500us", "threads": "2"}, config())
    assert made.instance_group[0].count == 3
    assert made.max_batch_size == 16
    assert made.dynamic_batching == ModelDynamicBatching(max_queue_delay_microseconds=2500)
    assert made.parameter("intra_op_thread_count") == "2"


def test_a_configuration_that_leaves_all_to_the_server_gets_what_is_changed() -> None:
    """As the one in a file."""
    space = model_space(config(), FACTS)
    made = space.apply({"instances": "2", "delay": "2500us"}, ModelConfig(backend="onnxruntime"))
    assert made.instance_group == (ModelInstanceGroup(kind=InstanceKind.CPU, count=2),)
    assert made.dynamic_batching == ModelDynamicBatching(max_queue_delay_microseconds=2500)


def test_adaptive_batching_is_told_the_bound() -> None:
    given = config(dynamic_batching=ModelDynamicBatching(max_queue_delay_microseconds=700))
    made = model_space(given, FACTS).apply({"adaptive": "on"}, given)
    assert made.parameter("adaptive_batching") == "20000"
    assert made.dynamic_batching == ModelDynamicBatching()


def test_predictions_and_their_order() -> None:
    times = service_times({1: 0.005, 8: 0.010, 32: 0.03})
    space = model_space(config(), FACTS).axes_space({"": times})
    first = space.first()
    assert first[0].key == ""
    assert len({each.key for each in first}) == len(first)
    assert max(each.predicted or 0 for each in first) == first[1].predicted
    assert (first[1].predicted or 0) > (first[0].predicted or 0) > 0
    assert any("adaptive=on" in each.key for each in first[:8])


def test_neighbours_differ_in_one_setting() -> None:
    space = model_space(config(), FACTS).axes_space({"": service_times({1: 0.005, 8: 0.010})})
    candidate = next(each for each in space.first() if each.key.count("=") == 2)
    here = space.settings[candidate.key]
    near = space.neighbours(candidate)
    assert near
    for other in near:
        there = space.settings[other.key]
        assert sum(here.get(name) != there.get(name) for name in here.keys() | there.keys()) == 1


def test_on_a_gpu_instances_share_the_device() -> None:
    given = config(instance_group=(ModelInstanceGroup(kind=InstanceKind.GPU, count=1, gpus=(0,)),))
    space = model_space(given, FACTS)
    assert options(space)["instances"] == ("1", "2", "3", "4")
    assert "threads" not in options(space)
    setup = space.setup({"instances": "3"}, {"": service_times({1: 0.005})})
    assert setup is not None
    assert setup.contention == 3.0


def test_configurations_are_values() -> None:
    given = config()
    before = msgspec.json.encode(given, enc_hook=str)
    model_space(given, FACTS).apply({"instances": "3", "threads": "1"}, given)
    assert msgspec.json.encode(given, enc_hook=str) == before
