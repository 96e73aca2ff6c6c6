"""Symbolic dimensions of an ONNX model: output shapes computed before a run.

Exporters name an input's dimension, and give that name or a sum of names and numbers (`past + seq`, `past_length + 1`)
as an output's. Whatever is not so plain is not known beforehand.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

# As the library gives it: a size, a name, or nothing.
DeclaredShape = Sequence[int | str | None]


def sizes_of_names(shapes: Iterable[tuple[DeclaredShape, Sequence[int]]]) -> dict[str, int]:
    """The size of each name in the declared shapes of tensors whose actual shapes are known."""
    return {
        dim: size
        for declared, actual in shapes
        if len(declared) == len(actual)
        for dim, size in zip(declared, actual, strict=True)
        if isinstance(dim, str)
    }


def shape_from(declared: DeclaredShape, sizes: Mapping[str, int]) -> tuple[int, ...] | None:
    """The shape, where every dimension is a number, a name with a size, or a sum or difference of such."""
    found = [dim if isinstance(dim, int) else _evaluate(dim or "", sizes) for dim in declared]
    shape = tuple(size for size in found if size is not None and size >= 0)
    return shape if len(shape) == len(found) else None


def _evaluate(text: str, sizes: Mapping[str, int]) -> int | None:
    if text in sizes:
        return sizes[text]
    total = 0
    sign = 1
    is_term_next = True
    for part in text.replace("+", " + ").replace("-", " - ").split():
        if is_term_next:
            size = int(part) if part.isdecimal() else sizes.get(part)
            if size is None:
                return None
            total += sign * size
        elif part in ("+", "-"):
            sign = 1 if part == "+" else -1
        else:
            return None
        is_term_next = not is_term_next
    return None if is_term_next else total
