"""The loaded models as the OpenAPI document shows them: their tensors, and a tag for each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from protocol.core import ModelMetadata, TensorMetadata
from protocol.datatypes import BY_PROTOCOL_NAME, DataType

JsonObject: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ModelDescription:
    """A loaded model.

    Attributes:
        max_batch_size: 0 where it does not batch.
        optional_inputs: those that may be left out of a request.
        sample_shapes: shapes of inputs that are known to work, by name, the batch dimension included.
    """

    metadata: ModelMetadata
    max_batch_size: int = 0
    optional_inputs: frozenset[str] = frozenset()
    sample_shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    is_decoupled: bool = False

    @classmethod
    def of(cls, metadata: ModelMetadata, config: Mapping[str, Any], *, is_decoupled: bool) -> ModelDescription:
        """From the answers of the core; the samples are those of the model's warm-up, if it has one."""
        max_batch_size = config.get("max_batch_size", 0)
        batch = (1,) if max_batch_size else ()
        samples = [sample["inputs"] for sample in config.get("model_warmup", ())]
        return cls(
            metadata,
            max_batch_size,
            frozenset(entry["name"] for entry in config.get("input", ()) if entry.get("optional")),
            {name: (*batch, *map(int, entry["dims"])) for name, entry in samples[0].items()} if samples else {},
            is_decoupled,
        )

    @property
    def name(self) -> str:
        return self.metadata.name

    @property
    def tag(self) -> str:
        return f"Model: {self.name}"  # no category has a colon in its name

    @property
    def required_inputs(self) -> tuple[TensorMetadata, ...]:
        return tuple(tensor for tensor in self.metadata.inputs if tensor.name not in self.optional_inputs)


def model_tag(model: ModelDescription) -> JsonObject:
    """The tag that gathers a model's operations, with its tensors as a table."""
    metadata = model.metadata
    batching = f"batches of up to {model.max_batch_size}" if model.max_batch_size else "no batching"
    kind = ", decoupled" if model.is_decoupled else ""
    lines = [
        f"{_code(metadata.platform)}, {'versions' if len(metadata.versions) > 1 else 'version'} "
        f"{', '.join(metadata.versions)}, {batching}{kind}",
        "",
        "| | name | datatype | shape |",
        "|---|---|---|---|",
        *(_row("input", tensor) for tensor in metadata.inputs),
        *(_row("output", tensor) for tensor in metadata.outputs),
    ]
    return {"name": model.tag, "description": "\n".join(lines)}


def datatype_of(tensor: TensorMetadata) -> DataType:
    return BY_PROTOCOL_NAME[tensor.datatype]


def shape_text(shape: tuple[int, ...]) -> str:
    return f"[{', '.join('any' if size < 0 else str(size) for size in shape)}]"


def _row(direction: str, tensor: TensorMetadata) -> str:
    return f"| {direction} | {_code(tensor.name)} | {tensor.datatype} | {shape_text(tensor.shape)} |"


def _code(text: str) -> str:
    """A name of somebody else's as Markdown that shows it and nothing more."""
    for special in "`|\r\n":
        text = text.replace(special, " ")
    return f"`{text}`"
