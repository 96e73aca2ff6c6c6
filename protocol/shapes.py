"""Shape validation: refuses impossible tensor shapes in requests before anything is allocated or multiplied.

Both edges call this; the core checks shapes against the model's configuration. The texts are Triton's.
"""

from __future__ import annotations

from collections.abc import Sequence

from protocol.datatypes import DataType
from protocol.errors import InvalidArgument

MAX_INT64 = 2**63 - 1
# What numpy can hold.
MAX_RANK = 64


def expected_byte_size(name: str, datatype: DataType, shape: Sequence[int]) -> int | None:
    """How many bytes the data of input `name` must have; None for BYTES, whose elements say so themselves.

    Dimensions may be integers of any size and sign.

    Raises:
        InvalidArgument: no tensor has such a shape.
    """
    if len(shape) > MAX_RANK:
        raise InvalidArgument(
            f"invalid shape for input '{name}': expected at most {MAX_RANK} dimensions, got {len(shape)}"
        )
    count = 1
    for dimension in shape:
        if not 0 <= dimension <= MAX_INT64:
            raise InvalidArgument(
                f"invalid shape for input '{name}': shape {_listed(shape)} contains one or more invalid dimensions"
            )
        count *= dimension
    if count > MAX_INT64:
        raise InvalidArgument(
            f"invalid shape for input '{name}': shape {_listed(shape)} causes total element count to exceed maximum "
            f"size of {MAX_INT64}"
        )
    item_size = datatype.itemsize or 4  # an element of BYTES takes at least the 4 bytes of its length
    size = count * item_size
    if size > MAX_INT64:
        raise InvalidArgument(
            f"byte size overflow for input '{name}': element count ({count}) * data type size ({item_size}) exceeds "
            f"maximum allowed size ({MAX_INT64})"
        )
    return size if datatype.itemsize else None


def _listed(shape: Sequence[int]) -> str:
    return f"[{','.join(str(dimension)[:24] for dimension in shape)}]"
