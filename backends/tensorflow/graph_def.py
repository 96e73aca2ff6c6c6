"""GraphDef models: frozen graphs, with Placeholders as inputs and configured outputs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from backends.interface import ModelSource
from backends.tensorflow.errors import load_errors
from backends.tensorflow.library import tf, v1
from backends.tensorflow.tensors import ModelTensor, ModelTensors, described
from protocol.errors import InvalidArgument
from repository.model_config import Dims, ModelConfig
from repository.sequence_tensors import control_inputs, hidden_outputs, state_inputs
from repository.shape_rules import generated_inputs

_PLACEHOLDER = "Placeholder"
_INPUTS = frozenset({_PLACEHOLDER, "PlaceholderWithDefault"})
_NAMES_TOLD = 20  # of a graph's last nodes, where one is not found


@dataclass(frozen=True, slots=True)
class GraphDefFile:
    """`graph` is the library's, for one session."""

    graph: Any
    tensors: ModelTensors

    def load_into(self, session: Any, source: ModelSource, device: str | None) -> None:
        """A frozen graph has nothing to load."""


def read_graph_def(path: Path, source: ModelSource, device: str | None = None) -> GraphDefFile:
    """Read the file, and find the configuration's tensors in it. All operators go to the `device`; without one, where
    the file has them.

    Raises:
        InvalidArgument: an output is none of its nodes', or needs an input that the configuration does not list.
        Internal: it cannot be read.
    """
    definition = v1.GraphDef()
    with load_errors(source.name, f"reading '{path.name}'"):
        definition.ParseFromString(path.read_bytes())
    for node in definition.node if device else ():
        node.device = ""
    graph = tf.Graph()
    with load_errors(source.name, "loading the GraphDef"), graph.as_default(), tf.device(device):
        v1.import_graph_def(definition, name="")
    return GraphDefFile(graph, _tensors(graph, source.config))


def describe_placeholders(file: GraphDefFile) -> str:
    """For somebody who has to write a configuration."""
    return ", ".join(
        f"'{each.name}' ({each.data_type.value}, {'any shape' if each.shape is None else list(each.shape)})"
        for each in file.tensors.inputs
    )


def _tensors(graph: Any, config: ModelConfig) -> ModelTensors:
    operations = graph.get_operations()
    given = {entry.name for entry in (*config.input, *control_inputs(config), *state_inputs(config))}
    given |= set(generated_inputs(config))
    inputs = []
    for operation in operations:
        if operation.type in _INPUTS:
            tensor = operation.outputs[0]
            name = next((name for name in (operation.name, tensor.name) if name in given), operation.name)
            inputs.append(described(name, tensor.name, tensor.dtype, _shape(tensor), optional=name not in given))
    outputs = [_output(graph, entry.name, config) for entry in (*config.output, *hidden_outputs(config))]
    if given <= {each.name for each in inputs}:  # else the configuration has other faults, which say more
        _require_inputs(graph, outputs, given, config)
    return ModelTensors(tuple(inputs), tuple(outputs), has_inferred_outputs=True)


def _output(graph: Any, name: str, config: ModelConfig) -> ModelTensor:
    try:
        tensor = graph.get_tensor_by_name(name if ":" in name else f"{name}:0")
    except (KeyError, ValueError):
        last = sorted(
            operation.name
            for operation in graph.get_operations()
            if operation.outputs and not any(tensor.consumers() for tensor in operation.outputs)
        )
        told = ", ".join(last[:_NAMES_TOLD])
        raise InvalidArgument(
            f"model '{config.name}': unexpected inference output '{name}', allowed outputs are: {told or 'none'}"
            f"{', …' if len(last) > _NAMES_TOLD else ''}, and every other node with a result"
        ) from None
    return described(name, tensor.name, tensor.dtype, _shape(tensor))


def _require_inputs(graph: Any, outputs: Iterable[ModelTensor], given: set[str], config: ModelConfig) -> None:
    """Raises InvalidArgument where an output hangs on a Placeholder that gets no value."""
    for output in outputs:
        seen: set[str] = set()
        waiting = [graph.get_tensor_by_name(output.tensor).op]
        while waiting:
            operation = waiting.pop()
            if operation.name in seen or operation.name in given or f"{operation.name}:0" in given:
                continue
            seen.add(operation.name)
            if operation.type == _PLACEHOLDER:
                raise InvalidArgument(
                    f"unable to load model '{config.name}', output '{output.name}' needs the Placeholder "
                    f"'{operation.name}', which is no input of the configuration"
                )
            waiting.extend(tensor.op for tensor in operation.inputs)
            waiting.extend(operation.control_inputs)


def _shape(tensor: Any) -> Dims | None:
    shape = tensor.shape
    return None if shape.rank is None else tuple(-1 if dim is None else int(dim) for dim in shape.as_list())
