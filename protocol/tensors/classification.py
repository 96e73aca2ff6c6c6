"""Classification extension: the top k classes of an output in place of its values.

Source: Triton's classification extension; reference section "Classification".
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from protocol.datatypes import DataType
from protocol.errors import InvalidArgument
from protocol.messages import Tensor, encode_bytes_elements

MAX_ELEMENTS = 1_000_000

_INTEGERS = frozenset(
    {
        DataType.UINT8,
        DataType.UINT16,
        DataType.UINT32,
        DataType.UINT64,
        DataType.INT8,
        DataType.INT16,
        DataType.INT32,
        DataType.INT64,
    }
)
_FLOATS = frozenset({DataType.FP32, DataType.FP64})


def classify(tensor: Tensor, k: int, labels: Sequence[str], has_batch: bool) -> Tensor:
    """The `k` largest elements as a BYTES tensor of `value:index` or `value:index:label`, largest first.

    Its shape is [k'], or [batch, k'] where the first dimension is a batch; k' is `k`, or the number of elements in an
    entry of the batch if that is less. Of equal elements the first comes first; NaN comes last. `index` counts the
    elements of an entry, `labels` gives their names; an index without one, or with an empty one, stays a number.

    Raises:
        InvalidArgument: an output of another type than integers, FP32 and FP64, of more than a million elements, or
            without the dimension of its batch.
    """
    if tensor.datatype not in _INTEGERS | _FLOATS:
        raise InvalidArgument(
            f"class result not available for output due to unsupported type '{tensor.datatype.name}'"
            f": expected integers, FP32 or FP64 for output '{tensor.name}'"
        )
    if tensor.element_count > MAX_ELEMENTS:
        raise InvalidArgument(
            f"classification output tensor too large: output '{tensor.name}' has {tensor.element_count} elements, "
            f"expected at most {MAX_ELEMENTS}"
        )
    if has_batch and not tensor.shape:
        raise InvalidArgument(
            f"class result not available for output '{tensor.name}': expected the batch as its first dimension, got a "
            "scalar"
        )
    batch, entry_shape = (tensor.shape[0], tensor.shape[1:]) if has_batch else (1, tensor.shape)
    values = tensor.as_numpy().reshape(batch, math.prod(entry_shape))
    count = min(k, values.shape[1])
    form = "{:f}:{}{}" if tensor.datatype in _FLOATS else "{}:{}{}"
    classes: list[str] = []
    for entry in values:
        best = _order(entry)[:count]
        classes += [
            form.format(value, index, _suffix(labels, index))
            for value, index in zip(entry[best].tolist(), best.tolist(), strict=True)
        ]
    shape = (batch, count) if has_batch else (count,)
    return Tensor(tensor.name, DataType.BYTES, shape, encode_bytes_elements(classes))


def _order(entry: np.ndarray[tuple[int, ...], np.dtype[np.generic]]) -> np.ndarray[tuple[int, ...], np.dtype[np.intp]]:
    """Indices by falling value. Sorting the reversed entry upwards and reversing the result keeps the first of equals
    first; it needs no negation, which unsigned and smallest integers have none of."""
    upwards = np.argsort(entry[::-1], kind="stable")
    if np.issubdtype(entry.dtype, np.floating):
        upwards = np.roll(upwards, np.count_nonzero(np.isnan(entry)))  # numpy has NaN last: the front, in the end
    return len(entry) - 1 - upwards[::-1]


def _suffix(labels: Sequence[str], index: int) -> str:
    label = labels[index] if index < len(labels) else ""
    return f":{label}" if label else ""
