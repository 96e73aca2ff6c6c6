"""Every fault of a configuration at once."""

from __future__ import annotations

from hypothesis import given

from protocol.errors import ServerError
from repository.faults import all_faults
from repository.instance_groups import NO_GPUS
from repository.model_config import ModelConfig
from repository.pbtxt import parse_on
from repository.validation import normalise, validate
from tests.repository.strategies import model_configs

FAULTY = """
name: "m" backend: "python" max_batch_size: 2
input [ { name: "A" }, { name: "B" data_type: TYPE_FP32 dims: [ 0 ] }, { name: "C" data_type: TYPE_FP32 dims: [ 1 ] } ]
output { data_type: TYPE_FP32 dims: [ 1 ] }
batch_input { kind: BATCH_ELEMENT_COUNT data_type: TYPE_FP32 target_name: "N" source_input: "Z" }
instance_group [ { kind: KIND_CPU gpus: [ 1 ] }, { kind: KIND_MODEL gpus: [ 1 ] } ]
sequence_batching {
  control_input [ { name: "S" control { kind: CONTROL_SEQUENCE_START } },
                  { name: "E" control { kind: CONTROL_SEQUENCE_END } } ]
  oldest { preferred_batch_size: 3 }
}
response_cache { enable: true }
"""


def normal(config: ModelConfig) -> ModelConfig:
    return normalise(config, gpus=NO_GPUS, backend_default_cpu_count=1, backend_prefers_gpu=False)


def read(text: str) -> tuple[ModelConfig, list[str]]:
    config, faults = parse_on(text, source="f")
    assert config is not None
    return config, [str(fault) for fault in faults]


def test_each_part_is_judged() -> None:
    config, unread = read(FAULTY)
    assert unread == []
    start = "sequence batching must specify either 'int32_false_true', 'fp32_false_true' or 'bool_false_true' for "
    assert [str(fault) for fault in all_faults(normal(config))] == [
        "model input 'A' must specify 'data_type' for m",
        "model input 'B' dimension must be integer >= 1, or -1 to indicate a variable-size dimension for m",
        "model output must specify 'name' for m",
        "unknown source input name 'Z' for m",
        "instance group m_0 of model m has kind KIND_CPU but specifies one or more GPUs",
        "instance group m_1 of model m has kind KIND_MODEL but specifies one or more GPUs",
        "sequence batching preferred batch size must be <= max batch size for m",
        f"{start}CONTROL_SEQUENCE_START for m",
        f"{start}CONTROL_SEQUENCE_END for m",
        "Response Cache does not currently support model m with sequence batching scheduler. Please disable the "
        "response cache.",
    ]


@given(config=model_configs())
def test_there_are_faults_exactly_where_a_server_would_refuse(config: ModelConfig) -> None:
    """And its own text is among them."""
    try:
        config = normal(config)
    except ServerError:
        return
    faults = [fault.message for fault in all_faults(config)]
    try:
        validate(config)
    except ServerError as error:
        first: str | None = error.message
    else:
        first = None
    assert faults == [] if first is None else first in faults
