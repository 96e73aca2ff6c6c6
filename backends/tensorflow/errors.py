"""Exceptions of TensorFlow, translated to server errors. Their texts close with the places in a graph where they
arose."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

from backends.out_of_memory import is_out_of_memory
from backends.tensorflow.library import tf
from protocol.errors import Internal, InvalidArgument, Overloaded, ServerError

_PLACE = re.compile(r"\{\{(?:function_)?node [^}]*\}\}:?")
_NODES = re.compile(r"\n\s*\[\[.*", re.DOTALL)
_UNKNOWN_OPERATOR = re.compile(r"Op type not registered '[^']*'")


@contextmanager
def load_errors(model: str, step: str) -> Iterator[None]:
    """Around one step of a load: what the library raises becomes Internal, as in Triton, but for memory that is
    used up."""
    try:
        yield
    except (ServerError, ImportError):
        raise
    except Exception as error:
        kind = Overloaded if _is_out_of_memory(error) else Internal
        raise kind(f"tensorflow error in {step}: {told(error)} (model '{model}')") from error


@contextmanager
def run_errors(model: str) -> Iterator[None]:
    """Around a run: an invalid argument is the client's mistake, memory that is used up nobody's, and anything else
    the model's fault."""
    try:
        yield
    except ServerError:
        raise
    except Exception as error:
        kind: type[ServerError] = Internal
        if isinstance(error, tf.errors.InvalidArgumentError):
            kind = InvalidArgument
        elif _is_out_of_memory(error):
            kind = Overloaded
        raise kind(f"tensorflow error in running model: {told(error)} (model '{model}')") from error


def _is_out_of_memory(error: Exception) -> bool:
    return isinstance(error, tf.errors.ResourceExhaustedError) or is_out_of_memory(error)


def told(error: Exception) -> str:
    """What an exception says, without the places, and without guesses at an operator that is not known."""
    text = _NODES.sub("", _PLACE.sub("", str(error)))
    unknown = _UNKNOWN_OPERATOR.search(text)
    if unknown is not None:
        return f"{unknown[0]}; a library that has it is named by model_operations {{ op_library_filename }}"
    return " ".join(text.split()) or type(error).__name__
