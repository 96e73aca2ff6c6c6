"""Shape rules (padding): which dimensions are padded so that more requests share a batch, and trimmed in responses.

Declared as JSON in the configuration's parameter `shape_rules` and read by `read_shape_rules`:

    { "inputs":  { "IDS": { "dims": { "0": { "buckets": [16, 32, 64] } }, "pad_value": 0,
                            "mask": { "input": "MASK", "data_type": "TYPE_INT64" } } },
      "outputs": { "SCORES": { "dims": { "0": { "input": "IDS", "dim": 0 } } } },
      "batch":   { "buckets": [4, 8] } }

Dimensions are counted as in `dims`, so without the batch. `backends.padding` and the check of requests follow them.
"""

from __future__ import annotations

import bisect
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import msgspec
import numpy as np

from protocol.datatypes import DataType
from protocol.errors import InvalidArgument
from repository.model_config import ModelConfig, ModelInput

PARAMETER = "shape_rules"
# Of masks and lengths.
ALLOWED_TYPES = {
    datatype.value: datatype
    for datatype in (DataType.BOOL, DataType.INT32, DataType.INT64, DataType.FP16, DataType.FP32)
}

Shape: TypeAlias = tuple[int, ...]


class _Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    pass


class DimRule(_Rule, frozen=True):
    """Either `buckets`, the sizes that there are to be, or `multiple`, of which each size is to be one."""

    buckets: tuple[int, ...] = ()
    multiple: int = 0

    def padded(self, size: int) -> int | None:
        """The size that `size` becomes; None if it is larger than the largest bucket."""
        if self.multiple:
            return -(-size // self.multiple) * self.multiple
        place = bisect.bisect_left(self.buckets, size)
        return self.buckets[place] if place < len(self.buckets) else None


class GeneratedInput(_Rule, frozen=True):
    """An input of the model that no client sends."""

    input: str
    data_type: str = "TYPE_INT32"

    @property
    def datatype(self) -> DataType:
        return ALLOWED_TYPES.get(self.data_type, DataType.INVALID)


class InputRule(_Rule, frozen=True):
    """How one input is padded, behind its values; strings with "" unless `pad_value` says otherwise. `mask` gets 1
    where the values are and 0 where there is padding, in the shape of the padded dimensions; `length` gets the sizes
    that these had."""

    dims: dict[int, DimRule]
    pad_value: bool | int | float | str = 0
    mask: GeneratedInput | None = None
    length: GeneratedInput | None = None


class SizeOf(_Rule, frozen=True):
    """The size that a dimension of an input had before it was padded."""

    input: str
    dim: int = 0


class OutputRule(_Rule, frozen=True):
    dims: dict[int, SizeOf]


class ShapeRules(_Rule, frozen=True):
    """All rules of one model. `batch` says to which numbers of rows whole batches are filled up."""

    inputs: dict[str, InputRule] = {}
    outputs: dict[str, OutputRule] = {}
    batch: DimRule | None = None

    def padded_shape(self, name: str, shape: Sequence[int]) -> Shape:
        """The shape, without the batch dimension, that an input of this shape is padded to.

        Raises:
            InvalidArgument: a dimension is larger than its largest bucket.
        """
        rule = self.inputs.get(name)
        if rule is None:
            return tuple(shape)
        padded = list(shape)
        for dim, dim_rule in rule.dims.items():
            size = dim_rule.padded(shape[dim])
            if size is None:
                raise InvalidArgument(
                    f"dimension {dim} of input '{name}' is {shape[dim]}, but the shape rules of its model allow at "
                    f"most {dim_rule.buckets[-1]}"
                )
            padded[dim] = size
        return tuple(padded)

    @property
    def generated(self) -> dict[str, DataType]:
        """The inputs that masks and lengths make, with their datatypes."""
        made = [entry for rule in self.inputs.values() for entry in (rule.mask, rule.length) if entry is not None]
        return {entry.input: entry.datatype for entry in made}


def read_shape_rules(config: ModelConfig) -> ShapeRules | None:
    """The configuration's shape rules; None if it has none.

    Raises:
        InvalidArgument: they are not well formed, or contradict the configuration; the text names the place.
    """
    rules = _decode(config)
    if rules is not None:
        if config.is_ensemble:
            raise _wrong(config, "", "an ensemble pads nothing; give the models of its steps the rules")
        _Check(config, rules).all()
    return rules


def generated_inputs(config: ModelConfig) -> dict[str, DataType]:
    """The inputs that a backend makes for a batch, with their datatypes: `batch_input`, masks and lengths. They are no
    part of the configuration's `input`; its tensors need not be known yet."""
    rules = _decode(config)
    made = {target: entry.data_type for entry in config.batch_input for target in entry.target_name}
    return made if rules is None else {**made, **rules.generated}


def fixed_rows(config: ModelConfig) -> int:
    """The one number of rows that every batch is filled up to; 0 if there is none."""
    rules = _decode(config)
    buckets = () if rules is None or rules.batch is None else rules.batch.buckets
    return buckets[0] if len(buckets) == 1 else 0


def _decode(config: ModelConfig) -> ShapeRules | None:
    text = config.parameter(PARAMETER)
    if not text:
        return None
    try:
        return msgspec.json.decode(text, type=ShapeRules)
    except msgspec.ValidationError as error:
        raise _wrong(config, "", str(error)) from None
    except msgspec.DecodeError as error:
        raise _wrong(config, "", f"is no JSON: {error}") from None


class _Check:
    """Whether rules fit the configuration that they belong to."""

    def __init__(self, config: ModelConfig, rules: ShapeRules) -> None:
        self._config = config
        self._rules = rules
        self._inputs = {entry.name: entry for entry in config.input}
        self._outputs = {entry.name: entry for entry in config.output}

    def all(self) -> None:
        for name, rule in self._rules.inputs.items():
            self._input(name, rule)
        for name, output in self._rules.outputs.items():
            self._output(name, output)
        if self._rules.batch is not None:
            self._batch(self._rules.batch)

    def _input(self, name: str, rule: InputRule) -> None:
        place = f"inputs.{name}"
        entry = self._known(self._inputs, name, place, "input")
        if entry.allow_ragged_batch:
            raise self._wrong(place, f"input '{name}' has 'allow_ragged_batch', so it is not padded")
        if not rule.dims:
            raise self._wrong(f"{place}.dims", "expected at least one dimension")
        self._dims(entry.dims, rule.dims, place)
        for dim, dim_rule in rule.dims.items():
            self._dim_rule(dim_rule, f"{place}.dims.{dim}")
        self._pad_value(entry, rule, place)
        for key, made in (("mask", rule.mask), ("length", rule.length)):
            if made is not None:
                self._generated(made, f"{place}.{key}")

    def _output(self, name: str, rule: OutputRule) -> None:
        place = f"outputs.{name}"
        entry = self._known(self._outputs, name, place, "output")
        self._dims(entry.dims, rule.dims, place)
        for dim, source in rule.dims.items():
            input_rule = self._rules.inputs.get(source.input)
            if input_rule is None or source.dim not in input_rule.dims:
                raise self._wrong(
                    f"{place}.dims.{dim}",
                    f"expected a dimension that is padded, got dimension {source.dim} of input '{source.input}'",
                )

    def _batch(self, rule: DimRule) -> None:
        self._dim_rule(rule, "batch")
        if self._config.batch_input or any(entry.allow_ragged_batch for entry in self._config.input):
            raise self._wrong("batch", "a batch that is ragged is not filled up")
        most = self._config.max_batch_size
        if rule.buckets and rule.buckets[-1] != most:
            raise self._wrong(
                "batch.buckets", f"expected max_batch_size, {most}, as the largest, got {rule.buckets[-1]}"
            )
        if rule.multiple and (not most or most % rule.multiple):
            raise self._wrong(
                "batch.multiple", f"expected max_batch_size, {most}, to be a multiple of it, got {rule.multiple}"
            )

    def _dims(self, dims: Sequence[int], ruled: Mapping[int, object], place: str) -> None:
        for dim in ruled:
            if not 0 <= dim < len(dims):
                raise self._wrong(f"{place}.dims", f"expected a dimension from 0 to {len(dims) - 1}, got {dim}")
            if dims[dim] != -1:
                raise self._wrong(
                    f"{place}.dims.{dim}",
                    f"expected a dimension of variable size (-1 in 'dims'), got one of {dims[dim]}",
                )

    def _dim_rule(self, rule: DimRule, place: str) -> None:
        if bool(rule.buckets) == bool(rule.multiple):
            raise self._wrong(place, "expected either 'buckets' or 'multiple'")
        if rule.multiple < 0:
            raise self._wrong(f"{place}.multiple", f"expected a positive number, got {rule.multiple}")
        if any(size < 1 for size in rule.buckets) or list(rule.buckets) != sorted(set(rule.buckets)):
            raise self._wrong(f"{place}.buckets", f"expected positive sizes in rising order, got {list(rule.buckets)}")

    def _pad_value(self, entry: ModelInput, rule: InputRule, place: str) -> None:
        value, data_type = rule.pad_value, entry.data_type
        if data_type is DataType.BYTES:
            fits = isinstance(value, str) or value == 0
        elif isinstance(value, str):
            fits = False
        else:
            is_float = data_type in (DataType.FP16, DataType.BF16, DataType.FP32, DataType.FP64)
            fits = is_float or bool(np.array(value).astype(data_type.dtype) == value)
        if not fits:
            raise self._wrong(f"{place}.pad_value", f"{value!r} is no value of {data_type.value}")

    def _generated(self, made: GeneratedInput, place: str) -> None:
        if made.data_type not in ALLOWED_TYPES:
            allowed = ", ".join(ALLOWED_TYPES)
            raise self._wrong(f"{place}.data_type", f"expected one of {allowed}, got {made.data_type!r}")
        if made.input in self._inputs:
            raise self._wrong(
                f"{place}.input", f"'{made.input}' is made by the server, so it must not be listed in 'input'"
            )

    def _known(self, entries: Mapping[str, Any], name: str, place: str, which: str) -> Any:
        if name not in entries:
            known = ", ".join(f"'{known}'" for known in sorted(entries)) or "none"
            raise self._wrong(place, f"the model has no {which} '{name}', but: {known}")
        return entries[name]

    def _wrong(self, place: str, reason: str) -> InvalidArgument:
        return _wrong(self._config, place, reason)


def _wrong(config: ModelConfig, place: str, reason: str) -> InvalidArgument:
    where = f" at '{place}'" if place else ""
    return InvalidArgument(f"model '{config.name}', parameter '{PARAMETER}'{where}: {reason}")
