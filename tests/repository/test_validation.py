"""The order of the rules, the rules of a whole configuration, and normalisation."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings

from protocol.datatypes import DataType
from protocol.errors import InvalidArgument, ServerError
from repository.instance_groups import NO_GPUS
from repository.model_config import (
    AllPolicy,
    HistogramOptions,
    InstanceKind,
    LatestPolicy,
    MetricControl,
    MetricIdentifier,
    ModelConfig,
    ModelDynamicBatching,
    ModelEnsembling,
    ModelInput,
    ModelInstanceGroup,
    ModelMetrics,
    ModelOptimizationPolicy,
    ModelOutput,
    ModelResponseCache,
    ModelSequenceBatching,
    ModelTransactionPolicy,
    ModelVersionPolicy,
    PinnedMemoryBuffer,
    StrategyOldest,
)
from repository.validation import normalise, resolve_instances, validate
from tests.repository.strategies import model_configs

GOOD = ModelConfig(
    name="m",
    backend="python",
    max_batch_size=8,
    version_policy=ModelVersionPolicy(latest=LatestPolicy(num_versions=1)),
    input=(ModelInput(name="IN", data_type=DataType.FP32, dims=(-1,)),),
    output=(ModelOutput(name="OUT", data_type=DataType.FP32, dims=(-1,)),),
    instance_group=(ModelInstanceGroup(name="m", kind=InstanceKind.CPU, count=1),),
)

change = msgspec.structs.replace


def normal(config: ModelConfig) -> ModelConfig:
    return normalise(config, gpus=NO_GPUS, backend_default_cpu_count=1, backend_prefers_gpu=False)


def test_a_good_configuration_passes() -> None:
    validate(GOOD)


BROKEN = [
    (change(GOOD, name=""), "model configuration must specify 'name'"),
    (change(GOOD, backend="", platform="x"), "unexpected platform type 'x' for m"),
    (change(GOOD, backend="", platform=""), "unexpected platform type '' for m"),
    (
        change(GOOD, backend="", platform="python"),
        "unexpected platform type 'python' for m; write backend: \"python\"",
    ),
    (
        change(GOOD, platform="ensemble"),
        "Ensemble model 'm' must have platform type 'ensemble' and empty backend type",
    ),
    (
        change(GOOD, backend="onnxruntime", platform="tensorrt_plan"),
        "unexpected 'platform' and 'backend' pair, got:tensorrt_plan, onnxruntime",
    ),
    (
        change(GOOD, backend="", ensemble_scheduling=ModelEnsembling()),
        "ensemble scheduling cannot be set for model 'm' whose platform is not ensemble",
    ),
    (change(GOOD, max_batch_size=-1), "'max_batch_size' must be non-negative value for m"),
    (change(GOOD, version_policy=None), "must specify 'version policy' for m"),
    (
        change(GOOD, dynamic_batching=ModelDynamicBatching(preferred_batch_size=(0,))),
        "dynamic batching preferred size must be positive for m",
    ),
    (
        change(GOOD, ensemble_scheduling=ModelEnsembling()),
        "ensemble scheduling cannot be set for model 'm' whose platform is not ensemble",
    ),
    (
        change(GOOD, response_cache=ModelResponseCache(True), sequence_batching=ModelSequenceBatching()),
        "Response Cache does not currently support model m with sequence batching scheduler. Please disable the "
        "response cache.",
    ),
    (
        change(GOOD, response_cache=ModelResponseCache(True), model_transaction_policy=ModelTransactionPolicy(True)),
        "Response Cache does not currently support model m with 'decoupled' transaction policy. Please disable the "
        "response cache.",
    ),
    (
        change(GOOD, model_metrics=ModelMetrics((MetricControl(),))),
        "metric control must specify 'metric_identifier'",
    ),
    (
        change(GOOD, model_metrics=ModelMetrics((MetricControl(MetricIdentifier()),))),
        "metric identifier must specify non-empty 'family'",
    ),
    (
        change(GOOD, model_metrics=ModelMetrics((MetricControl(MetricIdentifier("f")),))),
        "metric control must specify 'histogram_options'",
    ),
    (
        change(GOOD, model_metrics=ModelMetrics((MetricControl(MetricIdentifier("f"), HistogramOptions()),))),
        "histogram options must specify non-empty 'buckets'",
    ),
    (change(GOOD, input=(ModelInput(),)), "model input must specify 'name' for m"),
    (change(GOOD, instance_group=()), "must specify one or more 'instance group's for m"),
]


@pytest.mark.parametrize(("config", "message"), BROKEN)
def test_broken_rules(config: ModelConfig, message: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        validate(config)
    assert caught.value.message == message


def test_the_earlier_rule_speaks_first() -> None:
    """With everything wrong, mending what is named leads through the rules in Triton's order."""
    config = ModelConfig(
        platform="ensemble",
        backend="onnxruntime",
        max_batch_size=-1,
        dynamic_batching=ModelDynamicBatching(preferred_batch_size=(0,)),
        model_metrics=ModelMetrics((MetricControl(),)),
        input=(ModelInput(),),
    )
    mending: list[tuple[str, dict[str, object]]] = [
        ("'name'", {"name": "m"}),
        ("must have platform type 'ensemble'", {"platform": "tensorrt_plan"}),
        ("'platform' and 'backend' pair", {"platform": "onnxruntime_onnx"}),
        ("'max_batch_size'", {"max_batch_size": 1}),
        ("'version policy'", {"version_policy": GOOD.version_policy}),
        ("dynamic batching", {"dynamic_batching": None}),
        ("metric control", {"model_metrics": None}),
        ("model input", {"input": GOOD.input}),
        ("'instance group's", {"instance_group": GOOD.instance_group}),
    ]
    for words, mend in mending:
        with pytest.raises(InvalidArgument, match=words):
            validate(config)
        config = change(config, **mend)
    validate(config)


