"""Validation rule for every text in a configuration that becomes a path: no NUL, which no path can hold.

Part of `repository.validation`, and judged when the configuration is read, before anybody looks for such a file.
"""

from __future__ import annotations

from collections.abc import Iterator

from protocol.errors import InvalidArgument
from repository.model_config import ModelConfig


def validate_paths(config: ModelConfig) -> None:
    """Of parameters it is the backend that knows which are paths, so all of them are judged.

    Raises:
        InvalidArgument: with the model and the first such field that has a NUL.
    """
    for field, text in _paths(config):
        if "\0" in text:
            raise InvalidArgument(f"{field} of model '{config.name}' has a NUL character, which no path can hold")


def _paths(config: ModelConfig) -> Iterator[tuple[str, str]]:
    yield "'backend'", config.backend
    yield "'default_model_filename'", config.default_model_filename
    for capability, filename in config.cc_model_filenames.items():
        yield f"'cc_model_filenames' for '{capability}'", filename
    for filename in config.model_operations.op_library_filename if config.model_operations else ():
        yield "'op_library_filename'", filename
    for output in config.output:
        yield f"'label_filename' of output '{output.name}'", output.label_filename
    for state in config.sequence_batching.state if config.sequence_batching else ():
        for initial in state.initial_state:
            yield f"'data_file' of state '{state.input_name}'", initial.data_file or ""
    for warmup in config.model_warmup:
        for name, given in warmup.inputs.items():
            yield f"'input_data_file' of warmup '{warmup.name}' for input '{name}'", given.input_data_file or ""
    yield from _parameters(config)


def _parameters(config: ModelConfig) -> Iterator[tuple[str, str]]:
    for key, parameter in config.parameters.items():
        yield f"parameter '{key}'", parameter.string_value
    accelerators = config.optimization.execution_accelerators if config.optimization else None
    if accelerators is not None:
        for accelerator in (*accelerators.gpu_execution_accelerator, *accelerators.cpu_execution_accelerator):
            for key, text in accelerator.parameters.items():
                yield f"parameter '{key}' of execution accelerator '{accelerator.name}'", text
    for agent in config.model_repository_agents.agents if config.model_repository_agents else ():
        for key, text in agent.parameters.items():  # the checksum agent's keys name files
            yield f"a parameter of repository agent '{agent.name}'", key + text
