"""What a candidate of each precision may differ by from the reference."""

from __future__ import annotations

import enum

import msgspec


class Precision(enum.StrEnum):
    """Of a candidate's weights and computation; the order is that of trust."""

    FP32 = "fp32"
    FP16 = "fp16"
    INT8 = "int8"

    @property
    def is_reduced(self) -> bool:
        return self is not Precision.FP32

    @property
    def rank(self) -> int:
        """0 for the highest."""
        return list(Precision).index(self)


class Tolerance(msgspec.Struct, frozen=True):
    """Limits, None for what is not asked of a precision.

    `error`: the greatest difference of an element, as a part of its size and of the output's usual size together.
    `cosine`: the least cosine between an output and the reference's. `distance`: the greatest Euclidean distance of an
    output, as a part of its norm. `top1`: the least share of rows whose greatest element is at the same place. `equal`:
    the least share of equal elements where they are integers, Booleans or texts.
    """

    error: float | None
    cosine: float | None
    distance: float | None
    top1: float | None
    equal: float


TOLERANCES = {
    Precision.FP32: Tolerance(error=1e-4, cosine=None, distance=None, top1=None, equal=1.0),
    Precision.FP16: Tolerance(error=1e-2, cosine=0.999, distance=0.02, top1=0.99, equal=0.99),
    Precision.INT8: Tolerance(error=None, cosine=0.99, distance=0.15, top1=0.99, equal=0.99),
}