def test_before_completion_inputs_and_outputs_are_not_judged() -> None:
    config = change(GOOD, input=(ModelInput(name="IN"),), output=())
    validate(config, complete=False)
    with pytest.raises(InvalidArgument, match="data_type"):
        validate(config)


@settings(deadline=None)
@given(model_configs())
def test_any_configuration_passes_or_is_refused_with_a_reason(config: ModelConfig) -> None:
    for judged in (config, change(config, name="m", backend="python", platform="")):
        try:
            validate(normal(judged))
        except ServerError as exc:
            reason = exc.message
        else:
            reason = "passed"
        assert reason


class TestNormalise:
    def test_writes_the_defaults(self) -> None:
        assert normal(ModelConfig(name="m")) == ModelConfig(
            name="m",
            version_policy=ModelVersionPolicy(latest=LatestPolicy(num_versions=1)),
            optimization=ModelOptimizationPolicy(
                input_pinned_memory=PinnedMemoryBuffer(enable=True),
                output_pinned_memory=PinnedMemoryBuffer(enable=True),
            ),
            instance_group=(ModelInstanceGroup(name="m", kind=InstanceKind.CPU, count=1),),
        )

    def test_leaves_what_is_given(self) -> None:
        given = change(
            GOOD,
            version_policy=ModelVersionPolicy(all=AllPolicy()),
            dynamic_batching=ModelDynamicBatching(preferred_batch_size=(2, 4)),
            optimization=ModelOptimizationPolicy(
                input_pinned_memory=PinnedMemoryBuffer(enable=False),
                output_pinned_memory=PinnedMemoryBuffer(enable=False),
                eager_batching=True,
            ),
        )
        assert normal(given) == given

    def test_an_explicit_latest_policy_of_none_stays(self) -> None:
        given = change(GOOD, version_policy=ModelVersionPolicy(latest=LatestPolicy()))
        assert normal(given).version_policy == given.version_policy

    @pytest.mark.parametrize(("max_batch_size", "preferred"), [(0, ()), (8, (8,))])
    def test_the_preferred_batch_size_is_the_largest(self, max_batch_size: int, preferred: tuple[int, ...]) -> None:
        batching = normal(
            ModelConfig(max_batch_size=max_batch_size, dynamic_batching=ModelDynamicBatching())
        ).dynamic_batching
        assert batching == ModelDynamicBatching(preferred_batch_size=preferred)

    def test_sequence_batching(self) -> None:
        given = ModelConfig(max_batch_size=8, sequence_batching=ModelSequenceBatching(oldest=StrategyOldest()))
        assert normal(given).sequence_batching == ModelSequenceBatching(
            oldest=StrategyOldest(preferred_batch_size=(8,)), max_sequence_idle_microseconds=1_000_000
        )
        kept = ModelSequenceBatching(max_sequence_idle_microseconds=5)
        assert normal(ModelConfig(sequence_batching=kept)).sequence_batching == kept

    def test_an_ensemble_gets_no_instances_and_no_optimization(self) -> None:
        config = normal(ModelConfig(name="m", platform="ensemble"))
        assert (config.instance_group, config.optimization) == ((), None)
        assert config.version_policy is not None

    @settings(deadline=None)
    @given(model_configs())
    def test_doing_it_twice_changes_nothing_more(self, config: ModelConfig) -> None:
        if any(group.kind is InstanceKind.GPU for group in config.instance_group):
            return
        once = normal(config)
        assert normal(once) == once

    def test_its_instance_groups_can_be_placed(self) -> None:
        config = normal(change(GOOD, instance_group=(ModelInstanceGroup(count=3),)))
        assert [placement.name for placement in resolve_instances(config)] == ["m_0_0", "m_0_1", "m_0_2"]
