"""Outputs of ONNX models that libraries of classical learning write: some of them, by other names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import onnx


def keep_outputs(model: onnx.ModelProto, names: Mapping[str, str]) -> onnx.ModelProto:
    """With the outputs whose names are in `names`, in that order, and with the names that stand there for them.

    Raises:
        ValueError: it has no such output.
    """
    graph = model.graph
    outputs = {output.name: output for output in graph.output}
    if missing := [name for name in names if name not in outputs]:
        raise ValueError(f"the converter has written no output '{missing[0]}'; there are {', '.join(outputs)}")
    kept = [outputs[name] for name in names]
    for node in graph.node:
        node.input[:] = [names.get(name, name) for name in node.input]
        node.output[:] = [names.get(name, name) for name in node.output]
    del graph.output[:]
    for output in kept:
        output.name = names[output.name]
        output.type.tensor_type.shape.dim[0].dim_param = "batch"  # some converters write 1
        graph.output.append(output)
    return model


def save(model: onnx.ModelProto, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.checker.check_model(model)
    onnx.save(model, str(path))
