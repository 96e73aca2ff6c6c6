"""Validation of a request against its model's configuration, before it is queued.

Plain and synchronous; owned by the model. Texts follow Triton's core (reference: "Core request checks"). A valid
request has its inputs in the order of the configuration, each with the right datatype, a shape that fits and as many
bytes as the shape needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from actors.mail.messages import ShapeKey
from protocol.datatypes import DataType
from protocol.errors import InvalidArgument, ServerError
from protocol.messages import InferenceRequest, LaidOutTensor, Tensor
from protocol.sync.sliced import Sliced, in_one_go
from repository.model_config import ModelConfig, ModelInput
from repository.shape_rules import read_shape_rules

# How many request templates a model remembers as checked; beyond that it forgets them all.
_MOST_KNOWN = 256
# A BYTES input of more elements is looked at in slices, of so many.
_LONG_ABOVE = 1 << 12
_SLICE = 1 << 8
_LENGTH_BYTES = 4

BATCH_NOTE = (
    "NOTE: Setting a non-zero max_batch_size in the model config requires a batch dimension to be prepended to each "
    "input shape. If you want to specify the full shape including the batch dim in your input dims config, try setting "
    "max_batch_size to zero. See the model configuration docs for more info on max_batch_size."
)


@dataclass(frozen=True, slots=True)
class CheckedRequest:
    """`batch_size` counts for the scheduler: 1 where the model has no batch dimension."""

    batch_size: int
    shape_key: ShapeKey


class RefusedTensor(Tensor, eq=False, kw_only=True):
    """A BYTES tensor whose data is not laid out as it must be, and why."""

    refusal: ServerError


class RequestChecker:
    """The checks of one model version, prepared once."""

    def __init__(self, config: ModelConfig) -> None:
        self._model = config.name
        self._max_batch_size = config.max_batch_size
        self._inputs = {tensor.name: tensor for tensor in config.input}
        self._order = {name: place for place, name in enumerate(self._inputs)}
        self._required = [tensor.name for tensor in config.input if not tensor.optional]
        self._outputs = frozenset(tensor.name for tensor in config.output)
        # Ragged inputs keep no requests apart.
        self._ragged = frozenset(tensor.name for tensor in config.input if tensor.allow_ragged_batch)
        # Their values are shapes: they have no batch dimension, and requests of one batch have the same.
        self._shape_tensors = frozenset(tensor.name for tensor in config.input if tensor.is_shape_tensor)
        self._rules = read_shape_rules(config)
        # Requests for a model with fixed shapes and no optional input always fit each other.
        self._has_one_shape = not self._shape_tensors and all(
            (-1 not in t.dims or t.allow_ragged_batch) and not t.optional for t in config.input
        )
        # Elements of BYTES are looked at in every request, so a template does not tell that they are right;
        # values of shape tensors are part of what is found.
        self._knows_templates = not self._shape_tensors and all(
            tensor.data_type is not DataType.BYTES for tensor in config.input
        )
        self._texts = frozenset(tensor.name for tensor in config.input if tensor.data_type is DataType.BYTES)
        self._known: dict[object, CheckedRequest] = {}

    def check(self, request: InferenceRequest) -> CheckedRequest:
        """Bring the request's inputs into the configuration's order and validate them.

        Raises:
            InvalidArgument: with what was expected and what was received.
        """
        template = request.template
        known = self._known.get(template)
        if known is not None:
            return known
        for name in request.requested_outputs:
            if name not in self._outputs:
                raise InvalidArgument(f"unexpected inference output '{name}' for model '{self._model}'")
        self._check_requested_once(request)
        is_in_order = self._check_names(request)
        batch_size = self._check_batch(request)
        for tensor in request.inputs:
            self._check_tensor(request, self._inputs[tensor.name], tensor)
        checked = CheckedRequest(batch_size, None if self._has_one_shape else self._shape_key(request))
        if template is not None and is_in_order and self._knows_templates:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            self._known[template] = checked
        return checked

    def has_long_texts(self, request: InferenceRequest) -> bool:
        """Whether `check` would take long, unless `look_at_texts` has looked at them."""
        return bool(self._texts) and any(map(self._is_long, request.inputs))

    def _is_long(self, tensor: Tensor) -> bool:
        return (
            tensor.datatype is DataType.BYTES
            and type(tensor) is Tensor
            and len(tensor.data) > _LONG_ABOVE * _LENGTH_BYTES
            and tensor.element_count > _LONG_ABOVE
            and tensor.name in self._texts
        )

    def look_at_texts(self, request: InferenceRequest) -> Sliced[None]:
        """Look at long BYTES inputs, so that `check` knows of each whether it is right. What is wrong is told there,
        after what comes before it."""
        for place, tensor in enumerate(request.inputs):
            if not self._is_long(tensor):
                continue
            known = (tensor.name, tensor.datatype, tensor.shape, tensor.data)
            try:
                yield from self._look_at_elements(request, tensor)
            except InvalidArgument as error:
                request.inputs[place] = RefusedTensor(*known, refusal=error.with_traceback(None))
            else:
                request.inputs[place] = LaidOutTensor(*known)

    def _check_requested_once(self, request: InferenceRequest) -> None:
        """Each output. A client's mistake; for a model that calls another one, as in Triton, it means nothing."""
        names = request.requested_outputs
        if len(set(names)) != len(names) and request.caller is None:
            twice = next(name for name in names if names.count(name) > 1)
            raise _refused(request, f"output '{twice}' is requested more than once for model '{self._model}'")

    def _check_names(self, request: InferenceRequest) -> bool:
        """Returns whether the inputs were in the configuration's order, as they are now."""
        inputs = request.inputs
        given = [tensor.name for tensor in inputs]
        if given == list(self._order):  # the usual case: all inputs, in order
            return True
        for name in given:
            if name not in self._inputs:
                raise InvalidArgument(f"unexpected inference input '{name}' for model '{self._model}'")
        if len(set(given)) != len(given):
            twice = next(name for name in given if given.count(name) > 1)
            raise _refused(request, f"input '{twice}' already exists in request")
        missing = [name for name in self._required if name not in given]
        if missing:
            most, least = len(self._inputs), len(self._required)
            expected = f"expected {most} inputs but got {len(given)} inputs for model '{self._model}'."
            if most != least:
                expected = (
                    f"expected number of inputs between {least} and {most} but got {len(given)} inputs "
                    f"for model '{self._model}'."
                )
            raise _refused(
                request,
                f"{expected} Got input(s) {_quoted(given)}, but missing required input(s) {_quoted(missing)}. "
                "Please provide all required input(s).",
            )
        inputs.sort(key=lambda tensor: self._order[tensor.name])
        return given == [tensor.name for tensor in inputs]

    def _check_batch(self, request: InferenceRequest) -> int:
        if not self._max_batch_size:
            return 1
        batch_size = -1
        for tensor in request.inputs:
            if tensor.name in self._shape_tensors:
                continue
            if not tensor.shape:
                raise _refused(
                    request,
                    f"input '{tensor.name}' has no shape but model requires batch dimension for '{self._model}'",
                )
            if batch_size == -1:
                batch_size = tensor.shape[0]
            elif tensor.shape[0] != batch_size:
                raise _refused(
                    request,
                    f"input '{tensor.name}' batch size does not match other inputs for '{self._model}': "
                    f"expected {batch_size}, got {tensor.shape[0]}",
                )
        if batch_size > self._max_batch_size:
            raise _refused(
                request,
                f"inference request batch-size must be <= {self._max_batch_size} for '{self._model}', got {batch_size}",
            )
        if batch_size == 0:
            raise _refused(request, f"inference request batch-size must be >= 1 for '{self._model}', got 0")
        return max(batch_size, 1)  # no input at all (all are optional) counts as one

    def _check_tensor(self, request: InferenceRequest, expected: ModelInput, tensor: Tensor) -> None:
        model = self._model
        if tensor.datatype is not expected.data_type:
            raise _refused(
                request,
                f"inference input '{tensor.name}' data-type is '{tensor.datatype.name}', but model '{model}' expects "
                f"'{expected.data_type.name}'",
            )
        has_batch = self._max_batch_size and not expected.is_shape_tensor
        shape = tensor.shape[1:] if has_batch else tensor.shape
        if min(tensor.shape, default=0) < 0:
            raise _refused(
                request,
                f"All input dimensions should be specified for input '{tensor.name}' for model '{model}', "
                f"got {_shape(tensor.shape)}",
            )
        if shape != expected.dims:
            fits = len(shape) == len(expected.dims) and all(
                wanted in (-1, size) for size, wanted in zip(shape, expected.dims, strict=True)
            )
            if not fits:
                full = (-1, *expected.dims) if has_batch else expected.dims
                note = BATCH_NOTE if has_batch else ""
                raise _refused(
                    request,
                    f"unexpected shape for input '{tensor.name}' for model '{model}'. "
                    f"Expected {_shape(full)}, got {_shape(tensor.shape)}. {note}".rstrip(),
                )
        if tensor.datatype is DataType.BYTES:
            if isinstance(tensor, RefusedTensor):
                raise tensor.refusal
            if type(tensor) is not LaidOutTensor:
                in_one_go(self._look_at_elements(request, tensor))
        elif tensor.byte_size != tensor.element_count * tensor.datatype.itemsize:
            raise _refused(
                request,
                f"input byte size mismatch for input '{tensor.name}' for model '{model}'. "
                f"Expected {tensor.element_count * tensor.datatype.itemsize}, got {tensor.byte_size}",
            )

    def _look_at_elements(self, request: InferenceRequest, tensor: Tensor) -> Sliced[None]:
        """Validate the length prefixes of a BYTES input, so that backends can trust them."""
        data = tensor.data
        end = tensor.byte_size
        expected = tensor.element_count
        about = f"for inference input '{tensor.name}' for model '{self._model}'"
        position = found = 0
        while position < end:
            if found == expected:
                raise _refused(
                    request, f"unexpected number of string elements {found + 1} {about}, expecting {expected}"
                )
            start = position + _LENGTH_BYTES
            if start > end:
                raise _refused(
                    request,
                    f"incomplete string length indicator {about}, expecting 4 bytes but only {end - position} bytes "
                    "available. Please make sure the string length indicator is in one buffer.",
                )
            length = int.from_bytes(data[position:start], "little")
            position = start + length
            if position > end:
                raise _refused(
                    request,
                    f"incomplete string data {about}, expecting string of length {length} but only {end - start} "
                    "bytes available",
                )
            found += 1
            if not found % _SLICE:
                yield
        if found != expected:
            raise _refused(request, f"expected {expected} string elements {about}, got {found}")

    def _shape_key(self, request: InferenceRequest) -> ShapeKey:
        start = 1 if self._max_batch_size else 0
        shapes = {tensor.name: tensor.shape[start:] for tensor in request.inputs}
        for tensor in request.inputs if self._shape_tensors else ():
            if tensor.name in self._shape_tensors:
                shapes[tensor.name] = tuple(tensor.as_numpy().reshape(-1).tolist())
        if self._ragged or self._rules is not None:
            shapes = {name: self._padded(request, name, shape) for name, shape in shapes.items()}
        return tuple(shapes.get(name) for name in self._inputs)

    def _padded(self, request: InferenceRequest, name: str, shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape that requests of one batch have in common."""
        if name in self._ragged:
            return ()
        if self._rules is None:
            return shape
        try:
            return self._rules.padded_shape(name, shape)
        except InvalidArgument as error:
            raise _refused(request, f"{error} (model '{self._model}')") from None


def _refused(request: InferenceRequest, reason: str) -> ServerError:
    return InvalidArgument(f"[request id: {request.id or '<id_unknown>'}] {reason}")


def _quoted(names: Sequence[str]) -> str:
    return "[" + ",".join(f"'{name}'" for name in names) + "]"


def _shape(shape: Sequence[int]) -> str:
    return "[" + ",".join(map(str, shape)) + "]"
