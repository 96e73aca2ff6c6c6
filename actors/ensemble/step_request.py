"""Step request: the ordinary inference request that an ensemble makes to the model of one of its steps."""

from __future__ import annotations

from actors.ensemble.clock import StepClock
from actors.ensemble.graph import Node, Plan
from actors.ensemble.sequence import SequenceValues
from protocol.messages import InferenceRequest, Tensor


def step_request(
    asked: InferenceRequest, plan: Plan, node: Node, inputs: list[Tensor], sequence: SequenceValues, clock: StepClock
) -> InferenceRequest:
    """The request of `node` (a step's) for `asked`, the ensemble's; `clock` measures it, and takes its trace."""
    assert node.step is not None
    return InferenceRequest(
        node.step.model_name,
        inputs,
        node.step.model_version,
        asked.id,
        node.requested_outputs,
        asked.parameters,
        sequence.id,
        sequence.is_start,
        sequence.is_end,
        asked.priority,
        asked.timeout_microseconds,
        clock,
        asked.caller,
        asked.has_device_inputs or node.has_device_reads,
        _device_outputs(asked, plan, node) if asked.device_outputs else node.device_outputs,
        charge=asked.charge,
        origin=asked.origin,
    )


def _device_outputs(asked: InferenceRequest, plan: Plan, node: Node) -> frozenset[str]:
    """The outputs of a step that may stay on its device, where some of the response may."""
    results = {port.tensor: port.name in asked.device_outputs for port in plan.outputs}
    return node.device_outputs | {name for name in node.device_results if results[node.outputs[name]]}
