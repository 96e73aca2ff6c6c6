"""What is not built is refused by name, and no field of the schema is forgotten."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import msgspec
import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from protocol.errors import Unsupported
from protocol.proto import message_class
from repository.json_form import from_json_form
from repository.model_config import ModelConfig
from repository.pbtxt import parse_pbtxt
from repository.unsupported import REFUSED, SUPPORTED, is_given, refuse_unbuilt


def leaves(descriptor: Descriptor, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The path of every field that holds no message with fields of its own; a map counts as its values do."""
    for field in descriptor.fields:
        nested = value_message(field)
        if nested is None or not nested.fields:
            yield (*path, field.name)
        else:
            yield from leaves(nested, (*path, field.name))


def value_message(field: FieldDescriptor) -> Descriptor | None:
    message = field.message_type
    if message is not None and message.GetOptions().map_entry:
        return message.fields_by_name["value"].message_type
    return message


LEAVES = {".".join(path) for path in leaves(cast(Descriptor, message_class("inference.ModelConfig").DESCRIPTOR))}


def test_every_field_is_either_supported_or_refused() -> None:
    refused = {refusal.path for refusal in REFUSED}
    forgotten = {leaf for leaf in LEAVES - SUPPORTED if not any(f"{leaf}.".startswith(f"{path}.") for path in refused)}
    assert not forgotten


def test_the_supported_fields_exist() -> None:
    assert LEAVES | {"parameters"} >= SUPPORTED  # parameters: a map of which one key is refused


def test_a_field_is_in_both_lists_only_if_just_some_of_its_values_are_refused() -> None:
    for refusal in REFUSED:
        if refusal.is_refused is is_given:
            covered = {leaf for leaf in SUPPORTED if f"{leaf}.".startswith(f"{refusal.path}.")}
            assert not covered, refusal.path
        else:
            assert refusal.path in SUPPORTED
            assert refusal.detail


# One configuration per row of the table, and the words that must be in its refusal.
EXAMPLES = {
    "runtime": ('runtime: "other.so"', "runtime other than model.py"),
    "input.allow_ragged_batch": ("input { allow_ragged_batch: true }", ""),
    "input.is_non_linear_format_io": ("input { is_non_linear_format_io: true }", ""),
    "output.is_non_linear_format_io": ("output { is_non_linear_format_io: true }", ""),
    "batch_input": ("batch_input {}", ""),
    "batch_output": ("batch_output {}", ""),
    "optimization.eager_batching": ("optimization { eager_batching: true }", ""),
    "dynamic_batching.priority_levels": ("dynamic_batching { priority_levels: 2 }", ""),
    "dynamic_batching.default_priority_level": ("dynamic_batching { default_priority_level: 1 }", ""),
    "dynamic_batching.priority_queue_policy": ("dynamic_batching { priority_queue_policy { key: 1 } }", ""),
    "dynamic_batching.default_queue_policy.timeout_action": (
        "dynamic_batching { default_queue_policy { timeout_action: DELAY } }",
        "dynamic_batching.default_queue_policy.timeout_action: DELAY",
    ),
    "dynamic_batching.default_queue_policy.default_timeout_microseconds": (
        "dynamic_batching { default_queue_policy { default_timeout_microseconds: 1 } }",
        "",
    ),
    "dynamic_batching.default_queue_policy.allow_timeout_override": (
        "dynamic_batching { default_queue_policy { allow_timeout_override: true } }",
        "",
    ),
    "ensemble_scheduling.step.model_namespace": ('ensemble_scheduling { step {} step { model_namespace: "n" } }', ""),
    "parameters": (
        'parameters { key: "TRITON_BATCH_STRATEGY_PATH" value {} }',
        "parameters['TRITON_BATCH_STRATEGY_PATH']",
    ),
    "model_transaction_policy.decoupled": ("model_transaction_policy { decoupled: true }", ""),
    "model_metrics.metric_control": ("model_metrics { metric_control {} }", ""),
}


@pytest.mark.parametrize("path", [refusal.path for refusal in REFUSED])
def test_each_row_refuses_by_name(path: str) -> None:
    text, words = EXAMPLES[path]
    with pytest.raises(Unsupported) as caught:
        refuse_unbuilt(parse_pbtxt(f'name: "m" {text}', source="test"))
    assert caught.value.message == (
        f"the configuration of model 'm' uses '{words or path}', which this server does not support yet"
    )


def test_all_refused_fields_are_named_at_once() -> None:
    text = (
        'name: "m" parameters { key: "TRITON_BATCH_STRATEGY_PATH" value { } } '
        'output { is_non_linear_format_io: true } runtime: "other.so"'
    )
    named = "'runtime other than model.py', 'output.is_non_linear_format_io', .*TRITON_BATCH_STRATEGY_PATH.*"
    with pytest.raises(Unsupported, match=f"uses {named}, which"):
        refuse_unbuilt(parse_pbtxt(text, source="test"))


def test_what_is_built_passes() -> None:
    refuse_unbuilt(ModelConfig())
    refuse_unbuilt(
        parse_pbtxt(
            """
            name: "m" backend: "onnxruntime" platform: "onnxruntime_onnx" max_batch_size: 8
            version_policy { specific { versions: [ 1, 3 ] } }
            input { name: "IN" data_type: TYPE_FP32 format: FORMAT_NCHW dims: [ 3, -1, -1 ] optional: true }
            output { name: "OUT" data_type: TYPE_FP32 dims: [ 4 ] label_filename: "labels" reshape { shape: [ 2, 2 ] } }
            optimization { graph { level: 1 } priority: PRIORITY_MAX input_pinned_memory { enable: true } cuda {}
              execution_accelerators { gpu_execution_accelerator { name: "cuda" } } gather_kernel_buffer_threshold: 1 }
            dynamic_batching { preferred_batch_size: 4 max_queue_delay_microseconds: 9 preserve_ordering: true
              default_queue_policy { timeout_action: REJECT max_queue_size: 64 } }
            instance_group { name: "g" kind: KIND_GPU count: 2 gpus: 0 }
            default_model_filename: "model.onnx" metric_tags { key: "a" value: "b" }
            cc_model_filenames { key: "7.5" value: "a" }
            parameters { key: "intra_op_thread_count" value { string_value: "2" } }
            model_operations { op_library_filename: "custom.so" }
            model_transaction_policy {} response_cache {} model_repository_agents {} model_metrics {}
            """,
            source="test",
        )
    )


def test_the_printed_form_of_what_is_built_passes_too() -> None:
    """A client that reads the configuration and loads with it must not meet a refusal for fields at their default."""
    given: dict[str, Any] = {"dynamic_batching": {"default_queue_policy": {}}, "instance_group": [{}], "input": [{}]}
    refuse_unbuilt(from_json_form(msgspec.json.encode(given)))
