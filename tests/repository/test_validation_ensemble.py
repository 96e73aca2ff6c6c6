"""Rules that an ensemble's own configuration can break."""

from __future__ import annotations

import pytest

from protocol.errors import InvalidArgument
from repository.pbtxt import parse_pbtxt
from repository.validation_ensemble import validate_ensemble


def step(inputs: dict[str, str], outputs: dict[str, str], model: str = "x") -> str:
    maps = [*(("input_map", *item) for item in inputs.items()), *(("output_map", *item) for item in outputs.items())]
    entries = " ".join(f'{field} {{ key: "{key}" value: "{value}" }}' for field, key, value in maps)
    return f'step {{ model_name: "{model}" {entries} }}'


def ensemble(
    *steps: str, inputs: tuple[str, ...] = ("IN",), outputs: tuple[str, ...] = ("OUT",), more: str = ""
) -> str:
    tensors = [
        *(f'input {{ name: "{name}" }}' for name in inputs),
        *(f'output {{ name: "{name}" }}' for name in outputs),
    ]
    return f'name: "e" platform: "ensemble" {" ".join(tensors)} ensemble_scheduling {{ {" ".join(steps)} }} {more}'


def condition(index: int, tensor: str) -> str:
    return f'parameters {{ key: "condition:{index}" value {{ string_value: "{tensor}" }} }} '


PASS_ON = step({"I": "IN"}, {"O": "OUT"})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            'name: "e" platform: "x" ensemble_scheduling {}',
            "ensemble scheduling cannot be set for model 'e' whose platform is not ensemble",
        ),
        (
            'name: "e" platform: "ensemble"',
            "ensemble scheduling must be set for ensemble e whose platform is ensemble",
        ),
        (
            ensemble(PASS_ON, more="instance_group {}"),
            "instance group should not be specified for ensemble 'e'",
        ),
        (ensemble(PASS_ON, more="optimization {}"), "optimization should not be specified for ensemble 'e'"),
        (ensemble(PASS_ON, more="model_warmup {}"), "model_warmup can not be specified for ensemble 'e'"),
        (
            ensemble(PASS_ON, more="batch_output {}"),
            "batch_output has no effect on ensemble 'e' and should not be specified",
        ),
        (ensemble(), "must specify 'step' for ensemble 'e'"),
        (ensemble(step({}, {}, model="")), "must specify 'model_name' in step 0 of ensemble 'e'"),
        (ensemble(PASS_ON, step({}, {"O": "T"})), "must specify 'input_map' in step 1 of ensemble 'e'"),
        (ensemble(step({"I": "IN"}, {})), "must specify 'output_map' in step 0 of ensemble 'e'"),
        (
            ensemble(PASS_ON, PASS_ON),
            "ensemble tensor 'OUT' can appear in an output map only once for ensemble 'e' step 1",
        ),
        (
            ensemble(PASS_ON, inputs=("IN", "MORE")),
            "ensemble input 'MORE' for ensemble e' is not used",
        ),
        (
            ensemble(PASS_ON, outputs=("OUT", "MORE")),
            "ensemble output 'MORE' for ensemble e' is not used",
        ),
        (
            ensemble(step({"I": "IN", "J": "LOST"}, {"O": "OUT"})),
            "output 'OUT' for ensemble 'e' is not written: at least one of its depending tensors, 'LOST', is not "
            "connected",
        ),
        (
            ensemble(step({"I": "IN", "J": "LATE"}, {"O": "T"}), outputs=("LATE",)),
            "output 'LATE' for ensemble 'e' is not written",
        ),
        (
            ensemble(step({"I": "IN", "J": "B"}, {"O": "A"}), step({"I": "A"}, {"O": "B"}), outputs=("B",)),
            "steps of ensemble 'e' wait for each other in a cycle: step 0 ('x') needs 'B' of step 1 ('x'), "
            "step 1 ('x') needs 'A' of step 0 ('x')",
        ),
        (
            ensemble(PASS_ON, step({"I": "IN", "J": "B"}, {"O": "A"}, "y"), step({"I": "A"}, {"O": "B"}, "z")),
            "steps of ensemble 'e' wait for each other in a cycle: step 1 ('y') needs 'B' of step 2 ('z'), "
            "step 2 ('z') needs 'A' of step 1 ('y')",
        ),
        (
            ensemble(step({"I": "IN"}, {"O": "OUT", "P": "SPARE"})),
            "ensemble tensor 'SPARE' is unused in ensemble 'e'",
        ),
        (
            ensemble(step({"I": "IN"}, {"O": "OUT", "P": "IN"})),
            "ensemble tensor 'IN' is an input of ensemble 'e' and cannot be written by step 0",
        ),
        (
            ensemble(PASS_ON, PASS_ON, more=condition(0, "IN")),
            "ensemble tensor 'OUT' can appear in an output map only once for ensemble 'e' step 1, unless the "
            "conditions of the steps that write it exclude each other",
        ),
        (
            ensemble(PASS_ON, more=condition(0, "NONE")),
            "output 'OUT' for ensemble 'e' is not written: at least one of its depending tensors, 'NONE', is not "
            "connected",
        ),
        (
            ensemble(PASS_ON, more=condition(0, "OUT")),
            "step 0 ('x') of ensemble 'e' needs 'OUT', which it writes itself",
        ),
        (
            ensemble(PASS_ON, more='parameters { key: "max_inflight_bytes" value { string_value: "all" } }'),
            "parameter 'max_inflight_bytes' of ensemble 'e' must be a number of bytes (0 for no limit), got 'all'",
        ),
    ],
)
def test_broken_rules(text: str, message: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        validate_ensemble(parse_pbtxt(text, source="test"))
    assert caught.value.message == message


@pytest.mark.parametrize(
    "text",
    [
        'name: "m" platform: "onnxruntime_onnx"',
        ensemble(PASS_ON),
        # Steps in any order; one tensor read twice; an output that is also read.
        ensemble(step({"I": "OUT", "J": "IN"}, {"O": "LAST"}), PASS_ON, outputs=("OUT", "LAST")),
        # A condition is a use of a tensor; steps that exclude each other may write the same one.
        ensemble(PASS_ON, PASS_ON, inputs=("IN", "C"), more=condition(0, "C") + condition(1, "!C")),
    ],
)
def test_good_configurations_pass(text: str) -> None:
    validate_ensemble(parse_pbtxt(text, source="test"))
