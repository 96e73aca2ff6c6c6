"""Exceptions of JAX, translated to server errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TypeAlias

from backends.out_of_memory import is_out_of_memory
from protocol.errors import Internal, InvalidArgument, Overloaded, ServerError

# Of all inputs of a function, in its order.
Shapes: TypeAlias = "tuple[tuple[int, ...], ...]"

_NO_MEMORY = "RESOURCE_EXHAUSTED"
# How it says that sizes do not fit the symbolic dimensions that the function was exported with, or their constraints.
_SYMBOLS = "polymorphic shapes specification"
_CONSTRAINTS = "Error refining shapes"


@contextmanager
def load_errors(model: str, step: str) -> Iterator[None]:
    """Around one step of a load: what the library raises becomes Internal; a batch that the symbolic dimensions do not
    allow is a mistake of the configuration."""
    try:
        yield
    except (ServerError, ImportError):
        raise
    except Exception as error:
        raise _kind_of(error)(f"failed to load model '{model}': JAX fails in {step}: {_told(error)}") from error


@contextmanager
def run_errors(model: str, shapes: Shapes) -> Iterator[None]:
    """Around a run, with the compilation that it may need: sizes that the symbolic dimensions do not allow are the
    client's mistake, anything else the model's."""
    try:
        yield
    except ServerError:
        raise
    except Exception as error:
        kind, text = _kind_of(error), _told(error)
        if kind is InvalidArgument:
            text = f"model '{model}' was not exported for inputs of the shapes {told_shapes(shapes)}: {text}"
        else:
            text = f"JAX execute failure: {text} (model '{model}')"
        raise kind(text) from error


def told_shapes(shapes: Shapes) -> str:
    return ", ".join(str(list(shape)) for shape in shapes)


def _kind_of(error: Exception) -> type[ServerError]:
    text = str(error)
    if _SYMBOLS in text or _CONSTRAINTS in text:
        return InvalidArgument
    return Overloaded if _NO_MEMORY in text or is_out_of_memory(error) else Internal


def _told(error: Exception) -> str:
    """In one line, without its advice for those who have the function's source."""
    text = str(error)
    if _CONSTRAINTS in text:
        return "the constraints on its symbolic dimensions do not allow them"
    for advice in ("Please see https://", "For simplicity, JAX has removed"):
        text = text.partition(advice)[0]
    return " ".join(text.split()) or type(error).__name__
